"""The callback for transformers, called as its Trainer calls it; the Trainer itself needs accelerate, see ``benchmarks.trainings.unaided``."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
from torch import nn  # noqa: E402
from transformers.trainer_callback import CallbackHandler, DefaultFlowCallback, TrainerControl, TrainerState  # noqa: E402

from probe.integrations.transformers import ProbeCallback  # noqa: E402
from probe.testing import Recording  # noqa: E402


class Net(nn.Linear):
    """Returns its loss by name."""

    def forward(self, x: torch.Tensor, **kwargs: Any) -> Any:
        return {"loss": super().forward(x).square().mean()}


def train(callback: ProbeCallback, world_size: int = 1) -> list[float]:
    """Call a callback's events with what the Trainer gives them, in its order."""
    torch.manual_seed(0)
    net = Net(4, 2)
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
    losses = train(ProbeCallback(tmp_path / "a.h5", steps=[0, 1]), world_size)
    run = Recording(tmp_path / "a.h5")
    assert len(run.steps) == 2 and not run.notes
    for step in range(2):
        assert len(run.find(step=step, role="delta")) == 2
        assert {s.micro for s in run.find(step=step, path="", role="output")} == {0, 1}
    scalars = {(step, name): value for step, name, value in run.scalars}
    totals = [world_size * sum(losses[:2]), world_size * sum(losses[2:])]
    assert scalars == pytest.approx({(0, "lr"): 0.1, (1, "lr"): 0.05, (0, "loss"): totals[0], (1, "loss"): totals[1]})
