"""Trainings that fail, or that use probe otherwise than intended, while they are recorded."""

from __future__ import annotations

import contextlib
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import probe
from probe.adapters.numpy import nn
from probe.adapters.numpy.tensor import Tensor, operation
from probe.errors import ExistsError, ProbeWarning, RecordingError
from probe.testing import Recording
from tests.faults import batch, block, ended, hooks, said  # noqa: F401
from tests.interrupting import finished

ENDED = "the recording has stopped, your training goes on, and the complete steps in the file can be read"


class Planted(Exception):
    """What goes wrong in the user's program."""


# ---- exceptions in the user's program ------------------------------------------------------------------


class Fragile:
    """A training one part of which fails in the second of four steps."""

    def __init__(self, where: str) -> None:
        self.where, self.failing = where, False
        nn.manual_seed(0)
        self.inner = block(lambda module, x: self.forward(x))
        self.model = nn.Sequential(nn.Linear(4, 4), self.inner, nn.Linear(4, 2))
        self.optimizer = nn.SGD(self.model.parameters(), 0.1, momentum=0.9)
        self.optimizer.update = self.update

    def fail(self, where: str) -> None:
        if self.failing and self.where == where:
            raise Planted(where)

    def forward(self, x: Tensor) -> Tensor:
        self.fail("forward")
        return operation(x.data * 2.0, (x, self.backward))

    def backward(self, gradient: np.ndarray) -> np.ndarray:
        self.fail("backward")
        return gradient * 2.0

    def update(self, *args: Any) -> None:
        self.fail("optimizer")
        nn.SGD.update(self.optimizer, *args)

    def step(self, number: int) -> None:
        self.failing = number == 1
        output = self.model(batch(number))
        output.node.hooks.add(lambda gradient: self.fail("tensor hook"))
        output.sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def train(self, path: Path | None, caught: bool) -> list[bytes]:
        around = probe.capture(self.model, path, task="tensor") if path else contextlib.nullcontext()
        with around:
            for number in range(4):
                with contextlib.suppress(Planted) if caught else contextlib.nullcontext():
                    self.step(number)
                if path:
                    probe.step(loss=number)
        return self.weights()

    def weights(self) -> list[bytes]:
        return [p.data.tobytes() for p in self.model.parameters()]


WHERE = ["forward", "backward", "tensor hook", "optimizer"]


@pytest.mark.parametrize("where", WHERE)
def test_an_exception_that_the_training_catches(where: str, tmp_path: Path) -> None:
    plain = Fragile(where).train(None, caught=True)
    recorded = Fragile(where)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert recorded.train(tmp_path / "a.h5", caught=True) == plain
    assert hooks(recorded.model) == 0
    run = Recording(tmp_path / "a.h5")
    assert run.steps["step"].tolist() == [0, 1, 2, 3] and run.info.closed and not run.steps["state"].any()
    lost = ["an optimizer's step was not seen to its end: the update of 0.weight and 3 more is not recorded"]
    assert said(caught) == [text for _, _, text in run.notes] == (lost if where == "optimizer" else [])
    for step in (2, 3):
        assert len(run.find(step=step, role="delta")) == 4
    raised = {run.modules[c["module"]].path for c in run.calls if c["raised"]}
    assert raised == ({"", "1"} if where == "forward" else set())


@pytest.mark.parametrize("where", WHERE)
def test_an_exception_that_ends_the_training(where: str, tmp_path: Path) -> None:
    plain, recorded = Fragile(where), Fragile(where)
    with pytest.raises(Planted):
        plain.train(None, caught=False)
    with pytest.raises(Planted, match=where), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        recorded.train(tmp_path / "a.h5", caught=False)
    assert recorded.weights() == plain.weights() and hooks(recorded.model) == 0
    run = Recording(tmp_path / "a.h5")
    assert run.steps["state"].tolist() == [0, 1] and run.info.closed
    assert len(run.find(step=0, role="delta")) == 4 and not run.find(step=1, role="delta")


# ---- probe's functions in another order ----------------------------------------------------------------


def test_a_second_start_leaves_the_first_recording_alone(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    probe.start(model, tmp_path / "a.h5")
    before = hooks(model)
    with pytest.raises(RecordingError, match="a.h5 is under way; call probe.stop"):
        probe.start(model, tmp_path / "b.h5")
    assert hooks(model) == before and not (tmp_path / "b.h5").exists()
    model(batch()).sum().backward()
    probe.stop()
    probe.stop()
    assert len(Recording(tmp_path / "a.h5").find(phase="gradient")) == 2 and hooks(model) == 0


def test_start_after_starts_that_failed(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    (tmp_path / "mine.h5").write_text("mine")
    for path, error in ((tmp_path / "mine.h5", ExistsError), (tmp_path / "nowhere" / "a.h5", OSError)):
        with pytest.raises(error):
            probe.start(model, path)
    with pytest.raises(RecordingError):
        probe.start(model, tmp_path / "a.h5", optimizer=model)
    assert hooks(model) == 0 and [path.name for path in tmp_path.iterdir()] == ["mine.h5"]
    with probe.capture(model, tmp_path / "a.h5"):
        model(batch())
    assert len(Recording(tmp_path / "a.h5").find(role="output")) == 1


def test_recordings_of_one_model_after_each_other_are_equal(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    runs = []
    for name in "ab":
        with probe.capture(model, tmp_path / f"{name}.h5"):
            model(batch()).sum().backward()
        for parameter in model.parameters():
            parameter.grad = None
        runs.append([(s.phase, s.role, s.path, s.slot, s.hash) for s in Recording(tmp_path / f"{name}.h5").seen])
    assert runs[0] == runs[1] and len(runs[0]) > 10


def test_a_step_before_the_update_is_told(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    optimizer = nn.SGD(model.parameters(), 0.1)
    probe.start(model, tmp_path / "a.h5")
    text = "probe.step() comes before the optimizer's step: updates are recorded one step late"
    with pytest.warns(ProbeWarning) as caught:
        for number in range(3):
            model(batch(number)).sum().backward()
            probe.step()
            optimizer.step()
            optimizer.zero_grad()
    probe.stop()
    run = Recording(tmp_path / "a.h5")
    assert said(caught) == [text] and [(step, note) for step, _, note in run.notes] == [(1, text)]
    assert [len(run.find(step=step, role="delta")) for step in range(4)] == [0, 2, 2, 2]


def test_updates_behind_several_steps_of_accumulation_are_not_late(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    optimizer = nn.SGD(model.parameters(), 0.1)
    with probe.capture(model, tmp_path / "a.h5"):
        for number in range(4):
            model(batch(number)).sum().backward()
            if number % 2:
                optimizer.step()
                optimizer.zero_grad()
            probe.step()
    assert not Recording(tmp_path / "a.h5").notes


def test_an_error_inside_step_ends_the_recording_and_not_the_training(tmp_path: Path) -> None:
    model, path = nn.Linear(4, 2), tmp_path / "a.h5"
    probe.start(model, path)
    model(batch())
    probe.step()
    with pytest.MonkeyPatch.context() as patch, pytest.warns(ProbeWarning) as caught:
        patch.setattr("probe.recorder.Recorder._end_step", lambda *args: 1 / 0)
        probe.step()
    why = f"recording to {path} failed in probe.step() (ZeroDivisionError('division by zero'))"
    assert said(caught) == [f"{why}; {ENDED}"]
    finished()
    assert hooks(model) == 0 and len(Recording(path).steps) == 1
    for _ in range(3):
        probe.step(loss=1)
        probe.log("x", 1.0)
    probe.start(model, tmp_path / "b.h5")  # what has ended by itself need not be stopped


def test_an_error_inside_stop_ends_the_recording_and_not_the_training(tmp_path: Path) -> None:
    model, path = nn.Linear(4, 2), tmp_path / "a.h5"
    probe.start(model, path)
    model(batch())
    probe.step()
    model(batch())
    with pytest.MonkeyPatch.context() as patch, pytest.warns(ProbeWarning) as caught:
        patch.setattr("probe.recorder.Recorder._end_step", lambda *args: 1 / 0)
        probe.stop()
    assert said(caught) == [
        f"the last step is not in {path}: probe.stop() failed (ZeroDivisionError('division by zero'))"
    ]
    assert hooks(model) == 0 and len(Recording(path).steps) == 1 and Recording(path).info.closed


def test_what_is_logged_after_the_end_is_not_kept(tmp_path: Path) -> None:
    probe.start(nn.Linear(4, 2), tmp_path / "a.h5")
    recorder = probe.session._current
    with pytest.MonkeyPatch.context() as patch, pytest.warns(ProbeWarning):
        patch.setattr("probe.recorder.Recorder._end_step", lambda *args: 1 / 0)
        probe.step()
    kept = len(recorder._scalars)
    for _ in range(10):
        probe.log("x", 1.0)
    assert len(recorder._scalars) == kept


def test_messages_that_differ_each_time_do_not_pile_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("probe.recorder.run._SAID", 20)
    model = nn.Sequential(nn.ReLU())
    probe.start(model, tmp_path / "a.h5")
    recorder = probe.session._current
    with pytest.warns(ProbeWarning) as caught:
        for number in range(50):
            recorder.run.note(f"trouble number {number}", -1)
    assert len(caught) == 20 == len(recorder.run._said)
    assert said(caught)[-1] == "there is more that could not be recorded; it is not said any more"
