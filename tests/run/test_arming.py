"""`probe.arm`, and `--on-signal` and `--on-file`: recordings that begin and end while a program runs."""

from __future__ import annotations

import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import probe
from probe import session
from probe.errors import ConfigError, ProbeError, ProbeWarning, StoreError
from probe.testing import Recording, sample
from tests.recorder.long_runs import Net, alone  # noqa: F401
from tests.toy import nn
from tests.toy.tensor import Tensor, no_grad
from tests.unaided import watched

ON = Path("on")


class Program:
    """Trains with two micro-batches a step, or runs a model without gradients; each input is another one."""

    def __init__(self, steps_itself: bool = False) -> None:
        nn.manual_seed(0)
        self.net, self.steps_itself, self.count = Net(), steps_itself, 0
        self.optimizer = nn.SGD(self.net.parameters(), 1e-4)

    def run(self) -> Tensor:
        self.count += 1
        return self.net(Tensor(sample((5, 4), self.count)))

    def train(self, steps: int = 1, at_micro: Any = lambda: None) -> None:
        for _ in range(steps):
            self.run().sum().backward()
            at_micro()
            self.run().sum().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            if self.steps_itself:
                probe.step(loss=1.0)

    def infer(self, forwards: int = 1) -> None:
        with no_grad():
            for _ in range(forwards):
                self.run()


def kill() -> None:
    os.kill(os.getpid(), signal.SIGUSR2)


def files() -> list[str]:
    return sorted(path.name for path in Path().glob("*.h5"))


def given(path: str) -> list[int]:
    """Return which inputs the model was given."""
    norms = {round(float((sample((5, 4), count) ** 2).sum() ** 0.5), 4): count for count in range(1, 40)}
    return [norms[round(s.norm, 4)] for s in Recording(Path(path)).find(path="", role="input")]


@pytest.mark.parametrize("steps_itself", [True, False])
def test_a_signal_records_whole_steps_each_time_into_a_file_of_its_own(steps_itself: bool) -> None:
    program = Program(steps_itself)
    armed = probe.arm(program.net, "a.h5", signal="SIGUSR2", steps=[0])
    program.train(3)
    assert not files()
    kill()
    program.train(4)
    program.train(at_micro=kill)  # in the middle of a step: from the next one on
    program.train(2)
    armed.remove()
    assert files() == ["a-2.h5", "a.h5"] and given("a.h5") == [7, 8] and given("a-2.h5") == [17, 18]
    for path in files():
        run = Recording(Path(path))
        assert run.find(phase="update", role="delta") and [int(each["state"]) for each in run.steps] == [0]


def test_a_second_signal_ends_what_the_first_began() -> None:
    program = Program()
    armed = probe.arm(program.net, "a.h5", signal=signal.SIGUSR2)
    for _ in range(2):
        program.train(3)
        kill()
    program.train(3)
    assert given("a.h5") == [*range(7, 13)] and len(Recording(Path("a.h5")).steps) == 3
    assert not session.is_recording()
    armed.remove()


def test_a_handler_that_was_there_is_called_and_put_back() -> None:
    arrived: list[int] = []
    mine = lambda number, frame: arrived.append(number)  # noqa: E731
    before = signal.signal(signal.SIGUSR2, mine)
    try:
        program = Program()
        armed = probe.arm(program.net, "a.h5", signal="usr2", forwards=1)
        kill()
        assert arrived == [signal.SIGUSR2] and not files()  # the handler begins nothing by itself
        program.infer()
        armed.remove()
        assert files() == ["a.h5"] and signal.getsignal(signal.SIGUSR2) is mine
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_a_file_records_while_it_is_there() -> None:
    program = Program()
    armed = probe.arm(program.net, "a.h5", file=ON)
    for forwards in (2, 3, 2, 1):
        program.infer(forwards)
        ON.unlink() if ON.exists() else ON.touch()
    armed.remove()
    assert given("a.h5") == [3, 4, 5] and given("a-2.h5") == [8]
    assert not len(program.net.pre_hooks) and not len(program.net.post_hooks)


def test_so_many_forwards_are_complete_at_once_and_not_recorded_again_while_the_file_is_there() -> None:
    program = Program()
    armed = probe.arm(program.net, "a.h5", file=ON, forwards=2)
    ON.touch()
    program.infer(2)
    assert not session.is_recording()  # an engine may be idle now
    assert given("a.h5") == [1, 2] and len(Recording(Path("a.h5")).find(path="", role="output")) == 2
    program.infer(3)
    assert files() == ["a.h5"]
    armed.remove()


def test_no_file_is_overwritten_and_what_the_program_records_is_left_alone() -> None:
    Path("a.h5").write_text("there")
    program = Program()
    armed = probe.arm(program.net, "a.h5", file=ON, forwards=1)
    ON.touch()
    with pytest.raises(ValueError):
        program.net(Tensor(sample((5, 7), 1)))
    assert session.is_recording()  # what raised is not counted
    program.infer()
    assert not session.is_recording() and files() == ["a-2.h5", "a.h5"] and Path("a.h5").read_text() == "there"
    ON.unlink()
    program.infer()
    probe.start(program.net, "own.h5")
    ON.touch()
    with pytest.warns(ProbeWarning, match="own.h5 is under way"):
        program.infer(2)
    armed.remove()
    probe.step()
    probe.stop()
    assert given("own.h5") == [3, 4]


def test_a_training_is_the_same_and_nothing_is_hooked_until_it_is_asked_for() -> None:
    plain, program = Program(), Program()
    plain.train(5)
    armed = probe.arm(program.net, "a.h5", file=ON, steps=[1])
    program.train(2)
    assert not len(program.net.head.pre_hooks)
    ON.touch()
    program.train(3)
    armed.remove()
    weights = [[each.data.tobytes() for each in one.net.parameters()] for one in (plain, program)]
    assert weights[0] == weights[1] and given("a.h5") == [7, 8]


@pytest.mark.parametrize(
    ("error", "options", "said"),
    [(ConfigError, {}, "expected signal=, file= or when="), (ConfigError, {"signal": "SIGNO"}, "is no signal"),
     (ConfigError, {"signal": "SIGKILL"}, "take another one"), (ConfigError, {"file": "on", "forwards": 0}, "from 1"),
     (ConfigError, {"file": "on", "steps": "some"}, "is no step"), (ConfigError, {"when": bool}, "needs PyTorch"),
     (ConfigError, {"file": "on", "model": []}, "empty list"), (StoreError, {"file": "on", "path": "x/a"}, "isn't there")],
)  # fmt: skip
def test_what_makes_no_sense_is_said_at_once(error: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(error, match=said):
        probe.arm(**{"model": Net(), "path": "a.h5", **options})


def test_a_signal_is_for_the_main_thread() -> None:
    with ThreadPoolExecutor(1) as pool, pytest.raises(ConfigError, match="main thread"):
        pool.submit(probe.arm, Net(), "a.h5", signal="SIGUSR2").result()


def test_another_thread_may_remove_and_no_late_signal_ends_the_program() -> None:
    program, before = Program(), signal.signal(signal.SIGUSR2, signal.SIG_DFL)
    try:
        armed = probe.arm(program.net, "a.h5", signal="USR2")
        kill()
        program.infer()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(armed.remove).result()
        assert not session.is_recording()
        kill()
        signal.signal(signal.SIGUSR2, signal.SIG_DFL)
        for model, name in ((3, "USR2"), (program.net, "SIGKILL")):
            with pytest.raises(ProbeError):
                probe.arm(model, "b.h5", signal=name)
        assert signal.getsignal(signal.SIGUSR2) == signal.SIG_DFL and not len(program.net.pre_hooks)
    finally:
        signal.signal(signal.SIGUSR2, before)


@pytest.mark.parametrize("named", [True, False])
def test_a_program_without_a_line_of_probe_waits_too(named: bool, capfd: Any, monkeypatch: Any) -> None:
    monkeypatch.delenv("PROBE_QUIET", raising=False)
    program = Program()
    monkeypatch.setattr(sys.modules[__name__], "PROGRAM", program, raising=False)
    words = {"on_signal": "SIGUSR2", "on_file": str(ON.absolute()), "forwards": 1 if named else None}
    with watched("numpy", models=(f"{__name__}:PROGRAM.net",) if named else (), **words) as watch:
        for _ in range(3):
            program.infer(2) if named else program.train(2)
            kill()
    watch.armed.remove()
    assert [given(path) for path in files()] == ([[5], [3]] if named else [[5, 6, 7, 8]])
    assert "when SIGUSR2 or" in capfd.readouterr().err
