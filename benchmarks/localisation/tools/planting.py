"""How faults are planted: what turns a change of a module, an attribute or an input into a `Plant`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.localisation.pairs.pair import Planted
from benchmarks.localisation.tools import surgery
from benchmarks.localisation.tools.training import Run

Plant = Callable[[Run, Planted], None]


@dataclass(frozen=True)
class Fault:
    """One kind of mistake."""

    about: str
    phases: tuple[str, ...]
    """where it is seen first; others are as right, where it lies between two"""
    plant: Plant
    is_whole: bool = False
    """it concerns the model, the loss or the optimizer as a whole, whatever place it is planted in"""
    is_of_decayed: bool = False
    """it concerns every weight that decays: each of their modules is as right as the whole"""


def at(change: Callable[[nn.Module, float], Any], default: float = 0.0) -> Plant:
    """Return what changes the module at the planted path."""

    def plant(run: Run, planted: Planted) -> None:
        change(run.model.get_submodule(planted.path), default if planted.size is None else planted.size)

    return plant


def knob(default: float = 0.0, **names: Callable[[float], Any]) -> Plant:
    """Return what sets attributes of the run."""

    def plant(run: Run, planted: Planted) -> None:
        for name, value in names.items():
            setattr(run, name, value(default if planted.size is None else planted.size))

    return plant


def hyper(default: float, **names: Callable[[Any, float], Any]) -> Plant:
    """Return what changes hyper-parameters, of all groups or of the parameters that the planted glob names."""

    def plant(run: Run, planted: Planted) -> None:
        size = default if planted.size is None else planted.size
        if not planted.path:
            for group in run.groups:
                group.update({name: value(group[name], size) for name, value in names.items()})
        else:
            first = run.groups[0]
            run.regroup(planted.path, **{name: value(first[name], size) for name, value in names.items()})

    return plant


def given(change: Callable[[Tensor, float], Tensor], default: float = 0.0) -> Plant:
    """Return what changes the input that the planted path names."""

    def plant(run: Run, planted: Planted) -> None:
        size = default if planted.size is None else planted.size
        run.given.append(lambda given: {**given, planted.path: change(given[planted.path], size)})

    return plant


def attribute(name: str, value: Callable[[Any, float], Any]) -> Callable[[nn.Module, float], None]:
    """Return what changes an attribute of a module."""
    return lambda module, size: setattr(module, name, value(getattr(module, name), size))


def function(wrong: Callable[[Tensor], Tensor]) -> Callable[[nn.Module, float], None]:
    """Return what puts a function of the input in the place of a module's forward."""
    return lambda module, size: surgery.around(module, lambda forward, x: wrong(x))


def before_update(change: Callable[[Run, Planted], Any]) -> Plant:
    """Return what changes the gradients between backward and the optimizer."""
    return lambda run, planted: run.before_update.append(lambda: change(run, planted))


@torch.no_grad()
def change_weight(module: nn.Module, change: Callable[[Tensor], Tensor]) -> None:
    """Change a module's weight in place, or the first of its own parameters where none is called so."""
    parameter = getattr(module, "weight", None)
    parameter = next(module.parameters(recurse=False)) if parameter is None else parameter
    parameter.copy_(change(parameter.clone()))
