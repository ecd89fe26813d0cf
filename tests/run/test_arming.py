"""`probe.arm`, and `--on-signal` and `--on-file`: recordings that begin and end while a program runs."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import probe
from probe import session
from probe.errors import ConfigError, ProbeWarning, StoreError
from probe.testing import Recording, sample
from tests.recorder.long_runs import Net, alone  # noqa: F401
from tests.toy import nn
from tests.toy.tensor import Tensor, no_grad
from tests.unaided import watched

ON = Path("on")


class Program:
    """Trains with two micro-batches a step, or runs a model without gradients."""

    def __init__(self, steps_itself: bool = False) -> None:
        self.net, self.steps_itself = Net(), steps_itself
        self.optimizer = nn.SGD(self.net.parameters(), 1e-4)
        self.count = 0

    def train(self, steps: int = 1, at_micro: Any = lambda: None) -> None:
        for _ in range(steps):
            for micro in range(2):
                if micro:
                    at_micro()
                self.net(self.x()).sum().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            if self.steps_itself:
                probe.step(loss=1.0)

    def infer(self, forwards: int = 1) -> None:
        with no_grad():
            for _ in range(forwards):
                self.net(self.x())

    def x(self) -> Tensor:
        self.count += 1
        return Tensor(sample((5, 4), self.count))


def kill() -> None:
    os.kill(os.getpid(), signal.SIGUSR2)


def files() -> list[str]:
    return sorted(path.name for path in Path().glob("*.h5"))


def inputs(path: str) -> list[tuple[int, int, float]]:
    """Return step, micro and norm of what the model was given."""
    return [(s.step, s.micro, round(s.norm, 4)) for s in Recording(Path(path)).find(path="", role="input")]


def given(count: int) -> float:
    return round(float((sample((5, 4), count) ** 2).sum() ** 0.5), 4)


@pytest.mark.parametrize("steps_itself", [True, False])
def test_a_signal_records_whole_steps_each_time_into_a_file_of_its_own(steps_itself: bool) -> None:
    program = Program(steps_itself)
    armed = probe.arm(program.net, "a.h5", signal="SIGUSR2", steps=[0])
    program.train(3)
    assert not files() and not session.is_recording()
    kill()
    program.train(4)
    program.train(1, at_micro=kill)  # in the middle of a step: from the next one on
    program.train(2)
    armed.remove()
    assert inputs("a.h5") == [(0, 0, given(7)), (0, 1, given(8))]
    assert inputs("a-2.h5") == [(0, 0, given(17)), (0, 1, given(18))]
    for path in files():
        run = Recording(Path(path))
        assert run.find(phase="update", role="delta") and [int(each["state"]) for each in run.steps] == [0]
    assert files() == ["a-2.h5", "a.h5"]


def test_a_second_signal_ends_what_the_first_began() -> None:
    program = Program()
    armed = probe.arm(program.net, "a.h5", signal=signal.SIGUSR2)
    program.train()
    kill()
    program.train(3)
    kill()
    program.train(3)
    assert len(Recording(Path("a.h5")).steps) == 3 and not session.is_recording()
    armed.remove()


def test_a_handler_that_was_there_is_called_and_put_back() -> None:
    arrived: list[int] = []
    before = signal.signal(signal.SIGUSR2, lambda number, frame: arrived.append(number))
    try:
        mine = signal.getsignal(signal.SIGUSR2)
        program = Program()
        armed = probe.arm(program.net, "a.h5", signal="usr2", forwards=1)
        kill()
        assert arrived == [signal.SIGUSR2] and not files()  # the handler begins nothing by itself
        program.infer()
        assert files() == ["a.h5"]
        armed.remove()
        assert signal.getsignal(signal.SIGUSR2) is mine
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_a_file_records_while_it_is_there() -> None:
    program = Program()
    armed = probe.arm(program.net, "a.h5", file=ON)
    program.infer(2)
    ON.touch()
    program.infer(3)
    ON.unlink()
    program.infer(2)
    ON.touch()
    program.infer()
    armed.remove()
    assert [norm for _, _, norm in inputs("a.h5")] == [given(count) for count in (3, 4, 5)]
    assert [norm for _, _, norm in inputs("a-2.h5")] == [given(8)]
    assert not len(program.net.pre_hooks) and not len(program.net.post_hooks)


def test_so_many_forwards_are_complete_at_once_and_not_recorded_again_while_the_file_is_there() -> None:
    program = Program()
    armed = probe.arm(program.net, "a.h5", file=ON, forwards=2, task="tensor")
    ON.touch()
    program.infer(2)
    assert not session.is_recording()  # an engine may be idle now
    assert [norm for _, _, norm in inputs("a.h5")] == [given(1), given(2)]
    assert len(Recording(Path("a.h5")).find(path="", role="output")) == 2
    program.infer(3)
    assert files() == ["a.h5"]
    armed.remove()


def test_no_file_is_overwritten_and_what_the_program_records_is_left_alone() -> None:
    Path("a.h5").write_text("there")
    program = Program()
    armed = probe.arm(program.net, "a.h5", file=ON, forwards=1)
    ON.touch()
    program.infer()
    assert files() == ["a-2.h5", "a.h5"] and Path("a.h5").read_text() == "there"
    ON.unlink()
    program.infer()
    probe.start(program.net, "own.h5")
    ON.touch()
    with pytest.warns(ProbeWarning, match="own.h5 is under way"):
        program.infer(2)
    armed.remove()
    assert session.is_recording()
    probe.step()
    probe.stop()
    assert len(inputs("own.h5")) == 2


def test_a_training_is_the_same_and_nothing_is_hooked_until_it_is_asked_for() -> None:
    weights = []
    for armed in (False, True):
        nn.manual_seed(0)
        program = Program()
        if armed:
            waiting = probe.arm(program.net, "a.h5", file=ON, steps=[1])
        program.train(2)
        if armed:
            assert not len(program.net.head.pre_hooks)
            ON.touch()
        program.train(3)
        weights.append([parameter.data.tobytes() for parameter in program.net.parameters()])
    waiting.remove()
    assert weights[0] == weights[1] and {step for step, _, _ in inputs("a.h5")} == {1}


@pytest.mark.parametrize(
    ("error", "options", "said"),
    [
        (ConfigError, {}, "expected signal=, file= or when="),
        (ConfigError, {"signal": "SIGNO"}, "is no signal"),
        (ConfigError, {"signal": "SIGKILL"}, "take another one"),
        (ConfigError, {"file": "on", "forwards": 0}, "a number from 1"),
        (ConfigError, {"file": "on", "steps": "some"}, "is no step"),
        (ConfigError, {"when": bool}, "needs PyTorch"),
        (StoreError, {"file": "on", "path": "nowhere/a.h5"}, "isn't there"),
    ],
)
def test_what_makes_no_sense_is_said_at_once(error: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(error, match=said):
        probe.arm(Net(), **{"path": "a.h5", **options})


def test_a_signal_is_for_the_main_thread() -> None:
    raised: list[Exception] = []

    def elsewhere() -> None:
        try:
            probe.arm(Net(), "a.h5", signal="SIGUSR2")
        except ConfigError as error:
            raised.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert "main thread" in str(raised[0])


@pytest.mark.parametrize("named", [True, False])
def test_a_program_without_a_line_of_probe_waits_too(
    named: bool, capfd: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.delenv("PROBE_QUIET", raising=False)
    program = Program()
    monkeypatch.setattr(sys.modules[__name__], "PROGRAM", program, raising=False)
    words = {"on_signal": "SIGUSR2", "on_file": str(ON.absolute()), "forwards": 1 if named else None}
    with watched("numpy", models=(f"{__name__}:PROGRAM.net",) if named else (), **words) as watch:
        program.infer() if named else program.train(2)
        kill()
        program.infer(2) if named else program.train(2)
        kill()
        program.infer(2) if named else program.train(2)
    watch.armed.remove()
    assert files() == (["a-2.h5", "a.h5"] if named else ["a.h5"])
    assert len(inputs("a.h5")) == (1 if named else 4)
    assert "on SIGUSR2 or" in capfd.readouterr().err
