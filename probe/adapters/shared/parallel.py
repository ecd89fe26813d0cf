"""How ranks divide a model, as programs say it: attributes of modules and of parameters, by those that have the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from probe.adapters.shared.user_objects import attribute

OF_MODULES = (
    "gather_output", "input_is_parallel", "sequence_parallel", "reduce_scatter_embeddings", "layer_number", "layer_idx", "is_expert",
    "tensor_parallel_output", "tp_size", "ep_size", "num_local_experts", "local_expert_indices", "num_experts",
)  # fmt: skip
"""attributes of modules of Megatron, fleet, vLLM and SGLang by which it is known what a rank is given, holds and returns"""
OF_PARAMETERS = (
    "tensor_model_parallel", "partition_dim", "partition_stride", "sequence_parallel", "allreduce", "shared", "shared_embedding",
    "is_distributed", "split_axis",
)  # fmt: skip
"""attributes of parameters, likewise"""
_MOST = 4096
"""numbers of a list that is kept"""

Facts = list[tuple[dict[str, object], list[str]]]
"""facts, and the names of all that have them"""


def of_modules(named: Iterable[tuple[str, Any]]) -> Facts:
    """Return what programs say of modules by attributes that were set on them: a ``__getattr__`` of theirs may do anything."""
    return by_facts((name, {key: vars(module).get(key) for key in OF_MODULES}) for name, module in named)


def of_parameter(parameter: object) -> dict[str, object]:
    """Return what a program says of a parameter by attributes."""
    return {name: attribute(parameter, name) for name in OF_PARAMETERS}


def by_facts(named: Iterable[tuple[str, Mapping[str, object]]]) -> Facts:
    """Return names by what is known of them: plain values, and texts in lists; what nothing is known of is left out."""
    found: dict[str, tuple[dict[str, object], list[str]]] = {}
    for name, attributes in named:
        facts = {key: fact for key, value in attributes.items() for fact in [_plain(value)] if fact is not None}
        if facts:
            found.setdefault(repr(sorted(facts.items())), (facts, []))[1].append(name)
    return list(found.values())


def groups_of(makers: Mapping[str, Callable[[], Any]], ranks_of: Callable[[Any], list[int]]) -> dict[str, list[int]]:
    """Return the ranks of each group that can be had; a framework raises where a group was not made."""
    found: dict[str, list[int]] = {}
    for name, make in makers.items():
        try:
            found[name] = [int(rank) for rank in ranks_of(make())]
        except Exception:  # noqa: BLE001  another version, or a group that this layout lacks
            continue
    return found


def joined(prefix: str, name: str) -> str:
    """Return the path of a module of a list of models, or of what belongs to it."""
    return f"{prefix}.{name}" if prefix and name else prefix or name


def _plain(value: object) -> object:
    """Return numbers, texts and lists of them; None for everything else."""
    if isinstance(value, (bool, int)) or (isinstance(value, str) and len(value) < _MOST):
        return value
    if not isinstance(value, (list, tuple)) or not 0 < len(value) <= _MOST:
        return None
    items = [_plain(each) for each in value]
    return None if None in items else items
