"""Weights that something changes behind the optimizer's step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import probe
from probe.adapters.numpy import nn
from probe.adapters.numpy.tensor import Tensor
from probe.comparison.result import Verdict
from probe.records import Phase
from tests.toys import GPT, batch, gpt, loss_of, module, plain_step, record, rounding_otherwise

pytestmark = pytest.mark.thorough

Step = Callable[[nn.Module, nn.Optimizer, int], Tensor]


def rounded(model: nn.Module, optimizer: nn.Optimizer, number: int) -> Tensor:
    loss = plain_step(model, optimizer, number)
    for parameter in model.parameters():
        parameter.data[...] = parameter.data.astype(np.float16).astype(np.float32)
    return loss


def averaged(model: nn.Module, optimizer: nn.Optimizer, number: int) -> Tensor:
    before = [parameter.data.copy() for parameter in model.parameters()]
    loss = plain_step(model, optimizer, number)
    for old, parameter in zip(before, model.parameters(), strict=True):
        parameter.data[...] = 0.1 * old + 0.9 * parameter.data
    return loss


def one_clipped(model: nn.Module, optimizer: nn.Optimizer, number: int) -> Tensor:
    loss = plain_step(model, optimizer, number)
    weight = module(model, "layers.1.mlp.up").weight.data
    np.clip(weight, -0.1, 0.1, out=weight)
    return loss


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize("step", [rounded, averaged, one_clipped])
@pytest.mark.parametrize("side", ["A", "B"])
def test_one_side_alone(tmp_path: Path, task: str, step: Step, side: str) -> None:
    files = [
        record(tmp_path / f"{name}.h5", model, steps=3, step=step if name == side else plain_step, task=task)
        for name, model in (("A", gpt()), ("B", rounding_otherwise(gpt())))
    ]
    found = probe.compare(*files)
    first = found.first_divergence
    path = "layers.1.mlp.up" if step is one_clipped else ""
    assert first is not None and (first.step, first.phase, first.path) == (0, Phase.UPDATE, path), found
    assert first.evidence[0].startswith(f"{side}'s weights change in step 0 otherwise than by the optimizer's update: ")
    assert "weight of layers.1.mlp.up" in first.evidence[0] or step is not one_clipped
    assert first.evidence[1:] == ("the other side's do not",)
    assert found.divergences == (first,)


def test_both_sides(tmp_path: Path) -> None:
    files = [record(tmp_path / f"{name}.h5", gpt(), steps=3, step=averaged) for name in "ab"]
    assert probe.compare(*files).verdict is Verdict.ALIGNED


def averaged_by(share: float) -> Step:
    def step(model: nn.Module, optimizer: nn.Optimizer, number: int) -> Tensor:
        before = [parameter.data.copy() for parameter in model.parameters()]
        loss = plain_step(model, optimizer, number)
        for old, parameter in zip(before, model.parameters(), strict=True):
            parameter.data[...] = share * old + (1 - share) * parameter.data
        return loss

    return step


def clipped_at(bound: float) -> Step:
    def step(model: nn.Module, optimizer: nn.Optimizer, number: int) -> Tensor:
        loss = plain_step(model, optimizer, number)
        weight = module(model, "layers.1.mlp.up").weight.data
        np.clip(weight, -bound, bound, out=weight)
        return loss

    return step


def test_one_side_far_more(tmp_path: Path) -> None:
    files = [record(tmp_path / f"{share}.h5", gpt(), steps=2, step=averaged_by(share)) for share in (0.01, 0.5)]
    first = probe.compare(*files).first_divergence
    assert first is not None and first.evidence[1] == (
        "39 of them are changed so on the other side, too, by less than a quarter of that"
    )


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize(
    ("step", "wrong", "path", "times"),
    [(averaged_by(0.1), averaged_by(0.2), "", "2"), (clipped_at(0.1), clipped_at(0.2), "layers.1.mlp.up", "0.")],
    ids=["averaged", "clipped"],
)
def test_both_sides_and_not_alike(tmp_path: Path, task: str, step: Step, wrong: Step, path: str, times: str) -> None:
    files = [
        record(tmp_path / f"{name}.h5", model, steps=2, step=how, task=task)
        for name, model, how in (
            ("a", gpt(), step), ("b", rounding_otherwise(gpt()), step), ("c", rounding_otherwise(gpt()), wrong),
        )
    ]  # fmt: skip
    assert probe.compare(*files[:2]).verdict is Verdict.ALIGNED
    found = probe.compare(files[0], files[2])
    first = found.first_divergence
    assert first is not None and (first.step, first.phase, first.path) == (0, Phase.UPDATE, path)
    assert first.evidence[0].startswith(
        "both sides change weights in step 0 otherwise than by the optimizer's update, and not alike: "
    )
    assert first.evidence[1].startswith(f"B's changes are {times}") and first.hint.startswith(
        "look at what runs behind"
    )
    assert found.divergences == (first,)


@pytest.mark.parametrize("step", [rounded, averaged, one_clipped])
def test_both_sides_with_other_rounding(tmp_path: Path, step: Step) -> None:
    a, b = (
        record(tmp_path / f"{name}.h5", model, steps=4, step=step)
        for name, model in (("a", gpt()), ("b", rounding_otherwise(gpt())))
    )
    assert probe.compare(a, b).verdict is Verdict.ALIGNED


def test_one_weight_of_one_side_where_both_change_others(tmp_path: Path) -> None:
    def both(model: nn.Module, optimizer: nn.Optimizer, number: int) -> Tensor:
        before = module(model, "layers.1.mlp.up").weight.data.copy()
        loss = averaged(model, optimizer, number)
        module(model, "layers.1.mlp.up").weight.data[...] = before
        return loss

    files = [
        record(tmp_path / f"{name}.h5", gpt(), steps=3, step=step) for name, step in (("a", averaged), ("b", both))
    ]
    first = probe.compare(*files).first_divergence
    assert first is not None and (first.step, first.phase) == (0, Phase.UPDATE)
    assert first.evidence[0].startswith("B's weights stay as they were in step 0, whatever the optimizer does: 1 of ")
    assert "weight of layers.1.mlp.up" in first.evidence[0]


def test_several_updates_in_a_step_are_added_up(tmp_path: Path) -> None:
    def twice(model: nn.Module, optimizer: nn.Optimizer, number: int) -> Tensor:
        loss = loss_of(model(batch(number)), batch(number))
        loss.backward()
        optimizer.step()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    a, b = (
        record(tmp_path / f"{name}.h5", gpt(), steps=2, step=step) for name, step in (("a", plain_step), ("b", twice))
    )
    first = probe.compare(a, b).first_divergence
    assert first is not None and not any("otherwise than by the optimizer's update" in text for text in first.evidence)


class Shifted(GPT):
    """Adds one number to all logits, which the loss does not see: of its gradient there is rounding alone, and Adam makes full steps of that."""

    def forward(self, ids: Tensor) -> Tensor:
        return GPT.forward(self, ids) + self.shift.sum() * 0.1


def test_what_both_sides_make_of_noisy_updates(tmp_path: Path) -> None:
    files = []
    for name, change in (("a", lambda model: model), ("b", rounding_otherwise)):
        model = gpt()
        model.__class__ = Shifted
        model.shift = nn.Parameter(np.linspace(0.5, 1, 64, dtype=np.float32))
        files.append(record(tmp_path / f"{name}.h5", change(model), steps=3, step=averaged))
    assert probe.compare(*files).verdict is Verdict.ALIGNED
