"""The state of a model, whatever its framework: two states are equal if nothing shows that probe was there."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
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
