"""The modules and parameters of models, as the file lists them."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import math
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from probe.adapters.base import NamedModule
from probe.recorder.contents import joined
from probe.recorder.run import Run
from probe.records import ModuleInfo, ParameterInfo
from probe.store.tree import storable_text


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
    hookable: list[Hookable] = []
    taken = {storable_text(module.path) for module in run.modules}
    for prefix, model in models:
        first = len(run.modules)
        run.roots.add(first)
        modules = list(run.adapter.modules(model))
        index_of: dict[str, int] = {}
        for index, named in enumerate(modules, first):
            index_of.setdefault(named.path, index)  # the first, as parents come before their children
        n_params = _add_parameters(run, prefix, model, index_of)
        for named in modules:
            info = _named_apart(run, _module_info(named, prefix, index_of, n_params, len(run.modules) == first), taken)
            hookable.append(Hookable(len(run.modules), weakref.ref(named.module), named.is_leaf))
            run.modules.append(info)
        for text in run.adapter.cautions(model):
            run.note(text, first)
    if run.config.level == "module":  # otherwise a step's end does, by when it is known where they are called
        run.writer.add_modules(run.modules)
    run.writer.add_parameters(run.parameters)
    run.choose()
    return hookable


def _add_parameters(run: Run, prefix: str, model: Any, index_of: dict[str, int]) -> dict[str, int]:
    """Append a model's parameters; return how many elements there are at a path and below it."""
    elements: Counter[str] = Counter()
    for named in run.adapter.parameters(model):
        owner, _, slot = named.names[0].rpartition(".")
        facts = run.adapter.facts(named.tensor)
        if not named.is_buffer:
            for path in _around(owner):
                elements[path] += math.prod(facts.shape)
        run.parameter_index[id(named.tensor)] = len(run.parameters)
        axes = named.axes if len(named.axes) == len(facts.shape) else ()  # spectral_norm's weight_v is a vector
        run.tensors.append(named)
        run.parameters.append(
            ParameterInfo(tuple(joined(prefix, name) for name in named.names), index_of.get(owner, 0), slot,
                          facts.shape, facts.dtype, facts.requires_grad, named.is_buffer, axes, named.canonical,
                          named.is_persistent)
        )  # fmt: skip
    return elements


def _named_apart(run: Run, info: ModuleInfo, taken: set[str]) -> ModuleInfo:
    """Give a module another path where one before it has the same: names may be empty, hold dots, or be no text."""
    path = info.path
    for number in itertools.count(2):
        if storable_text(path) not in taken:
            break
        path = f"{info.path}~{number}"
    taken.add(storable_text(path))
    if path != info.path:
        run.note(f"two modules have the path {info.path!r}: the later one is recorded as {path!r}", len(run.modules))
    return dataclasses.replace(info, path=path)


def _module_info(
    named: NamedModule, prefix: str, index_of: dict[str, int], n_params: dict[str, int], is_root: bool
) -> ModuleInfo:
    path = named.path
    parent = _parent_of(path, index_of) if not is_root else (0 if prefix else -1)
    kind = type(named.module)
    try:
        code = inspect.unwrap(kind.forward).__code__  # that of another file where somebody replaced it
        file = inspect.getsourcefile(code if "forward" in vars(kind) else kind) or ""
        line = code.co_firstlineno if file == code.co_filename else 0
    except (OSError, TypeError, AttributeError):
        file, line = "", 0
    return ModuleInfo(joined(prefix, path), kind.__name__, parent, file, line, n_params.get(path, 0))


def _around(path: str) -> Iterator[str]:
    """Yield a path and all around it, the root's last."""
    while path:
        yield path
        path = path.rpartition(".")[0]
    yield ""


def _parent_of(path: str, index_of: dict[str, int]) -> int:
    """Return the index of the module around a path; a module's own name may hold dots."""
    outer = path.rpartition(".")[0]
    while outer not in index_of:
        outer = outer.rpartition(".")[0]
    return index_of[outer]
