"""Which of a program's modules are those that it trains: found among the objects of the process by what optimizers hold."""

from __future__ import annotations

import gc
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from probe.adapters.base import Adapter
from probe.adapters.shared.user_objects import attribute

_DEEP = 8
"""wrappers one around the other"""


@dataclass(frozen=True)
class Choice:
    """What is recorded."""

    models: list[Any]
    """those that hold most of what is trained first"""
    optimizers: list[str]
    """class names of the optimizers that train them"""
    functions: list[Any]
    """modules without parameters outside of the models, loss functions among them"""
    elements: int
    """of the models' parameters"""


@dataclass(frozen=True)
class Live:
    """The modules and optimizers of the process, and what the latter hold."""

    adapter: Adapter
    modules: list[Any]
    optimizers: list[Any]
    held: dict[int, int]
    """elements of each parameter that an optimizer trains, by its id"""

    @classmethod
    def of(cls, adapter: Adapter) -> Live:
        """Look through all objects; their types are asked, never the objects."""
        base, kinds = adapter.classes()
        is_module: dict[type, bool] = {}
        is_optimizer: dict[type, bool] = {}
        modules, optimizers = [], []
        for each in gc.get_objects():
            kind = type(each)
            if kind not in is_optimizer:
                is_optimizer[kind] = issubclass(kind, kinds)
                is_module[kind] = issubclass(kind, base) and not is_optimizer[kind]  # MindSpore's are modules too
            if is_optimizer[kind]:
                optimizers.append(each)
            elif is_module[kind]:
                modules.append(each)
        held = {}
        for optimizer in optimizers:
            for parameter in _parameters_of(adapter, optimizer):
                held[id(parameter)] = math.prod(adapter.facts(parameter).shape)
        return cls(adapter, modules, optimizers, held)

    def trained_in(self, module: Any) -> set[int]:
        """Return the ids of the parameters of a module that an optimizer trains."""
        return {id(tensor) for tensor in self.members(module)[1]} & self.held.keys()

    def weight(self, ids: Iterable[int]) -> int:
        """Return how many elements parameters have."""
        return sum(self.held[each] for each in ids)

    def members(self, module: Any) -> tuple[list[Any], list[Any]]:
        """Return all modules and tensors of a module; nothing of one that is not made yet."""
        try:
            return self.adapter.members(module)
        except Exception:  # noqa: BLE001  a module whose constructor has not run, or never will
            return [], []

    def tree(self, module: Any) -> set[int]:
        """Return the ids of a module and of all inside it."""
        return {id(each) for each in self.members(module)[0]}

    def outermost(self) -> list[Any]:
        """Return the modules that are inside no other one."""
        inside: set[int] = set()
        for module in self.modules:
            if id(module) not in inside:
                inside |= self.tree(module) - {id(module)}
        return [module for module in self.modules if id(module) not in inside]


def trained_by(adapter: Adapter, called: Any) -> Choice | None:
    """Return what is trained if a module that is called is part of it, None otherwise.

    Parameters
    ----------
    adapter
        of the framework
    called
        the module

    Returns
    -------
    Choice or None
        the module itself, if it holds all that optimizers train, without what only spreads it over devices. Else the
        module around it that holds more (a LightningModule), or it and others that are trained beside it (a GAN)
    """
    live = Live.of(adapter)
    mine = live.trained_in(called)
    if not mine:
        return None
    if live.held.keys() - mine:
        del live
        gc.collect()  # what an earlier training left may be among it
        live = Live.of(adapter)
    models = _largest(live, called, mine)
    return _choice(live, models)


def named(adapter: Adapter, names: Sequence[str], called: Any) -> Choice | None:
    """Return what has the names, if all are there and the module that is called is part of it or around it; None otherwise."""
    live = Live.of(adapter)
    models: list[Any] = []
    for name in names:
        found = _found(live, name)
        if not found:
            return None
        models += [each for each in found if not any(each is other for other in models)]
    around = live.tree(called)
    if not any(id(called) in live.tree(model) or id(model) in around for model in models):
        return None
    return _choice(live, models)


def is_trainable(adapter: Adapter, module: Any) -> bool:
    """Return True if a module has a parameter that may be trained."""
    try:
        return any(adapter.is_tensor(each) and adapter.requires_grad(each) for each in adapter.members(module)[1])
    except Exception:  # noqa: BLE001  a module whose constructor has not run
        return False


def _largest(live: Live, called: Any, mine: set[int]) -> list[Any]:
    rest = live.held.keys() - mine
    if not rest:
        return [_inner(live, called)]
    roots = [(root, live.trained_in(root)) for root in live.outermost()]
    around = [(root, ids) for root, ids in roots if ids - mine and id(called) in live.tree(root)]
    first, ids = max(around, key=lambda each: live.weight(each[1]), default=(called, mine))
    models = [(_inner(live, first), ids)]
    for root, others in sorted(roots, key=lambda each: (-live.weight(each[1]), type(each[0]).__name__)):
        if others and not any(others & known for _, known in models):
            models.append((_inner(live, root), others))
    return [model for model, _ in sorted(models, key=lambda each: -live.weight(each[1]))]


def _inner(live: Live, module: Any) -> Any:
    """Return the model inside wrappers, and inside modules that hold their optimizer."""
    for _ in range(_DEEP):
        inner = live.adapter.inside(module)
        if inner is None:
            return module
        module = inner
    return module


def _found(live: Live, name: str) -> list[Any]:
    """Return the modules that a name stands for; those of a class that are inside no other of it."""
    module, _, path = name.partition(":")
    value: Any = sys.modules.get(module)
    for part in path.split("."):
        value = attribute(value, part)
    base, _ = live.adapter.classes()
    if isinstance(value, type) and issubclass(value, base):
        all_of_it = [each for each in live.modules if isinstance(each, value)]
        inside = set().union(*(live.tree(each) - {id(each)} for each in all_of_it))
        return [each for each in all_of_it if id(each) not in inside]
    several = value if isinstance(value, (list, tuple)) else [value]
    return list(several) if several and all(isinstance(each, base) for each in several) else []


def _choice(live: Live, models: list[Any]) -> Choice:
    parameters = {id(tensor): tensor for model in models for tensor in live.members(model)[1]}
    trainable = [each for each in parameters.values() if live.adapter.is_tensor(each) and _is_parameter(live, each)]
    elements = sum(math.prod(live.adapter.facts(each).shape) for each in trainable)
    return Choice(models, _trainers(live, parameters.keys()), _functions(live, models), elements)


def _is_parameter(live: Live, tensor: Any) -> bool:
    return id(tensor) in live.held or live.adapter.requires_grad(tensor)


def _trainers(live: Live, ids: Iterable[int]) -> list[str]:
    """Return the class names of the optimizers of parameters, without those that only wrap another one."""
    wanted = set(ids)
    mine = [each for each in live.optimizers if wanted & {id(p) for p in _parameters_of(live.adapter, each)}]
    inner = [each for each in mine if not any(value is other for value in vars(each).values() for other in mine)]
    return list(dict.fromkeys(type(each).__name__ for each in inner))


def _parameters_of(adapter: Adapter, optimizer: Any) -> list[Any]:
    try:
        found = [parameter for group in adapter.groups_of(optimizer) for parameter in group.parameters]
        return [each for each in found if adapter.is_tensor(each) and adapter.requires_grad(each)]
    except Exception:  # noqa: BLE001  an optimizer whose constructor has not run, or that keeps its parameters elsewhere
        return []


def _functions(live: Live, models: list[Any]) -> list[Any]:
    """Return the modules without parameters that are part of no model; loss functions are among them."""
    own = set().union(*(live.tree(model) for model in models))
    elsewhere: set[int] = set()
    bare = []
    for module in live.modules:
        if id(module) in own:
            continue
        tree, tensors = live.members(module)
        if not tensors:
            bare.append(module)
        elif not own & {id(each) for each in tree}:
            elsewhere |= {id(each) for each in tree}
    return [each for each in bare if id(each) not in elsewhere]
