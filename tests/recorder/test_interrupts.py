"""Interrupts anywhere inside probe, signals, processes that end: the training's result, hooks, messages, the file."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import probe
from probe.errors import ProbeWarning, StoreError
from probe.numbers.statistics import measure
from probe.records import StepState
from probe.store.writing.disk import Disk
from probe.store.writing.writer import Writer
from probe.testing import Recording, sample
from tests.limits import HANGS
from tests.recorder.interrupting import ENDS, PARTS, finished, interrupt_everywhere
from tests.store.rows import INFO, add_record, end_step
from tests.toy import nn
from tests.toy.tensor import Tensor, backward_hooks

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    yield
    signal.signal(signal.SIGINT, before)
    probe.stop()


class Toy:
    """A training of the numpy framework."""

    def __init__(self) -> None:
        nn.manual_seed(0)
        self.done = 0
        self.model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
        self.optimizer = nn.SGD(self.model.parameters(), 0.1)
        self.optimizer.update = self.update

    def update(self, *args: Any) -> None:
        nn.SGD.update(self.optimizer, *args)
        self.done += 1

    def attempt(self, step: int) -> None:
        self.optimizer.zero_grad()
        self.model(Tensor(sample((5, 4), step))).sum().backward()
        self.optimizer.step()

    def weights(self) -> list[bytes]:
        return [p.data.tobytes() for p in self.model.parameters()]

    def hooks(self) -> int:
        return hooks(self.model)


def hooks(model: nn.Module) -> int:
    count = len(nn.step_pre_hooks) + len(nn.step_post_hooks) + len(backward_hooks)
    return count + sum(len(m.pre_hooks) + len(m.post_hooks) for _, m in model.modules())


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # from within a weak reference
@pytest.mark.parametrize("part", PARTS)
def test_an_interrupt_anywhere_in_probe(part: str, tmp_path: Path) -> None:
    interrupt_everywhere(Toy, part, tmp_path)


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


def test_an_interrupt_while_the_writers_thread_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's own lock hides it behind a RuntimeError where the interrupt comes while it is let go."""

    def start(thread: threading.Thread) -> None:
        condition = threading.Condition(threading.Lock())
        with condition:
            condition.release()
            raise KeyboardInterrupt

    model, path = nn.Linear(4, 4), tmp_path / "a.h5"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(threading.Thread, "start", start)
        probe.start(model, path)
    assert hooks(model) == 0 and not path.exists()


@pytest.mark.parametrize("number", [1, 2, 3])
def test_an_interrupt_while_the_file_is_created(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a signal handler raises inside HDF5 would come out as another error."""
    model, path = nn.Linear(4, 4), tmp_path / "a.h5"
    writes = itertools.count(1)
    plain = Disk.write

    def write(disk: Disk, data: bytes) -> int:
        if next(writes) == number:
            signal.raise_signal(signal.SIGINT)
        return plain(disk, data)

    monkeypatch.setattr(Disk, "write", write)
    with pytest.raises(KeyboardInterrupt):
        probe.start(model, path)
    assert hooks(model) == 0 and not path.exists()
    with probe.capture(model, path):
        model(Tensor(sample((5, 4))))
    assert Recording(path).info.closed


def test_rows_that_an_interrupt_may_have_torn_are_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between being taken from where they were collected and reaching the queue they may be in neither."""
    path = tmp_path / "a.h5"
    writer = Writer(path, INFO)
    add_record(writer, sample((3,)))
    end_step(writer)
    written = threading.Event()
    writer._queue.put(written.set)
    assert written.wait(HANGS)
    add_record(writer, sample((3,), 1), step=1)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(writer._queue, "put", interrupted)
        end_step(writer, 1)
    end_step(writer, 2)
    with pytest.raises(StoreError) as caught:
        writer.close()
    assert str(caught.value) == ENDS["closed torn"].format(path=path)
    assert len(Recording(path).steps) == len(Recording(path).seen) == 1


def interrupted(*args: object) -> None:
    raise KeyboardInterrupt


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
from tests.toy import nn
from tests.toy.tensor import Tensor
from probe.testing import sample

signal.signal(signal.SIGINT, signal.default_int_handler)

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
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=HANGS, check=False, env=environment
    )


CLOSED, ABORTED = StepState.CLOSED, StepState.ABORTED
WRITTEN = """
written = threading.Event()
if sys.argv[1] == "recorded":
    probe.session._current.run.writer._queue.put(written.set)
    written.wait()
"""
IN_FORWARD = "inside = lambda: {}\ntrain()"
TERM = "os.kill(os.getpid(), signal.SIGTERM)"


@pytest.mark.thorough
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


@pytest.mark.thorough
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


@pytest.mark.thorough
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
    assert (recorded.returncode, recorded.stdout) == (0, plain.stdout)
    assert recorded.stderr.count("ProbeWarning") == recorded.stderr.count("not seen to its end")


@pytest.mark.thorough
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
