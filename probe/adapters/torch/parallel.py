"""How ranks divide a model: groups of torch.distributed, of device meshes and of Megatron; placements of sharded tensors;
pipeline stages, which learn the shapes that they send each other by a forward on memory that nobody has filled.

Everything is asked of this process alone: no collective is issued, no rank waits for another.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import distributed

from probe.adapters.shared.parallel import by_facts, groups_of, joined, of_modules, of_parameter
from probe.adapters.torch.sharded import PLAIN

_STAGE = "torch.distributed.pipelining.stage"
_INFERENCES = {"_forward_metadata_inference", "_shape_inference"}
"""methods of a stage that run it for the shapes alone, in this and in older versions"""
_MEGATRON = "megatron.core.parallel_state"
_OF_MEGATRON = {
    "tp": "get_tensor_model_parallel_group",
    "cp": "get_context_parallel_group",
    "dp": "get_data_parallel_group",
    "pp": "get_pipeline_model_parallel_group",
    "ep": "get_expert_model_parallel_group",
    "etp": "get_expert_tensor_parallel_group",
    "embd": "get_embedding_group",
}
_WRAPPERS = {"DistributedDataParallel": "dp", "FullyShardedDataParallel": "fsdp"}
"""classes that have a ``process_group``, and what it is for"""


def parallel(models: Sequence[tuple[str, torch.nn.Module]]) -> dict[str, object]:
    """Return how ranks divide models: see ``parallel`` in docs/reference/file-format.md."""
    groups = _groups([model for _, model in models]) if distributed.is_available() else {}
    modules = [(joined(prefix, name), module) for prefix, model in models for name, module in model.named_modules()]
    parameters = [(joined(prefix, name), each) for prefix, model in models for name, each in model.named_parameters()]
    return {
        "groups": groups,
        "modules": of_modules(modules),
        "parameters": by_facts((name, _of_parameter(each)) for name, each in parameters),
    }


def placements_of(tensor: torch.Tensor) -> list[list[str]]:
    """Return for each dimension of a sharded tensor's mesh its name, and how it lies there; nothing of other tensors.

    ``R`` is replicated, ``P`` a part of a sum, ``S1`` sharded along axis 1, ``S1/4`` the same within parts that another
    dimension makes four of.
    """
    mesh, placed = getattr(tensor, "device_mesh", None), getattr(tensor, "placements", None)
    if mesh is None or placed is None:
        return []
    return [[name, _placement(each)] for name, each in zip(_names(mesh), placed, strict=True)]


def _of_parameter(parameter: torch.Tensor) -> dict[str, object]:
    found = of_parameter(parameter) if getattr(parameter, "__dict__", None) else {}
    placed = [] if type(parameter) in PLAIN else placements_of(parameter)
    return {**found, "placements": placed, "shape": list(map(int, parameter.shape))} if placed else found


def _groups(models: Sequence[torch.nn.Module]) -> dict[str, list[int]]:
    if not distributed.is_initialized():
        return {}
    ranks_of = distributed.get_process_group_ranks
    megatron = sys.modules.get(_MEGATRON)
    if megatron is not None and megatron.is_initialized():
        return groups_of({name: getattr(megatron, maker) for name, maker in _OF_MEGATRON.items()}, ranks_of)
    found: dict[str, list[int]] = {}
    for mesh in _meshes(models):
        makers = {name: functools.partial(mesh.get_group, at) for at, name in enumerate(_names(mesh))}
        found = {**groups_of(makers, ranks_of), **found}
    for module in (module for model in models for module in model.modules()):
        name, group = _WRAPPERS.get(type(module).__name__), vars(module).get("process_group")
        if name and name not in found and isinstance(group, distributed.ProcessGroup):
            found |= groups_of({name: lambda group=group: group}, ranks_of)
    return found


def _meshes(models: Iterable[torch.nn.Module]) -> Iterator[Any]:
    """Yield the meshes over which parameters lie, each once, the whole of which they are a part before them."""
    seen: list[Any] = []
    for tensor in (tensor for model in models for tensor in model.parameters()):
        mesh = getattr(tensor, "device_mesh", None)
        root = getattr(mesh, "_get_root_mesh", lambda mesh=mesh: mesh)()
        for each in (root, mesh):
            if each is not None and not any(each is other for other in seen):
                seen.append(each)
                yield each


def _names(mesh: Any) -> list[str]:
    """Return the names of a mesh's dimensions; one without a name is called after what shards over a single one."""
    names = mesh.mesh_dim_names
    return list(names) if names else ["mesh"] if mesh.ndim == 1 else [f"mesh{k}" for k in range(mesh.ndim)]


def _placement(placed: Any) -> str:
    if placed.is_replicate():
        return "R"
    if placed.is_partial():
        return "P"
    split = getattr(placed, "split_factor", None)
    return f"S{placed.dim}/{split}" if split is not None else f"S{placed.dim}"


def learning_shapes() -> str:
    """Return in words that what runs in this thread is a stage's forward for shapes, whose numbers are others each time; mostly ``""``."""
    frame = sys._getframe(1) if _STAGE in sys.modules else None
    while frame is not None:
        if frame.f_code.co_name in _INFERENCES and frame.f_globals.get("__name__") == _STAGE:
            return "by which torch.distributed.pipelining runs a stage to learn shapes"
        frame = frame.f_back
    return ""
