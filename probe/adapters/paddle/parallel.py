"""How ranks divide a model: fleet's hybrid topology and the group of ``paddle.DataParallel``; no collective is issued."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from probe.adapters.shared.parallel import by_facts, groups_of, joined, of_modules, of_parameter
from probe.adapters.shared.user_objects import attribute

_TOPOLOGY = "paddle.distributed.fleet.base.topology"
_OF_FLEET = {
    "tp": "get_model_parallel_group",
    "sharding": "get_sharding_parallel_group",
    "cp": "get_sep_parallel_group",
    "dp": "get_data_parallel_group",
    "pp": "get_pipe_parallel_group",
    "ep": "get_expert_parallel_group",
}


def parallel(models: Sequence[tuple[str, Any]]) -> dict[str, object]:
    """Return how ranks divide models: see ``parallel`` in docs/reference/file-format.md."""
    modules = [
        (joined(prefix, name), layer)
        for prefix, model in models
        for name, layer in model.named_sublayers(include_self=True)
    ]
    parameters = [(joined(prefix, name), each) for prefix, model in models for name, each in model.named_parameters()]
    return {
        "groups": _groups([layer for _, layer in modules]),
        "modules": of_modules(modules),
        "parameters": by_facts((name, _of_parameter(each)) for name, each in parameters),
    }


def _of_parameter(parameter: Any) -> dict[str, object]:
    return of_parameter(parameter) if attribute(parameter, "is_distributed") else {}


def _groups(layers: Sequence[Any]) -> dict[str, list[int]]:
    topology = attribute(sys.modules.get(_TOPOLOGY), "_HYBRID_PARALLEL_GROUP")
    if topology is not None:
        makers = {name: getattr(topology, maker) for name, maker in _OF_FLEET.items() if hasattr(topology, maker)}
        return groups_of(makers, lambda group: group.ranks)
    for layer in layers:
        group = vars(layer).get("group") if type(layer).__name__ == "DataParallel" else None
        if attribute(group, "ranks"):
            return groups_of({"dp": lambda group=group: group}, lambda group: group.ranks)
    return {}
