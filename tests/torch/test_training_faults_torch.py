"""Trainings in PyTorch that fail, or that use probe otherwise than intended, while they are recorded."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from faults_torch import batch, ended, said  # noqa: F401, E402
from test_neutral import hooks  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import probe  # noqa: E402
from probe.errors import ProbeWarning, RecordingError  # noqa: E402
from probe.recorder.measuring import Measuring  # noqa: E402
from probe.records import Phase  # noqa: E402
from probe.testing import Recording  # noqa: E402


class Planted(Exception):
    """What goes wrong in the user's program."""


def block(forward: Callable[..., Any], **members: Any) -> nn.Module:
    module = type("Block", (nn.Module,), {"forward": forward})()
    for name, value in members.items():
        setattr(module, name, value)
    return module


# ---- exceptions in the user's program ------------------------------------------------------------------

WHERE = ["forward", "backward", "tensor hook", "parameter hook", "engine callback", "optimizer", "closure"]


class Fragile:
    """A training one part of which fails in the second of four steps."""

    def __init__(self, where: str) -> None:
        self.where, self.failing = where, False
        torch.manual_seed(0)
        fail = self.fail

        class Twice(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Tensor) -> Tensor:
                return x * 2

            @staticmethod
            def backward(ctx: Any, gradient: Tensor) -> Tensor:
                fail("backward")
                if where == "engine callback":
                    torch.autograd.Variable._execution_engine.queue_callback(lambda: fail(where))
                return gradient * 2

        def forward(module: nn.Module, x: Tensor) -> Tensor:
            fail("forward")
            return Twice.apply(x)

        class SGD(torch.optim.SGD):
            def _init_group(self, *args: Any) -> Any:
                fail("optimizer")
                return super()._init_group(*args)

        self.model = nn.Sequential(nn.Linear(4, 4), block(forward), nn.BatchNorm1d(4), nn.Linear(4, 2))
        self.optimizer = SGD(self.model.parameters(), 0.1, momentum=0.9, foreach=False)

    def fail(self, where: str) -> None:
        if self.failing and self.where == where:
            raise Planted(where)

    def gradients(self, number: int) -> Tensor:
        self.optimizer.zero_grad()
        output = self.model(batch(number))
        output.register_hook(lambda gradient: self.fail("tensor hook"))
        loss = output.square().sum()
        loss.backward()
        self.fail("closure")
        return loss

    def step(self, number: int) -> None:
        self.failing = number == 1
        if self.where == "parameter hook" and not number:
            last = [*self.model.parameters()][-1]
            last.register_post_accumulate_grad_hook(lambda parameter: self.fail("parameter hook"))
        if self.where == "closure":
            self.optimizer.step(lambda: self.gradients(number))
        else:
            self.gradients(number)
            self.optimizer.step()

    def train(self, path: Path | None, caught: bool) -> list[bytes]:
        around = probe.capture(self.model, path, task="tensor") if path else contextlib.nullcontext()
        with around:
            for number in range(4):
                with contextlib.suppress(Planted) if caught else contextlib.nullcontext():
                    self.step(number)
                if path:
                    probe.step(loss=number)
        return self.state()

    def state(self) -> list[bytes]:
        tensors = [*self.model.state_dict().values(), *(p.grad for p in self.model.parameters() if p.grad is not None)]
        return [tensor.detach().numpy().tobytes() for tensor in tensors]


LOST = "an optimizer's step was not seen to its end: the update of 0.weight and 5 more is not recorded"
CLOSURE = "gradients as the optimizer used them are not recorded: the optimizer computes its gradients in a closure"
TOLD = {"optimizer": [LOST], "closure": [CLOSURE, LOST]}


@pytest.mark.parametrize("where", WHERE)
def test_an_exception_that_the_training_catches(where: str, tmp_path: Path) -> None:
    plain = Fragile(where).train(None, caught=True)
    recorded = Fragile(where)
    before = hooks(recorded.model, recorded.optimizer)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert recorded.train(tmp_path / "a.h5", caught=True) == plain
    added = 1 if where == "parameter hook" else 0
    assert len(hooks(recorded.model, recorded.optimizer) - before) == added
    run = Recording(tmp_path / "a.h5")
    assert run.steps["step"].tolist() == [0, 1, 2, 3] and run.info.closed and not run.steps["state"].any()
    assert said(caught) == [text for _, _, text in run.notes] == TOLD.get(where, [])
    for step in (2, 3):
        assert len(run.find(step=step, role="delta")) == 6
        assert len(run.find(step=step, phase="gradient")) == 6
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
    left = hooks(recorded.model, recorded.optimizer)
    assert recorded.state() == plain.state() and len(left) == (1 if where == "parameter hook" else 0)
    run = Recording(tmp_path / "a.h5")
    assert run.steps["state"].tolist() == [0, 1] and run.info.closed
    assert len(run.find(step=0, role="delta")) == 6 and not run.find(step=1, role="delta")


def test_a_gradient_that_failed_halfway_is_not_taken_for_whole(tmp_path: Path) -> None:
    """What a failed backward left in `.grad` is added to by the next one: the sum is what is recorded then."""
    training = Fragile("backward")
    with probe.capture(training.model, tmp_path / "a.h5", task="tensor"):
        training.failing = True
        with pytest.raises(Planted):
            training.model(batch()).square().sum().backward()
        training.failing = False
        half = {name: p.grad for name, p in training.model.named_parameters()}
        assert half["3.weight"] is not None and half["0.weight"] is None
        training.model(batch()).square().sum().backward()
    run = Recording(tmp_path / "a.h5")
    whole = run.find(phase="gradient")
    assert len(whole) == 6 and {s.micro for s in whole} == {1}
    for s in whole:
        gradient = training.model.get_parameter(f"{s.path}.{s.slot}").grad
        assert np.array_equal(s.values, gradient.numpy())


def test_an_exception_in_a_hook_on_a_tensor_does_not_reach_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(path: Path | None) -> bytes:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        if path:
            probe.start(model, path)
        model(batch()).sum().backward()
        probe.stop()
        return model[0].weight.grad.numpy().tobytes()

    def observe(self: Measuring, phase: Phase, *args: Any, **kwargs: Any) -> None:
        if phase is Phase.BACKWARD:
            raise Planted
        whole(self, phase, *args, **kwargs)

    plain, whole = train(None), Measuring.observe
    monkeypatch.setattr(Measuring, "observe", observe)
    with pytest.warns(ProbeWarning) as caught:
        assert train(tmp_path / "a.h5") == plain
    assert said(caught) == ["not recorded because of an error inside probe: Planted()"]
    assert len(Recording(tmp_path / "a.h5").find(phase="gradient")) == 2


# ---- probe's functions in another order ----------------------------------------------------------------


def test_step_without_start_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe.session, "_warned", False)
    model = nn.Linear(4, 2)
    with pytest.warns(ProbeWarning) as caught:
        for _ in range(3):
            model(batch()).sum().backward()
            probe.step(loss=torch.tensor(1.0))
            probe.log("x", batch())
    assert said(caught) == ["probe.step() does nothing: no recording is under way"] and not hooks(model)


def test_a_second_recording_at_the_same_time_is_refused(tmp_path: Path) -> None:
    one, other = nn.Linear(4, 4), nn.Linear(4, 2)
    optimizer = torch.optim.SGD([*one.parameters(), *other.parameters()], 0.1)
    probe.start(one, tmp_path / "a.h5")
    before = hooks(one, optimizer)
    for model in (one, other):
        with pytest.raises(RecordingError, match=r"a\.h5 is under way; call probe\.stop\(\) first"):
            probe.start(model, tmp_path / "b.h5")
    assert hooks(one, optimizer) == before and hooks(other) == {h for h in before if h[0] == "all"}
    other(one(batch())).sum().backward()
    optimizer.step()
    probe.step()
    probe.stop()
    assert not hooks(one, optimizer) and not (tmp_path / "b.h5").exists()
    run = Recording(tmp_path / "a.h5")
    assert len(run.find(role="delta")) == 2 and not run.notes


def test_recordings_of_one_model_after_each_other_are_equal(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    runs = []
    for name in "ab":
        with probe.capture(model, tmp_path / f"{name}.h5"):
            model(batch()).sum().backward()
        model.zero_grad()
        runs.append([(s.phase, s.role, s.path, s.slot, s.hash) for s in Recording(tmp_path / f"{name}.h5").seen])
    assert runs[0] == runs[1] and len(runs[0]) > 10


def test_nothing_is_lost_where_warnings_are_errors(tmp_path: Path) -> None:
    """Of what is said, and of what is recorded behind it."""

    def train(path: Path) -> tuple[list[bytes], Recording]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), block(lambda module, x: x[:, :2]), nn.ReLU(inplace=True))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with probe.capture(model, path, task="tensor"):
            for number in range(4):
                model(batch(number)).sum().backward()
                if number == 1:
                    model[1].scale = nn.Parameter(torch.ones(2))
                optimizer.step()
                optimizer.zero_grad()
                probe.step(loss=number)
        assert not hooks(model, optimizer)
        return [p.detach().numpy().tobytes() for p in model.parameters()], Recording(path)

    with pytest.warns(ProbeWarning):
        plain, expected = train(tmp_path / "a.h5")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        strict, found = train(tmp_path / "b.h5")
    assert strict == plain and found.notes == expected.notes and len(found.notes) == 3
    assert [(s.step, s.role, s.path, s.slot, s.hash) for s in found.seen] == [
        (s.step, s.role, s.path, s.slot, s.hash) for s in expected.seen
    ]
