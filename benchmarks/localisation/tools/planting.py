"""How a fault is planted: functions that turn a change of a module, a hyper-parameter or an input into a `Plant`."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.localisation.pairs.pair import Planted
from benchmarks.localisation.tools import surgery
from benchmarks.localisation.tools.run import Run

INIT, FORWARD, LOSS, BACKWARD, GRADIENT, UPDATE = (
    ("init",), ("forward",), ("loss",), ("backward",), ("gradient",), ("update",),
)  # fmt: skip
CONSTANT = ("forward", "init")
"""a buffer that is made with the model and used in the forward pass"""
BUFFER = ("init", "forward")
"""a buffer of the model"""
STATISTICS = ("forward", "update")
"""a norm's running statistics"""
CLIPPING = ("update", "gradient")
"""between backward and the optimizer"""

Plant = Callable[[Run, Planted], None]


@dataclass(frozen=True)
class Fault:
    """One kind of mistake."""

    about: str
    phases: tuple[str, ...]
    """where it is seen first; the others are as right, if it lies between two"""
    plant: Plant
    is_whole: bool = False
    """it concerns the model, the loss or the optimizer as a whole, wherever it is planted"""
    is_of_decayed: bool = False
    """it concerns every weight that decays: each of their modules is as right as the whole"""


def size_of(planted: Planted, default: float) -> float:
    return default if planted.size is None else planted.size


def at(change: Callable[[nn.Module, float], Any], default: float = 0.0) -> Plant:
    """Return a plant that changes the module at the planted path."""

    def plant(run: Run, planted: Planted) -> None:
        change(run.model.get_submodule(planted.path), size_of(planted, default))

    return plant


def knob(default: float = 0.0, **names: Callable[[float], Any]) -> Plant:
    """Return a plant that sets attributes of the run."""

    def plant(run: Run, planted: Planted) -> None:
        for name, value in names.items():
            setattr(run, name, value(size_of(planted, default)))

    return plant


def hyper(default: float, **names: Callable[[Any, float], Any]) -> Plant:
    """Return a plant that changes hyper-parameters: of all groups, or of the parameters that the planted glob names."""

    def plant(run: Run, planted: Planted) -> None:
        size = size_of(planted, default)
        if not planted.path:
            for group in run.groups:
                group.update({name: value(group[name], size) for name, value in names.items()})
        else:
            first = run.groups[0]
            run.regroup(planted.path, **{name: value(first[name], size) for name, value in names.items()})

    return plant


def given(change: Callable[[Tensor, float], Tensor], default: float = 0.0) -> Plant:
    """Return a plant that changes the input of the planted name."""

    def plant(run: Run, planted: Planted) -> None:
        size = size_of(planted, default)
        run.given.append(lambda given: {**given, planted.path: change(given[planted.path], size)})

    return plant


def attribute(name: str, value: Callable[[Any, float], Any]) -> Callable[[nn.Module, float], None]:
    """Return a function that changes an attribute of a module."""
    return lambda module, size: setattr(module, name, value(getattr(module, name), size))


def config(name: str, value: Callable[[Any, float], Any]) -> Callable[[nn.Module, float], None]:
    """Return a function that changes an entry of one module's configuration, and of no other's."""

    def change(module: nn.Module, size: float) -> None:
        module.config = copy.copy(module.config)
        setattr(module.config, name, value(getattr(module.config, name), size))

    return change


def function(wrong: Callable[[Tensor], Tensor]) -> Callable[[nn.Module, float], None]:
    """Return a function that replaces a module's forward by a function of its input."""
    return lambda module, size: surgery.around(module, lambda forward, x: wrong(x))


def called_function(name: str, wrong: Callable[..., Tensor]) -> Plant:
    """Return a plant that replaces a function of `torch.nn.functional` while one module's own code runs."""
    return at(lambda module, size: surgery.with_global(module, name, wrong, F))


def before_update(change: Callable[[Run, Planted], Any]) -> Plant:
    """Return a plant that changes the gradients between backward and the optimizer."""
    return lambda run, planted: run.before_update.append(lambda: change(run, planted))


@torch.no_grad()
def change_weight(module: nn.Module, change: Callable[[Tensor], Tensor]) -> None:
    """Change a module's weight in place, or the first of its own parameters if none has that name."""
    parameter = getattr(module, "weight", None)
    parameter = next(module.parameters(recurse=False)) if parameter is None else parameter
    parameter.copy_(change(parameter.clone()))
