"""Interrupts anywhere inside probe, signals, processes that end: the training's result, hooks, messages, the file."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import probe
from probe.adapters import numpy_nn as nn
from probe.adapters.numpy_tensor import Tensor, backward_hooks
from probe.errors import ProbeWarning
from probe.records import StepState
from probe.statistics import measure
from probe.testing import Recording, sample
from tests.interrupting import Interrupt, finished

ROOT = Path(__file__).parent.parent
STEPS = 3


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    yield
    probe.stop()


class SGD(nn.SGD):
    """Gradient descent that counts what it has done."""

    done = 0

    def update(self, *args: object) -> None:
        super().update(*args)
        self.done += 1


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


def hooks(model: nn.Module) -> int:
    count = len(nn.step_pre_hooks) + len(nn.step_post_hooks) + len(backward_hooks)
    return count + sum(len(m.pre_hooks) + len(m.post_hooks) for _, m in model.modules())


def train(path: Path | None, interrupt: Interrupt, part: str = "", task: str = "tensor") -> Outcome:
    """Train 3 steps, each begun again when it is interrupted; only the given part of probe's work is."""
    nn.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    optimizer = SGD(model.parameters(), 0.1)

    def attempt(step: int, before: int) -> None:
        if optimizer.done == before:
            optimizer.zero_grad()
            model(Tensor(sample((5, 4), step))).sum().backward()
            optimizer.step()

    def recorded(name: str, function: Callable[[], object]) -> None:
        if name != part:
            function()
        else:
            with interrupt:
                function()

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        if path:
            retried(lambda: recorded("start", lambda: probe.start(model, path, task=task)))
        for step in range(STEPS):
            before = optimizer.done
            retried(lambda step=step, before=before: recorded("hooks", lambda: attempt(step, before)))
            if path:
                try:
                    recorded("step", lambda step=step: probe.step(loss=step))
                except KeyboardInterrupt:
                    pass  # it may have done its work: the next step begins
        if path:
            retried(lambda: recorded("stop", probe.stop))
    finished()
    texts = [str(one.message) for one in said if issubclass(one.category, ProbeWarning)]
    return Outcome([p.data.tobytes() for p in model.parameters()], hooks(model), texts, interrupt.count)


def keys(run: Recording, step: int) -> Counter[tuple[str, str, str, str, int]]:
    """What a step holds; a step that was begun again has further micro-batches."""
    return Counter((s.phase, s.role, s.path, s.slot) for s in run.seen if s.step == step)


PARTS = {"start": 20, "hooks": 24, "step": 24, "stop": 24}
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
    "update": "an optimizer's step was not seen to its end: the update of 0.weight and 3 more is not recorded",
    "hook": "KeyboardInterrupt interrupted probe: what it was recording then is missing",
}
"""what may be said"""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # from within a weak reference
@pytest.mark.parametrize("part", PARTS)
def test_an_interrupt_anywhere_in_probe(part: str, tmp_path: Path) -> None:
    plain = train(None, Interrupt())
    whole = train(tmp_path / "whole.h5", Interrupt(), part)
    assert (whole.weights, whole.hooks, whole.said) == (plain.weights, 0, []) and whole.places > PARTS[part]
    reference = Recording(tmp_path / "whole.h5")
    seen = set()
    for number in range(PARTS[part]):
        at = 1 + number * whole.places // PARTS[part]
        path = tmp_path / f"{at}.h5"
        found = train(path, Interrupt(at), part)
        assert found.weights == plain.weights and found.hooks == 0, at
        said = {text.format(path=path): name for name, text in ENDS.items()}
        names = [said[text.removeprefix("probe: ")] for text in found.said]
        assert len(names) <= 1, at
        seen.update(names)
        whole_steps(path, reference, names, at, part)
    assert seen <= {"start": set(), "hooks": {"hook", "update", "torn"}, "step": {"step", "torn"},
                    "stop": {"stop", "late", "closed torn"}}[part]  # fmt: skip
    assert seen or part == "start"


def whole_steps(path: Path, reference: Recording, said: list[str], at: int, part: str) -> None:
    """Require every step in the file to be as it is in an uninterrupted run, but for what it says is missing."""
    run = Recording(path)
    assert run.steps["step"].tolist() == [*range(len(run.steps))], at
    begun_late = part == "step" and len(run.steps) == STEPS - 1  # interrupted before it had done anything
    assert len(run.steps) == STEPS or begun_late or said not in ([], ["hook"], ["update"]), at
    for step in range(len(run.steps)):
        mine, expected = keys(run, step), keys(reference, step)
        noted = [text for at_step, _, text in run.notes if at_step == step]
        assert mine.keys() <= expected.keys(), at
        assert noted[0] in (ENDS["hook"], ENDS["update"]) if noted else mine >= expected, at
        for s in run.seen:
            same = reference.find(phase=s.phase, role=s.role, path=s.path, slot=s.slot)
            assert s.step != step or (s.hash, s.values is None) in [(r.hash, r.values is None) for r in same], at


def test_a_wait_for_the_disk_can_be_interrupted(tmp_path: Path) -> None:
    """And nothing is lost by it."""
    model = nn.Linear(64, 64)
    probe.start(model, tmp_path / "a.h5", task="tensor")
    writer = probe.session._current.run.writer
    writer._queue.limit = 20_000
    disk_is_slow = threading.Event()
    writer._queue.put(disk_is_slow.wait)
    timer = threading.Timer(0.3, lambda: os.kill(os.getpid(), 2))
    with pytest.warns(ProbeWarning) as caught, pytest.raises(KeyboardInterrupt):
        timer.start()
        for seed in range(100):
            model(Tensor(sample((64, 64), seed)))
    assert [str(one.message) for one in caught] == [f"probe: {ENDS['hook']}"]
    disk_is_slow.set()
    model(Tensor(sample((64, 64), 100)))
    probe.step()
    probe.stop()
    run = Recording(tmp_path / "a.h5")
    assert len(run.steps) == 1 and run.info.closed and run.notes == [(0, -1, ENDS["hook"])]
    for s in run.seen:
        stats = measure(s.values)
        assert s.hash == (stats.hash_hi, stats.hash_lo)
    assert (run.find(role="input")[-1].values == sample((64, 64), 100)).all()


def test_stop_can_be_interrupted_while_it_waits_for_the_disk(tmp_path: Path) -> None:
    model = nn.Linear(4, 4)
    path = tmp_path / "a.h5"
    probe.start(model, path, task="tensor")
    writer = probe.session._current.run.writer
    disk_is_slow = threading.Event()
    writer._queue.put(disk_is_slow.wait)
    model(Tensor(sample((5, 4))))
    timer = threading.Timer(0.2, lambda: os.kill(os.getpid(), 2))
    with pytest.warns(ProbeWarning) as caught, pytest.raises(KeyboardInterrupt):
        timer.start()
        probe.stop()
    assert [str(one.message) for one in caught] == [f"probe: {ENDS['late'].format(path=path)}"]
    assert hooks(model) == 0
    disk_is_slow.set()
    finished()
    assert Recording(path).info.closed and len(Recording(path).steps) == 1


# ---- processes that end --------------------------------------------------------------------------------

PROGRAM = """
import os, signal, sys, threading, time, warnings
import numpy as np
import probe
from probe.adapters import numpy_nn as nn
from probe.adapters.numpy_tensor import Tensor
from probe.testing import sample

class Hooked(nn.Module):
    def forward(self, x):
        inside()
        return x * 2.0

net = nn.Sequential(nn.Linear(3, 2), Hooked())
inside = lambda: None
optimizer = nn.SGD(net.parameters(), 0.1)
def train():
    net(Tensor(sample((4, 3)))).sum().backward()
    optimizer.step()
    optimizer.zero_grad()

def weights():
    return b"".join(p.data.tobytes() for p in net.parameters()).hex()

def slow_disk(seconds):
    writer = probe.session._current.run.writer
    writer._queue.put(lambda: time.sleep(seconds))

if sys.argv[1] == "recorded":
    probe.start(net, "a.h5", task="tensor")
for _ in range(3):
    train()
    if sys.argv[1] == "recorded":
        probe.step(loss=1)
"""


def run(code: str, folder: Path, mode: str = "recorded") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", PROGRAM + code, mode]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False, env=environment)


CLOSED, ABORTED = StepState.CLOSED, StepState.ABORTED
WRITTEN = """
written = threading.Event()
if sys.argv[1] == "recorded":
    probe.session._current.run.writer._queue.put(written.set)
    written.wait()
"""
IN_FORWARD = "inside = lambda: {}\ntrain()"
TERM = "os.kill(os.getpid(), signal.SIGTERM)"


@pytest.mark.parametrize(
    "code, states",
    [
        ("train()", [CLOSED] * 4),
        ("", [CLOSED] * 3),
        ("train(); sys.exit(3)", [CLOSED] * 4),
        ("train(); raise ValueError('planted')", [CLOSED] * 3 + [ABORTED]),
        ("train(); raise KeyboardInterrupt", [CLOSED] * 3 + [ABORTED]),
        (IN_FORWARD.format("sys.exit(3)"), [CLOSED] * 3 + [ABORTED]),
        (IN_FORWARD.format("1 / 0"), [CLOSED] * 3 + [ABORTED]),
        (IN_FORWARD.format("signal.raise_signal(signal.SIGINT)"), [CLOSED] * 3 + [ABORTED]),
        ("if probe.session._current: slow_disk(1)\nfor _ in range(50): train()", [CLOSED] * 4),
        ("if probe.session._current: slow_disk(1)\ntrain(); sys.exit(3)", [CLOSED] * 4),
        (WRITTEN + "train(); os._exit(5)", [CLOSED] * 3),
        (WRITTEN + IN_FORWARD.format("os._exit(5)"), [CLOSED] * 3),
        (WRITTEN + TERM, [CLOSED] * 3),
        (WRITTEN + IN_FORWARD.format(TERM), [CLOSED] * 3),
        ("signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))\n" + TERM, [CLOSED] * 3),
        ("signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))\n" + IN_FORWARD.format(TERM), [CLOSED] * 3 + [ABORTED]),
        ("signal.signal(signal.SIGTERM, lambda *_: probe.stop())\n" + IN_FORWARD.format(TERM), [CLOSED] * 4),
        ("signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + IN_FORWARD.format(TERM), [CLOSED] * 4),
    ],
)  # fmt: skip
def test_however_a_process_ends_it_ends_as_without_probe(code: str, states: list[StepState], tmp_path: Path) -> None:
    code += "\nprint(weights())"
    plain, recorded = run(code, tmp_path, "plain"), run(code, tmp_path)
    assert (recorded.returncode, recorded.stdout) == (plain.returncode, plain.stdout), recorded.stderr
    assert recorded.stderr == plain.stderr, "nothing is said but what Python says"
    found = Recording(tmp_path / "a.h5")
    assert [StepState(state) for state in found.steps["state"]] == states
    for step in range(3):
        assert len(found.find(step=step, phase="update", role="param")) == 2


def test_a_daemon_thread_that_trains_while_the_process_ends(tmp_path: Path) -> None:
    code = """
def forever():
    while True:
        train()
thread = threading.Thread(target=forever, daemon=True)
thread.start()
time.sleep(0.2)
sys.exit(4)
"""
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        done = run(code, folder)
        assert done.returncode == 4 and done.stderr.count("\n") <= 2 * done.stderr.count("not seen to its end")
        found = Recording(folder / "a.h5")
        assert found.info.closed and len(found.steps) == 4


def test_a_thread_that_trains_goes_on_after_stop(tmp_path: Path) -> None:
    code = """
def some():
    for _ in range(300):
        train()
thread = threading.Thread(target=some)
thread.start()
time.sleep(0.1)
probe.stop()
thread.join()
print(weights(), len(net.pre_hooks), threading.active_count())
"""
    plain, recorded = run(code, tmp_path, "plain"), run(code, tmp_path)
    assert (recorded.returncode, recorded.stdout, recorded.stderr) == (0, plain.stdout, "")


def test_a_signal_handler_may_stop_the_recording_at_any_moment(tmp_path: Path) -> None:
    """Also in the middle of a hook: the handler runs between two lines of probe."""
    code = """
signal.signal(signal.SIGALRM, lambda *_: probe.stop())
signal.setitimer(signal.ITIMER_REAL, {})
end = time.monotonic() + 0.25
while time.monotonic() < end:
    train()
print(len(net.pre_hooks), threading.active_count())
"""
    for number in range(3):
        folder = tmp_path / str(number)
        folder.mkdir()
        done = run(code.format(0.02 + number / 27), folder)
        assert (done.returncode, done.stdout) == (0, "0 1\n"), done.stderr
        assert done.stderr.count("ProbeWarning") == sum(map(done.stderr.count, ("failed", "not seen to its end")))
        found = Recording(folder / "a.h5")
        assert len(found.steps) >= 3
