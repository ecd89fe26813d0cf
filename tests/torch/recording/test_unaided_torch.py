"""Trainings of PyTorch without a line of probe: what is recorded of them; the callback for transformers."""

from __future__ import annotations

import contextlib
import gc
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers.trainer_callback import CallbackHandler, DefaultFlowCallback, TrainerControl, TrainerState

import probe
from probe.integrations.transformers import ProbeCallback
from probe.testing import Recording
from tests.unaided import FILE, recorded, roots, watched
from tests.unaided import alone as alone

# ---- Trainings of PyTorch without a line of probe: what is recorded of them, and that they are bitwise the same.


class Net(nn.Module):
    """Takes an argument by its name."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.act, self.down = nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)

    def forward(self, x: Tensor, *, scale: Tensor) -> Tensor:
        return self.down(self.act(self.up(x))) * scale


SCALE = torch.tensor(2.0)


def x(index: int = 0) -> Tensor:
    return torch.randn(5, 4, generator=torch.Generator().manual_seed(index))


def train(call: Any, optimizer: Any, steps: int = 2) -> None:
    for index in range(steps):
        call(x(index), scale=SCALE).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.usefixtures("alone")
def test_the_first_call_is_recorded_whole() -> None:
    """The global hook of PyTorch is told of no keyword arguments, and has been called when the model's own hooks are set."""
    net = Net()
    with watched("torch", options={"task": "tensor"}):
        train(net, torch.optim.SGD(net.parameters(), 0.1))
    run = recorded()
    for step in range(2):
        assert {s.slot for s in run.find(step=step, path="", role="input")} == {"0", "scale"}
        assert np.array_equal(run.one(step=step, path="", role="input", slot="0").values, x(step).numpy())
        assert (
            len(run.find(step=step, path="", role="output"))
            == len(run.find(step=step, path="", role="grad_output"))
            == 1
        )
    assert not run.notes and not net._forward_pre_hooks and not nn.modules.module._global_forward_pre_hooks


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("wrapper", ["DataParallel", "compile", "Sequential"])
def test_what_only_spreads_a_model_over_devices_is_no_part_of_it(wrapper: str) -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    wraps = {
        "DataParallel": nn.DataParallel,
        "Sequential": nn.Sequential,
        "compile": lambda m: torch.compile(m, backend="eager"),
    }
    called = wraps[wrapper](net)
    warned = (
        pytest.warns(probe.errors.ProbeWarning, match="is compiled")
        if wrapper == "compile"
        else contextlib.nullcontext()
    )
    with warned as caught, watched("torch"):
        for index in range(2):
            called(x(index)).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    expected = {"DataParallel": "Sequential", "Sequential": "Sequential", "compile": "OptimizedModule"}[wrapper]
    assert not [each for each in caught or () if "global hooks" in str(each.message)]
    run = recorded()
    assert roots() == [expected] and len(run.steps) == 2
    assert len(probe.open(FILE).modules) == {"DataParallel": 3, "Sequential": 4, "compile": 4}[wrapper]
    assert {s.step for s in run.find(role="delta")} == {0, 1}


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("form", ["LBFGS", "SGD"])
def test_optimizers_that_compute_gradients_inside_their_step(form: str) -> None:
    """As LBFGS does, and all optimizers that Lightning calls."""
    net = Net()
    made = {"LBFGS": lambda p: torch.optim.LBFGS(p, 0.1, max_iter=3), "SGD": lambda p: torch.optim.SGD(p, 0.1)}
    optimizer = made[form](net.parameters())

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = net(x(), scale=SCALE).square().mean()
        loss.backward()
        return loss

    with pytest.warns(probe.errors.ProbeWarning, match="in a closure"), watched("torch"):
        for _ in range(3):
            optimizer.step(closure)
    run = recorded()
    assert len(run.steps) == 3
    for step in range(3):
        assert (
            len(run.find(step=step, role="delta")) == 4
        )  # of the first step too, in the middle of which recording began
        micros = {s.micro for s in run.find(step=step, path="", role="output")}
        assert micros == (set(range(len(micros))) if form == "LBFGS" else {0})


@pytest.mark.usefixtures("alone")
def test_nothing_of_the_model_and_its_optimizer_is_kept() -> None:
    def trained_by_closure() -> list[weakref.ref[Any]]:
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), 0.1)

        def closure() -> Tensor:
            loss = net(x(), scale=SCALE).square().mean()
            loss.backward()
            return loss

        with pytest.warns(probe.errors.ProbeWarning, match="in a closure"):
            optimizer.step(closure)
        return [weakref.ref(each) for each in (net, net.up.weight, optimizer)]

    with watched("torch") as watch:
        left = trained_by_closure()
        probe.stop()
        gc.collect()
        assert [each() for each in left] == [None, None, None] and watch


@pytest.mark.usefixtures("alone")
def test_updates_in_the_middle_of_backward_are_one_step() -> None:
    net = Net()
    optimizers = {p: torch.optim.SGD([p], 0.1) for p in net.parameters()}

    def update(parameter: Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in net.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    with watched("torch"):
        for index in range(3):
            net(x(index), scale=SCALE).square().mean().backward()
    run = recorded()
    assert len(run.steps) == 3 and all(len(run.find(step=n, role="delta")) == 4 for n in range(3))


@pytest.mark.usefixtures("alone")
def test_a_scaler_that_skips_an_update_ends_a_step() -> None:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    with watched("torch"):
        for index in range(3):
            loss = net(x(index), scale=SCALE).square().mean()
            scaler.scale(loss * (float("inf") if index == 1 else 1)).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    run = recorded()
    assert len(run.steps) == 3 and {s.step for s in run.find(role="delta")} == {0, 2}
    assert {s.step for s in run.find(phase="gradient")} == {0, 1, 2}


@pytest.mark.usefixtures("alone")
def test_gradients_that_are_set_to_zero_are_dropped_too() -> None:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with watched("torch"):
        for index in range(4):
            net(x(index), scale=SCALE).square().mean().backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1e-3)
            if index == 2:
                optimizer.step()
            if index:
                optimizer.zero_grad(set_to_none=False)
    assert [sorted({s.micro for s in recorded().find(step=n, path="", role="input")}) for n in range(3)] == [
        [0, 1],
        [0],
        [0],
    ]


@pytest.mark.usefixtures("alone")
def test_tracing_and_exporting_are_no_training() -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with watched("torch"):
        torch.jit.trace(net, x(7))
        torch.fx.symbolic_trace(net)
        torch.export.export(net, (x(7),))
        assert not FILE.exists()
        net(x(0)).mean().backward()
        optimizer.step()
    assert len(recorded().steps) == 1 and not recorded().notes


@pytest.mark.usefixtures("alone")
def test_a_model_that_is_compiled_in_place_is_not_seen_to_run(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("PROBE_QUIET")
    net = Net()
    net.compile(backend="eager")
    with watched("torch"):
        train(net, torch.optim.SGD(net.parameters(), 0.1))
    assert not FILE.exists() and "nothing was recorded: no module ran with gradients" in capfd.readouterr().err


# ---- The callback for transformers, called as its Trainer calls it; the Trainer itself needs accelerate, see ``benchmarks.trainings.unaided``.


class CallbacksNet(nn.Linear):
    """Returns its loss by name."""

    def forward(self, x: torch.Tensor, **kwargs: Any) -> Any:
        return {"loss": super().forward(x).square().mean()}


def train_callbacks(callback: ProbeCallback, world_size: int = 1) -> list[float]:
    """Call a callback's events with what the Trainer gives them, in its order."""
    torch.manual_seed(0)
    net = CallbacksNet(4, 2)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    handler = CallbackHandler([DefaultFlowCallback(), callback], net, None, optimizer, schedule)
    strategies = {"logging_strategy": "no", "eval_strategy": "no", "save_strategy": "no", "logging_first_step": False}
    args = SimpleNamespace(world_size=world_size, average_tokens_across_devices=True, **strategies)
    state, control = TrainerState(max_steps=2, logging_steps=1), TrainerControl()
    losses: list[float] = []
    handler.on_init_end(args, state, control)
    handler.on_train_begin(args, state, control)
    for step in range(2):
        for micro in range(2):
            if not micro:
                handler.on_step_begin(args, state, control)
            loss = net(torch.full((3, 4), 1.0 + step + micro), num_items_in_batch=6)["loss"]
            loss.backward()
            losses.append(loss.item())
            if not micro:
                handler.on_substep_end(args, state, control)
        handler.on_pre_optimizer_step(args, state, control)
        optimizer.step()
        handler.on_optimizer_step(args, state, control)
        schedule.step()
        net.zero_grad()
        state.global_step += 1
        assert handler.on_step_end(args, state, control) is control
    handler.on_train_end(args, state, control)
    return losses


@pytest.mark.parametrize("world_size", [1, 2])
def test_the_events_of_the_trainer_make_a_recording(world_size: int, tmp_path: Path) -> None:
    losses = train_callbacks(ProbeCallback(tmp_path / "a.h5", steps=[0, 1]), world_size)
    run = Recording(tmp_path / "a.h5")
    assert len(run.steps) == 2 and not run.notes
    for step in range(2):
        assert len(run.find(step=step, role="delta")) == 2
        assert {s.micro for s in run.find(step=step, path="", role="output")} == {0, 1}
    scalars = {(step, name): value for step, name, value in run.scalars}
    totals = [world_size * sum(losses[:2]), world_size * sum(losses[2:])]
    assert scalars == pytest.approx({(0, "lr"): 0.1, (1, "lr"): 0.05, (0, "loss"): totals[0], (1, "loss"): totals[1]})
