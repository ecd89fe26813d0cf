"""The state of a model, whatever its framework: two states are equal if nothing shows that probe was there."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import probe

Named = Iterable[tuple[str, Any]]
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


@dataclass(frozen=True, eq=False)
class Itself:
    """An object, equal to itself alone."""

    it: object

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Itself) and self.it is other.it

    def __repr__(self) -> str:
        return f"<{type(self.it).__name__} at {id(self.it):x}>"


@dataclass(frozen=True)
class Framework:
    """Where a framework has what a state consists of."""

    modules: Callable[[Any], Named]
    tensors: Callable[[Any], Named]
    """parameters and buffers"""
    facts_of: Callable[[Any], dict[str, object]]
    """of a parameter or buffer: its bits, its gradient, whether it learns, its hooks"""
    surroundings: Callable[[], dict[str, object]]
    """random numbers, autocast, hooks of the process"""


def seen(value: object) -> object:
    """Return what tells an attribute of a module from another one: of containers, hooks among them, also what they hold."""
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, Mapping):
        return Itself(value), [(key, _itself(each)) for key, each in value.items()]
    if isinstance(value, (list, set)):
        return Itself(value), list(map(_itself, value))
    return Itself(value)


def differences(a: Any, b: Any, told: Callable[[Any], Any], where: str = "") -> Iterator[str]:
    """Yield the places at which two results are not bitwise the same; ``told`` makes of a tensor what is compared."""
    a, b = told(a), told(b)
    if isinstance(a, dict) and isinstance(b, dict) and list(a) == list(b):
        for key in a:
            yield from differences(a[key], b[key], told, f"{where}.{key}")
    elif isinstance(a, list | tuple) and isinstance(b, list | tuple) and len(a) == len(b):
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            yield from differences(x, y, told, f"{where}[{i}]")
    elif type(a) is not type(b) or a != b:
        yield f"{where}: {str(a)[:80]} and {str(b)[:80]}"


def failing(recording: type, adapter: type, verb: str, monkeypatch: pytest.MonkeyPatch) -> tuple[type, list[int]]:
    """Return a recording one verb of whose adapter raises as soon as it has begun, and where its calls are counted."""
    calls: list[int] = []

    def fail(*args: Any, **kwargs: Any) -> None:
        calls.append(1)
        raise RuntimeError("planted")

    def start(self: Any, *models: Any) -> None:
        recording.start(self, *models)
        monkeypatch.setattr(adapter, verb, fail)

    return type("Failing", (recording,), {"least": -1, "start": start}), calls


def net_of(base: type, part: type, linear: type) -> type:
    """Return the class of a model of two parts and a head, which may raise behind them."""

    def begin(self: Any, is_raising: bool = False) -> None:
        base.__init__(self)
        self.first, self.second, self.head = part(), part(), linear(6, 3)
        self.is_raising = is_raising

    def run(self: Any, x: Any) -> Any:
        x = self.head(self.second(self.first(x)))
        if self.is_raising:
            raise ValueError("behind all others")
        return x

    return type("Net", (base,), {"__init__": begin, "forward": run, "construct": run})


def unchanged(*given: Any) -> None:
    """Be a hook that changes nothing."""


def _itself(value: object) -> object:
    return repr(value) if isinstance(value, _PLAIN) else Itself(value)


def state(framework: Framework, model: Any) -> dict[str, object]:
    """Return all that probe must leave as it is: tensors, what modules hold (modes, hooks), and what is around them."""
    found: dict[str, object] = {"random": random.getstate(), "numpy": repr(np.random.get_state(legacy=False))}
    for path, module in framework.modules(model):
        found[f"{path}: names"] = list(vars(module))
        found |= {f"{path}: {name}": seen(value) for name, value in vars(module).items()}
    for name, tensor in framework.tensors(model):
        found[name] = Itself(tensor)
        found |= {f"{name}: {what}": each for what, each in framework.facts_of(tensor).items()}
    return found | framework.surroundings()


def assert_same(before: dict[str, object], after: dict[str, object]) -> None:
    """Expect two equal states."""
    changed = [
        name for name in before | after if name not in before or name not in after or before[name] != after[name]
    ]
    assert not changed, f"{len(changed)} differences: {changed[:12]}"


def check_replay(framework: Framework, model: Any, recording: Path, **options: Any) -> None:
    """Replay, and expect that the model is as it was."""
    before = state(framework, model)
    answer = probe.replay(model, recording, **options)
    assert_same(before, state(framework, model))
    assert answer.replayed is not None and answer.replayed.modules, "nothing ran, so nothing could be changed"


def check_inject(
    framework: Framework, model: Any, recording: Path, begin: Callable[[], None], run: Callable[[], None]
) -> None:
    """Run a step with the model's own tensors injected into it, and expect what the same step leaves without that.

    Parameters
    ----------
    recording
        of the same step of the same model
    begin
        puts the model into the state that the step begins with
    run
        makes the step
    """
    begin()
    run()
    plain = state(framework, model)
    begin()
    with probe.inject(model, recording, at="*", gradients_at="*") as injected:
        run()
    assert_same(plain, state(framework, model))
    assert any(injected.outputs.values()) and any(injected.gradients.values())


def check_left_inject(framework: Framework, model: Any, recording: Path) -> None:
    """Enter the block and leave it, by an exception too, and expect that the model is as it was."""
    before = state(framework, model)
    with pytest.warns(probe.errors.ProbeWarning, match="replaced nothing"), probe.inject(model, recording, at="*"):
        pass
    assert_same(before, state(framework, model))
    with pytest.warns(probe.errors.ProbeWarning), pytest.raises(ZeroDivisionError):  # noqa: SIM117  one statement a line
        with probe.inject(model, recording, at="*", gradients_at="*"):
            raise ZeroDivisionError
    assert_same(before, state(framework, model))
