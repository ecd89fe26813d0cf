"""Trainings that fail, and Ctrl-C at every place inside probe where Python can deliver it."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Protocol

import probe
from probe.errors import ProbeWarning
from probe.store.writing.writer import _LIVE
from probe.testing import Recording
from tests.limits import HANGS

_PROBE = str(Path(probe.__file__).parent)
STEPS = 3


def finished() -> None:
    """Wait until every file is as it will be."""
    end = time.monotonic() + HANGS
    for writer in [*_LIVE]:
        while not writer._ended:
            assert time.monotonic() < end, "it waits for something"
            time.sleep(0.001)


class Planted(Exception):
    """What goes wrong in the user's program."""


class Failing:
    """A training one part of which fails in the second of four steps."""

    where: str
    failing = False
    model: Any

    def fail(self, where: str) -> None:
        if self.failing and self.where == where:
            raise Planted(where)

    def train(self, path: Path | None, caught: bool) -> list[bytes]:
        around = probe.capture(self.model, path, task="tensor") if path else contextlib.nullcontext()
        with around:
            for number in range(4):
                with contextlib.suppress(Planted) if caught else contextlib.nullcontext():
                    self.step(number)
                if path:
                    probe.step(loss=number)
        return self.state()


class Interrupt:
    """Raises KeyboardInterrupt, by the signal itself, at the n-th place inside probe, counted from 1.

    Signals are handled when a function begins and when a built-in one has returned. Places are counted between the
    beginning of a function of probe that the program calls, and its end, whatever it calls in turn.
    """

    def __init__(self, at: int = sys.maxsize) -> None:
        self.at = at
        self.count = 0
        self._inside: FrameType | None = None

    def __enter__(self) -> Interrupt:
        self._handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
        self._hook = self._look  # kept: CPython 3.11 lets go of it in setprofile(None), and goes on to use it
        sys.setprofile(self._hook)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        sys.setprofile(None)
        signal.signal(signal.SIGINT, self._handler)

    def _look(self, frame: FrameType, event: str, argument: object) -> None:
        if self._inside is None and event == "call":
            name = frame.f_code.co_filename
            if name.startswith(_PROBE):
                self._inside = frame
        if self._inside is None:
            return
        if event == "return" and frame is self._inside:
            self._inside = None
        elif event in ("call", "c_return"):
            self.count += 1
            if self.count == self.at:
                sys.setprofile(None)
                signal.raise_signal(signal.SIGINT)


def retried(function: Callable[[], object]) -> None:
    """Do something again if it is interrupted, as the user of a notebook does."""
    try:
        function()
    except KeyboardInterrupt:
        function()


@dataclass
class Outcome:
    """What a training left behind."""

    weights: list[bytes]
    hooks: int
    said: list[str]
    places: int
    """inside probe where it could have been interrupted"""


class Training(Protocol):
    """A small training of `STEPS` steps."""

    model: Any
    done: int
    """updates so far"""

    def attempt(self, step: int) -> None:
        """Make one step from its beginning."""

    def weights(self) -> list[bytes]:
        """Return the parameters' bytes."""

    def hooks(self) -> int:
        """Return how many hooks there are on all that it consists of."""


def train(make: Callable[[], Training], path: Path | None, interrupt: Interrupt, part: str = "") -> Outcome:
    """Train 3 steps, each begun again when it is interrupted; only the given part of probe's work is."""
    training = make()

    def recorded(name: str, function: Callable[[], object]) -> None:
        if name != part:
            function()
        else:
            with interrupt:
                function()

    def attempt(step: int) -> None:
        if training.done == step:
            training.attempt(step)

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        if path:
            retried(lambda: recorded("start", lambda: probe.start(training.model, path, task="tensor")))
        for step in range(STEPS):
            retried(lambda step=step: recorded("hooks", lambda: attempt(step)))
            if path:
                with contextlib.suppress(KeyboardInterrupt):  # it may have done its work: the next step begins
                    recorded("step", lambda step=step: probe.step(loss=step))
        if path:
            retried(lambda: recorded("stop", probe.stop))
    finished()
    texts = [str(one.message) for one in said if issubclass(one.category, ProbeWarning)]
    return Outcome(training.weights(), training.hooks(), texts, interrupt.count)


def keys(run: Recording, step: int) -> Counter[tuple[str, str, str, str, int]]:
    """What a step holds; a step that was begun again has further micro-batches."""
    return Counter((s.phase, s.role, s.path, s.slot) for s in run.seen if s.step == step)


PARTS = {"start": 60, "hooks": 24, "step": 24, "stop": 24}
"""parts of probe's work, and at how many places each is interrupted"""
ENDS = {
    "step": "recording to {path} was interrupted in probe.step() (KeyboardInterrupt()); the recording has stopped, your "
    "training goes on, and the complete steps in the file can be read",
    "torn": "writing {path} failed (interrupted while rows were handed over); the recording has stopped, your training "
    "goes on, and the complete steps in the file can be read",
    "closed torn": "writing {path} failed (interrupted while rows were handed over); the recording has stopped, "
    "complete steps in it can be read",
    "stop": "the last step is not in {path}: probe.stop() was interrupted (KeyboardInterrupt())",
    "late": "{path} is still being written: it will be complete when the process has ended",
    "update": "an optimizer's step was not seen to its end: the update of {parameters} is not recorded",
    "hook": "KeyboardInterrupt interrupted probe: what it was recording then is missing",
}
"""what may be said"""


def interrupt_everywhere(make: Callable[[], Training], part: str, folder: Path) -> None:
    """Interrupt one part of probe's work at many places; require the plain training's result, and whole steps."""
    train(make, folder / "first.h5", Interrupt())  # what a process looks up once has no places in the others
    plain = train(make, None, Interrupt())
    whole = train(make, folder / "whole.h5", Interrupt(), part)
    assert (whole.weights, whole.hooks, whole.said) == (plain.weights, 0, []) and whole.places > PARTS[part]
    reference = Recording(folder / "whole.h5")
    seen = set()
    for number in range(PARTS[part]):
        at = 1 + number * whole.places // PARTS[part]
        path = folder / f"{at}.h5"
        found = train(make, path, Interrupt(at), part)
        assert found.weights == plain.weights and found.hooks == 0, at
        parameters = f"0.weight and {len(plain.weights) - 1} more"
        said = {text.format(path=path, parameters=parameters): name for name, text in ENDS.items()}
        names = [said[text.removeprefix("probe: ")] for text in found.said]
        assert len(names) <= 1, (at, names)
        seen.update(names)
        whole_steps(path, reference, names, {text for text in said if said[text] in ("hook", "update")}, at, part)
    assert seen <= {"start": set(), "hooks": {"hook", "update", "torn"},
                    "step": {"hook", "step", "torn"},  # the look at the loss, before the step ends, is guarded as a hook
                    "stop": {"stop", "late", "closed torn"}}[part]  # fmt: skip
    assert seen or part == "start"


def whole_steps(path: Path, reference: Recording, said: list[str], allowed: set[str], at: int, part: str) -> None:
    """Require every step in the file to be as it is in an uninterrupted run, but for what it says is missing."""
    run = Recording(path)
    assert run.steps["step"].tolist() == [*range(len(run.steps))], at
    begun_late = part == "step" and len(run.steps) == STEPS - 1  # interrupted before it had done anything
    assert len(run.steps) == STEPS or begun_late or said not in ([], ["hook"], ["update"]), at
    for step in range(len(run.steps)):
        mine, expected = keys(run, step), keys(reference, step)
        micros = [len({s.micro for s in recorded.seen if s.step == step}) for recorded in (run, reference)]
        if micros[0] > micros[1]:  # begun again behind an update: its second forward finds the weights written to
            mine = Counter({key: count for key, count in mine.items() if key[:2] != ("forward", "param")})
        noted = [text for at_step, _, text in run.notes if at_step == step]
        assert mine.keys() <= expected.keys(), at
        assert noted[0] in allowed if noted else mine >= expected, at
    made = {(r.phase, r.role, r.path, r.slot, r.hash, r.values is None) for r in reference.seen}
    for s in run.seen:
        is_written = (s.phase, s.role) == ("forward", "param")  # as the first forward's update left them
        assert is_written or (s.phase, s.role, s.path, s.slot, s.hash, s.values is None) in made, at
