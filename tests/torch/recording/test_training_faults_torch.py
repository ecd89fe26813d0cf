"""Trainings in PyTorch that fail, are interrupted, fork, or use probe otherwise than intended, while they are recorded."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import probe
from probe.adapters.torch.modes import Restored
from probe.errors import ProbeWarning
from probe.recorder.measuring import Measuring
from probe.records import Phase
from probe.store.reading.reader import Reader
from probe.testing import Recording, sample
from tests.limits import HANGS
from tests.recorder.interrupting import PARTS, Failing, Interrupt, Planted, interrupt_everywhere
from tests.recorder.interrupting import train as train_interrupted
from tests.store.killing import Expected
from tests.torch.faults_torch import batch, said
from tests.torch.training import hooks

# ---- Trainings in PyTorch that fail, or that use probe otherwise than intended, while they are recorded.


def block(forward: Callable[..., Any], **members: Any) -> nn.Module:
    module = type("Block", (nn.Module,), {"forward": forward})()
    for name, value in members.items():
        setattr(module, name, value)
    return module


# ---- exceptions in the user's program ------------------------------------------------------------------

WHERE = ["forward", "backward", "tensor hook", "parameter hook", "engine callback", "optimizer", "closure"]


class Fragile(Failing):
    def __init__(self, where: str) -> None:
        self.where = where
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


# ---- PyTorch: interrupts anywhere inside probe, signals, processes that end; the training's result, hooks, the file.

ROOT = Path(__file__).parents[3]


class Residual(nn.Module):
    """Its gradient comes from several places, and the second layer's input is a view."""

    def __init__(self, again: bool) -> None:
        super().__init__()
        self.inner, self.norm, self.again = nn.Linear(4, 4), nn.BatchNorm1d(4), again

    def forward(self, x: Tensor) -> Tensor:
        inner = functools.partial(checkpoint, self.inner, use_reentrant=False) if self.again else self.inner
        return self.norm(inner(x[:, :]) + x)


class Training:
    """A small real training."""

    def __init__(self, again: bool = False) -> None:
        torch.manual_seed(0)
        self.done = 0
        self.model = nn.Sequential(nn.Linear(4, 4), Residual(again), nn.ReLU(inplace=True), nn.Linear(4, 2))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 0.1)
        self.buffers = {name: buffer.clone() for name, buffer in self.model.named_buffers()}

    def attempt(self, step: int) -> None:
        for name, buffer in self.model.named_buffers():  # what a forward that is begun again must not count twice
            buffer.copy_(self.buffers[name])
        self.optimizer.zero_grad()
        self.model(torch.from_numpy(sample((5, 4), step))).square().sum().backward()
        buffers = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        before = self.weights()
        try:
            self.optimizer.step()
        finally:
            if self.weights() != before:
                self.done, self.buffers = self.done + 1, buffers

    def weights(self) -> list[bytes]:
        return [p.detach().numpy().tobytes() for p in self.model.parameters()]

    def hooks(self) -> int:
        return len(hooks(self.model, self.optimizer)) + modes()


def modes() -> int:
    """Return how many modes of PyTorch's are not as a program begins with them."""
    is_changed = (
        not torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        not torch._C._is_torch_function_enabled(),
    )
    return sum(is_changed) + len(Restored._open.all)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # from within a weak reference
@pytest.mark.parametrize(("part", "again"), [*((part, False) for part in PARTS), ("hooks", True)])
def test_an_interrupt_anywhere_in_probe(part: str, again: bool, tmp_path: Path) -> None:
    """Also where probe has just turned PyTorch's modes off for its own operations."""
    Training(again).attempt(0)
    interrupt_everywhere(functools.partial(Training, again), part, tmp_path)


def test_an_interrupt_where_a_step_is_given_numbers_leaves_no_mode(tmp_path: Path) -> None:
    for at in range(1, 60):
        train_interrupted(Training, tmp_path / f"{at}.h5", Interrupt(at), "step")
        assert modes() == 0, at


# ---- processes that end --------------------------------------------------------------------------------


# ---- Workers of a DataLoader are forked while a training is recorded: its file is as without them.

SCRIPT = """
import sys
import torch
from torch.utils.data import DataLoader, TensorDataset
import probe

torch.set_num_threads(1)
for name, options in (("alone", {}), ("workers", {"num_workers": 2, "multiprocessing_context": "fork"})):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    data = TensorDataset(torch.randn(60, 64))
    probe.start(net, f"{sys.argv[1]}/{name}.h5", task="tensor")
    for epoch in range(3):
        for (x,) in DataLoader(data, batch_size=20, **options):
            optimizer.zero_grad()
            loss = net(x).square().mean()
            loss.backward()
            optimizer.step()
            probe.step(loss=loss)
    probe.stop()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_workers_of_a_data_loader(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANGS, check=False, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert Expected(tmp_path / "alone.h5", 0.0).check(tmp_path / "workers.h5") == 9
    with Reader(tmp_path / "workers.h5") as reader:
        assert reader.info.closed and not reader.notes
