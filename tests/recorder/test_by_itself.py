"""Recordings that end their steps by themselves, for programs without a line of probe."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import probe
from probe.errors import ProbeWarning
from probe.session import start_by_itself
from probe.testing import Recording, sample
from tests.recorder.long_runs import Net, alone  # noqa: F401
from tests.toy import nn
from tests.toy.tensor import Tensor, no_grad


class Squares(nn.Module):
    """A loss function."""

    def forward(self, x: Tensor) -> Tensor:
        return (x * x).mean()


class WithLoss(Net):
    """A model that returns its loss among other things."""

    def forward(self, x: Tensor, **kwargs: object) -> Any:
        y = super().forward(x)
        return {"logits": y, "loss": (y * y).mean()}


def batch(index: int = 0) -> Tensor:
    return Tensor(sample((5, 4), index))


def begun(model: Any, **options: Any) -> None:
    assert start_by_itself(model, "a.h5", **options) == Path("a.h5")


def ended() -> Recording:
    probe.stop()
    return Recording(Path("a.h5"))


def passes(run: Recording) -> list[tuple[int, list[int]]]:
    """Return each step with its passes: 0, 1 … with gradients, −1 … without."""
    micros: dict[int, set[int]] = {int(step): set() for step in run.steps["step"]}
    for seen in run.find(phase="forward", path="", role="input"):
        micros[seen.step].add(seen.micro)
    return [(step, sorted(found)) for step, found in sorted(micros.items())]


def updated(run: Recording) -> set[int]:
    return {seen.step for seen in run.find(phase="update", role="delta")}


def scalars(run: Recording, name: str) -> dict[int, float]:
    return {step: value for step, each, value in run.scalars if each == name}


def test_a_step_is_an_optimizers_step_with_its_micro_batches_and_numbers() -> None:
    net = WithLoss()
    optimizer = nn.SGD(net.parameters(), 0.1)
    losses = []
    begun(net)
    for step in range(3):
        returned = []
        for micro in range(2):
            loss = net(batch(2 * step + micro))["loss"]
            (loss * 0.5).backward()
            returned.append(float(loss.data))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(np.mean(returned))
        optimizer.param_groups[0]["lr"] *= 0.5
        with no_grad():
            net(batch(9))
    run = ended()
    assert passes(run) == [(0, [0, 1]), (1, [-1, 0, 1]), (2, [-1, 0, 1]), (3, [-1])]
    assert updated(run) == {0, 1, 2} == {seen.step for seen in run.find(phase="gradient")}
    assert scalars(run, "lr") == pytest.approx({0: 0.1, 1: 0.05, 2: 0.025})
    assert scalars(run, "loss") == pytest.approx(dict(enumerate(losses)))
    assert not run.notes


def test_it_is_what_the_same_program_records_with_the_three_lines() -> None:
    """In the order of the three lines in the README; what the optimizer left is in the step that it ended."""
    runs = []
    for by_hand in (True, False):
        nn.manual_seed(3)
        net = Net()
        optimizer = nn.AdamW(net.parameters(), 0.1)
        probe.start(net, "a.h5", overwrite=True) if by_hand else begun(net, overwrite=True)
        for step in range(3):
            net(batch(step)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            if by_hand:
                probe.step()
        runs.append(ended())
    first, second = ([(s.step, s.phase, s.role, s.path, s.slot, s.micro, s.norm) for s in run.seen] for run in runs)
    assert first == second and len(first) > 100


def test_losses_that_are_shares_of_a_whole_add_up() -> None:
    net = WithLoss()
    optimizer = nn.SGD(net.parameters(), 0.1)
    begun(net)
    losses = [net(batch(index), num_items_in_batch=10)["loss"] for index in range(2)]
    for loss in losses:
        loss.backward()
    optimizer.step()
    assert scalars(ended(), "loss") == pytest.approx({0: sum(float(loss.data) for loss in losses)})


def test_a_loss_function_outside_of_the_model_tells_the_loss() -> None:
    net, squares = Net(), Squares()
    optimizer = nn.SGD(net.parameters(), 0.1)
    begun(net, functions=[squares])
    losses = []
    for step in range(2):
        loss = squares(net(batch(step)))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.data))
        with no_grad():
            squares(net(batch(7)))  # of an evaluation
    assert scalars(ended(), "loss") == pytest.approx(dict(enumerate(losses)))
    assert not len(squares.post_hooks)


def test_optimizers_that_use_one_backward_pass_share_a_step() -> None:
    net = Net()
    both = [nn.SGD(net.embed.parameters(), 0.1), nn.SGD(net.head.parameters(), 0.1)]
    begun(net)
    for step in range(2):
        net(batch(step)).sum().backward()
        for optimizer in both:
            optimizer.step()
            optimizer.zero_grad()
    run = ended()
    assert passes(run) == [(0, [0]), (1, [0])]
    assert {(s.step, s.path) for s in run.find(role="delta")} == {(n, p) for n in (0, 1) for p in ("embed", "head")}


def test_optimizers_that_take_turns_have_a_step_each() -> None:
    first, second = Net(), Net()
    pairs = [(net, nn.SGD(net.parameters(), 0.1)) for net in (first, second)]
    start_by_itself([first, second], "a.h5")
    for turn in range(4):
        net, optimizer = pairs[turn % 2]
        net(batch(turn)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    run = ended()
    assert {(s.step, s.path.split(".")[0]) for s in run.find(role="delta")} == {(n, str(n % 2)) for n in range(4)}


def test_steps_of_optimizers_that_use_no_gradients_do_not_count() -> None:
    net, other = Net(), Net()
    optimizer, others = nn.SGD(net.parameters(), 0.1), nn.SGD(other.parameters(), 0.1)
    begun(net)
    optimizer.step()  # as a schedule wants it
    with no_grad():
        net(batch())
    optimizer.step()
    for step in range(2):
        other(batch(step)).sum().backward()
        others.step()
        net(batch(step)).sum().backward()
        others.step()
        net(batch(step)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert passes(ended()) == [(0, [-1, 0, 1]), (1, [0, 1])]


@pytest.mark.parametrize("task", ["statistics", "norms"])
@pytest.mark.parametrize("zeros", [False, True])
def test_a_step_without_an_update_ends_where_its_gradients_are_dropped(zeros: bool, task: str) -> None:
    """As a GradScaler drops them after an overflow."""
    net = Net()
    optimizer = nn.SGD(net.parameters(), 0.1)
    begun(net, task=task)
    for step in range(4):
        for micro in range(2):
            net(batch(2 * step + micro)).sum().backward()
        if step != 1:
            optimizer.step()
        for parameter in net.parameters():
            if zeros:
                parameter.grad.data[...] = 0
                parameter.grad.version += 1
            else:
                parameter.grad = None
    run = ended()
    assert [int(step) for step in run.steps["step"]] == [0, 1, 2, 3]
    assert {s.step for s in run.find(phase="update", role="param_grad")} == {0, 2, 3}
    if task == "statistics":
        assert passes(run) == [(step, [0, 1]) for step in range(4)] and updated(run) == {0, 2, 3}


def test_clipped_gradients_are_not_dropped() -> None:
    net = Net()
    optimizer = nn.SGD(net.parameters(), 0.1)
    begun(net)
    for micro in range(3):
        net(batch(micro)).sum().backward()
        for parameter in net.parameters():
            parameter.grad.data *= 0.5
            parameter.grad.version += 1
    optimizer.step()
    assert passes(ended()) == [(0, [0, 1, 2])]


@pytest.mark.parametrize(
    "options", [{"steps": [2]}, {"steps": [2], "modules": ["head"]}, {"steps": [2], "phases": ["update"]}]
)
def test_steps_that_are_not_recorded_count(options: dict[str, Any]) -> None:
    net = Net()
    optimizer = nn.SGD(net.parameters(), 0.1)
    begun(net, **options)
    for step in range(4):
        for micro in range(2):
            net(batch(2 * step + micro)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    run = ended()
    assert [int(step) for step in run.steps["step"]] == [2]
    assert updated(run) == {2} and set(scalars(run, "lr")) == {2}


def test_triggers_see_the_loss() -> None:
    net = WithLoss()
    optimizer = nn.SGD(net.parameters(), 0.0)
    begun(net, task="norms", on_loss_jump=2)
    for step in range(12):
        net(Tensor(sample((5, 4), 1) * (100 if step == 10 else 1)))["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
    assert any("loss" in text and step == 11 for step, _, text in ended().notes)


def test_a_program_that_calls_step_ends_its_steps_itself() -> None:
    net = Net()
    optimizer = nn.SGD(net.parameters(), 0.1)
    begun(net)
    for step in range(4):
        net(batch(step)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 2:
            probe.step(loss=step)
    run = ended()
    assert passes(run)[0] == (0, [0])  # the first two had ended before the program was heard of
    assert [int(step) for step in run.steps["step"]] == [0, 1, 2]
    assert scalars(run, "loss") == {1: 1, 2: 3}


def test_a_program_that_calls_start_records_itself() -> None:
    net = Net()
    optimizer = nn.SGD(net.parameters(), 0.1)
    begun(net)
    net(batch()).sum().backward()
    optimizer.step()
    probe.start(net, "mine.h5")
    net(batch()).sum().backward()
    optimizer.step()
    probe.step()
    probe.stop()
    assert len(Recording(Path("a.h5")).steps) == 1 == len(Recording(Path("mine.h5")).steps)


def test_nothing_is_raised_and_nothing_is_kept() -> None:
    net = WithLoss()
    optimizer = nn.SGD(net.parameters(), 0.1)
    begun(net, on_nonfinite=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ProbeWarning)
        for value in (np.nan, 1.0):
            net(Tensor(np.full((5, 4), value, np.float32)))["loss"].backward()
            optimizer.step()
            optimizer.zero_grad()
    run = ended()
    assert len(run.steps) == 2
    assert not len(net.pre_hooks) and not len(nn.step_pre_hooks) and not len(nn.step_post_hooks)
