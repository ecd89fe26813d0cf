"""What the callbacks for all trainers share; the trainers themselves are tried by ``python -m benchmarks.trainings.unaided``."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import probe
from probe import session
from probe.errors import ConfigError, ExistsError, ProbeWarning, StoreError
from probe.integrations.recording import TrainerRecording, harmless
from probe.testing import Recording, sample
from tests.recorder.long_runs import Net, alone  # noqa: F401
from tests.toy import nn
from tests.toy.tensor import Tensor, no_grad


class WithLoss(Net):
    """A model that returns its loss."""

    def forward(self, x: Tensor, **kwargs: Any) -> Any:
        y = super().forward(x)
        return (y * y).mean(), y


class Trainer:
    """Has a loop of its own, with two micro-batches a step and an evaluation behind it."""

    def __init__(self, recording: TrainerRecording, net: Any = None) -> None:
        self.recording, self.net = recording, net or WithLoss()
        self.optimizer = nn.SGD(self.net.parameters(), 0.1)

    def train(
        self, steps: int = 2, first: int = 0, fails: bool = False, factor: float = 1.0, **given: Any
    ) -> list[float]:
        self.recording.begin(self.net, first)
        losses = []
        for step in range(steps):
            for micro in range(2):
                loss, _ = self.net(Tensor(sample((5, 4), 2 * step + micro)), **given)
                loss.backward()
                losses.append(float(loss.data))
            self.recording.note_rate(self.optimizer)
            self.optimizer.step()
            self.optimizer.param_groups[0]["lr"] /= 2
            self.optimizer.zero_grad()
            if fails:
                raise ZeroDivisionError
            self.recording.end_step(factor=factor)
            with no_grad():
                self.net(Tensor(sample((5, 4), 9)))
        self.recording.end()
        return losses


def scalars(path: str, name: str) -> list[float]:
    return [value for _, each, value in Recording(Path(path)).scalars if each == name]


def test_steps_are_the_trainers_with_loss_and_learning_rate() -> None:
    trainer = Trainer(TrainerRecording("a.h5", {}))
    losses = trainer.train()
    run = Recording(Path("a.h5"))
    assert len(run.steps) == 3  # the last one is the evaluation behind the training
    assert scalars("a.h5", "loss") == pytest.approx([sum(losses[:2]) / 2, sum(losses[2:]) / 2])
    assert scalars("a.h5", "lr") == [0.1, 0.05]
    assert {s.micro for s in run.find(step=1, path="", role="input")} == {-1, 0, 1}
    assert not len(trainer.net.pre_hooks) and not len(trainer.net.post_hooks) and not session.is_recording()


def test_losses_that_are_shares_add_up() -> None:
    losses = Trainer(TrainerRecording("a.h5", {})).train(1, num_items_in_batch=7, factor=3.0)
    assert scalars("a.h5", "loss") == pytest.approx([3 * sum(losses)])


def test_options_are_those_of_start() -> None:
    Trainer(TrainerRecording("a.h5", {"steps": [1], "task": "tensor", "quiet": True, "modules": ["head"]})).train()
    run = Recording(Path("a.h5"))
    assert [int(step) for step in run.steps["step"]] == [1] and {s.path for s in run.find(role="output")} == {"head"}


def test_each_training_has_a_file_of_its_own(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PROBE_QUIET")
    trainer = Trainer(TrainerRecording("a.h5", {}))
    trainer.train()
    with pytest.raises(ZeroDivisionError):
        trainer.train(fails=True)
    trainer.train(first=500)
    assert [len(Recording(Path(name)).steps) for name in ("a.h5", "a-2.h5", "a-3.h5")] == [3, 1, 3]
    err = capfd.readouterr().err
    assert "training 2 of the trainer: it is recorded to a-2.h5" in err
    assert "the trainer has resumed: step 0 of the recording is its step 500" in err


def test_what_is_wrong_with_the_options_is_said_where_the_callback_is_made() -> None:
    Path("there.h5").write_text("")
    for error, path, options in (
        (ConfigError, "a.h5", {"steps": "some"}),
        (ConfigError, "a.h5", {"what": 1}),
        (ExistsError, "there.h5", {}),
        (StoreError, "nowhere/a.h5", {}),
    ):
        with pytest.raises(error):
            TrainerRecording(path, options)
    TrainerRecording("there.h5", {"overwrite": True})
    TrainerRecording(None, {})


def test_a_recording_of_the_program_goes_on() -> None:
    trainer = Trainer(TrainerRecording("a.h5", {}))
    probe.start(trainer.net, "mine.h5")
    with pytest.warns(ProbeWarning, match=r"the program began by probe.start\(\)"):
        trainer.train()
    probe.step()
    probe.stop()
    assert not Path("a.h5").exists() and len(Recording(Path("mine.h5")).steps) == 1


def test_a_recording_that_was_made_without_the_program_makes_room() -> None:
    trainer = Trainer(TrainerRecording("a.h5", {}))
    session.start_by_itself(trainer.net, "by itself.h5")
    trainer.train()
    assert len(Recording(Path("a.h5")).steps) == 3 and Path("by itself.h5").exists()


def test_nothing_is_raised_into_the_trainer() -> None:
    @harmless
    def event(fails: bool, *, error: type[BaseException] = OSError) -> None:
        if fails:
            raise error("no room")

    event(False)
    with pytest.warns(ProbeWarning, match="ProbeCallback: no room"):
        event(True)
    with pytest.raises(ProbeWarning):  # of the test's own warnings, which are errors
        probe.errors.warn("x")
    event(True)  # it is an error here, and is not raised either
    with pytest.raises(KeyboardInterrupt):
        event(True, error=KeyboardInterrupt)


# Lightning: the package itself is tried by the benchmark


@pytest.fixture
def lightning(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the callback's module with a stand-in of ``pytorch_lightning``."""
    for name in [name for name in sys.modules if name.partition(".")[0] in ("lightning", "pytorch_lightning")]:
        monkeypatch.delitem(sys.modules, name)
    package = ModuleType("pytorch_lightning")
    package.Callback = type("Callback", (), {})
    monkeypatch.setitem(sys.modules, "pytorch_lightning", package)
    monkeypatch.delitem(sys.modules, "probe.integrations.lightning", raising=False)
    module = importlib.import_module("probe.integrations.lightning")
    assert issubclass(module.ProbeCallback, package.Callback)
    yield module
    del sys.modules["probe.integrations.lightning"]


class Number(float):
    """A loss as Lightning hands it over."""

    def detach(self) -> float:
        return float(self)


def test_a_step_of_lightning_is_one_in_which_optimizers_made_steps(lightning: Any) -> None:
    callback, net = lightning.ProbeCallback("a.h5"), WithLoss()
    optimizer = nn.SGD(net.parameters(), 0.1)
    trainer = SimpleNamespace(global_step=0)
    callback.on_train_start(trainer, net)
    for index in range(5):
        loss, _ = net(Tensor(sample((5, 4), index)))
        loss.backward()
        if index % 2:
            callback.on_before_optimizer_step(trainer, net, optimizer)
            optimizer.step()
            optimizer.param_groups[0]["lr"] /= 2  # the schedule, before the batch ends
            optimizer.zero_grad()
            trainer.global_step += 1
        outputs = {"loss": Number(index + 1)} if index < 4 else None  # manual optimization may return nothing
        callback.on_train_batch_end(trainer, net, outputs, None, index)
    callback.on_train_end(trainer, net)
    run = Recording(Path("a.h5"))
    assert len(run.steps) == 3 and {s.step for s in run.find(role="delta")} == {0, 1}
    assert scalars("a.h5", "loss") == [3.0, 7.0] and scalars("a.h5", "lr") == [0.1, 0.05]
    callback.on_train_start(trainer, net)
    callback.on_exception(trainer, net, ValueError())
    assert not session.is_recording()


def test_lightning_has_to_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("lightning", "lightning.pytorch", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "probe.integrations.lightning", raising=False)
    with pytest.raises(ModuleNotFoundError, match="needs lightning or pytorch_lightning"):
        importlib.import_module("probe.integrations.lightning")
