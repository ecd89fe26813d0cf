"""The trainings of the tests (``zoo.py`` of each framework) as situations."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import probe

Differences = Callable[[Path, str], list[str]]
_TESTS = Path(__file__).parents[2] / "tests"
_MODULES = {"torch": "zoo", "paddle": "zoo_paddle", "mindspore": "zoo_mindspore"}

_OPTIMIZERS: dict[str, dict[str, float]] = {
    "Momentum": {"learning_rate": 0.01, "momentum": 0.9}, "Adam": {}, "AdamWeightDecay": {}, "AdaMax": {}, "RMSProp": {},
    "Adagrad": {}, "FTRL": {}, "ASGD": {}, "Rprop": {},
}  # fmt: skip
"""of MindSpore, with their options"""


class Recording:
    """Goes along with a training of a zoo, and records it."""

    def __init__(self, path: Path, task: str) -> None:
        self._path, self._task = path, task

    def start(self, model: Any, optimizer: Any) -> None:
        probe.start(model, self._path, task=self._task, quiet=True)

    def step(self, loss: Any) -> None:
        probe.step(loss=loss)

    def stop(self) -> None:
        probe.stop()


def cases(framework: str) -> dict[str, Differences]:
    """Return what finds the differences that probe makes in the trainings of a framework's tests."""
    sys.path.insert(0, str(_TESTS / framework))
    zoo = importlib.import_module(_MODULES[framework])
    named = {f"training: {name.replace('_', ' ')}": case for name, case in zoo.CASES.items()}
    if framework == "mindspore":
        named |= {f"optimizer: {name}": _with_optimizer(zoo.CASES["mlp"], name) for name in _OPTIMIZERS}
    return {name: functools.partial(_differences, zoo, case) for name, case in named.items()}


def _with_optimizer(case: Any, name: str) -> Any:
    from mindspore import nn

    return replace(case, optimizer=functools.partial(getattr(nn, name), **_OPTIMIZERS[name]))


def _differences(zoo: Any, case: Any, path: Path, task: str) -> list[str]:
    try:
        plain, recorded = zoo.train(case), zoo.train(case, Recording(path, task))
    finally:
        probe.stop()
    if hasattr(zoo, "differences"):
        return [str(place) for place in zoo.differences(plain, recorded)]
    one, two = asdict(plain), asdict(recorded)
    return [name for name in one if one[name] != two[name]]
