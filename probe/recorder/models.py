"""The modules and parameters of models, as the file lists them."""

from __future__ import annotations

import inspect
import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from probe.adapters.base import NamedModule
from probe.recorder.contents import joined
from probe.recorder.run import Run
from probe.records import ModuleInfo, ParameterInfo


@dataclass(frozen=True, slots=True)
class Hookable:
    """A module that hooks can be set on."""

    index: int
    module: weakref.ref[Any]
    is_leaf: bool


def add_models(run: Run, models: Sequence[tuple[str, Any]]) -> list[Hookable]:
    """Enter models, by their prefixes, and all that they hold into a run and its file."""
    if len(models) > 1 or models[0][0]:
        run.modules.append(ModuleInfo("", "list", -1))
    hookable = []
    for prefix, model in models:
        first = len(run.modules)
        run.roots.add(first)
        modules = list(run.adapter.modules(model))
        index_of = {module.path: first + i for i, module in enumerate(modules)}
        n_params = _add_parameters(run, prefix, model, index_of)
        for named in modules:
            run.modules.append(_module_info(named, prefix, index_of, n_params))
            hookable.append(Hookable(index_of[named.path], weakref.ref(named.module), named.is_leaf))
        for text in run.adapter.cautions(model):
            run.note(text, first)
    run.writer.add_modules(run.modules)
    run.writer.add_parameters(run.parameters)
    run.choose()
    return hookable


def _add_parameters(run: Run, prefix: str, model: Any, index_of: dict[str, int]) -> dict[str, int]:
    """Append a model's parameters; return the number of elements by owner's path."""
    elements: dict[str, int] = {}
    for named in run.adapter.parameters(model):
        owner, _, slot = named.names[0].rpartition(".")
        facts = run.adapter.facts(named.tensor)
        if not named.is_buffer:
            elements[owner] = elements.get(owner, 0) + math.prod(facts.shape)
        run.parameter_index[id(named.tensor)] = len(run.parameters)
        run.tensors.append(named)
        run.parameters.append(
            ParameterInfo(tuple(joined(prefix, name) for name in named.names), index_of.get(owner, 0), slot,
                          facts.shape, facts.dtype, facts.requires_grad, named.is_buffer, named.axes, named.canonical,
                          named.is_persistent)
        )  # fmt: skip
    return elements


def _module_info(named: NamedModule, prefix: str, index_of: dict[str, int], n_params: dict[str, int]) -> ModuleInfo:
    path = named.path
    parent = _parent_of(path, index_of) if path else (0 if prefix else -1)
    inside = f"{path}." if path else ""
    total = sum(n for owner, n in n_params.items() if owner == path or owner.startswith(inside))
    kind = type(named.module)
    try:
        file = inspect.getsourcefile(kind) or ""
        line = inspect.unwrap(kind.forward).__code__.co_firstlineno if file else 0
    except (OSError, TypeError, AttributeError):
        file, line = "", 0
    return ModuleInfo(joined(prefix, path), kind.__name__, parent, file, line, total)


def _parent_of(path: str, index_of: dict[str, int]) -> int:
    """Return the index of the module around a path; a module's own name may hold dots."""
    outer = path.rpartition(".")[0]
    while outer not in index_of:
        outer = outer.rpartition(".")[0]
    return index_of[outer]
