"""Updates that no optimizer was seen to make: by hand, or in copies that belong to no parameter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import probe
from probe.adapters.numpy import nn
from probe.adapters.numpy.tensor import Tensor
from probe.comparison.result import Kind, Verdict
from probe.comparison.run import Comparison
from probe.records import Phase
from tests.toys import batch, gpt, loss_of, module, record

Step = Callable[[nn.Module, nn.Optimizer, int], Tensor]
LR = 0.05


def by_hand(times: float = 1.0, without: str = "", from_step: int = 0) -> Step:
    """Return a step that updates the weights without an optimizer."""

    def step(model: nn.Module, optimizer: nn.Optimizer, number: int) -> Tensor:
        loss = loss_of(model(batch(number)), batch(number))
        loss.backward()
        rate = LR * (times if number >= from_step else 1.0)
        left = module(model, without).parameters() if without else []
        for parameter in model.parameters():
            if parameter.grad is not None and all(parameter is not each for each in left):
                parameter.data[...] -= (rate * parameter.grad.data).astype(np.float32)
            parameter.grad = None
        return loss

    return step


def compared(folder: Path, a: Step, b: Step, task: str = "statistics") -> Comparison:
    return probe.compare(
        *(record(folder / f"{n}.h5", gpt(), steps=3, step=s, task=task) for n, s in (("a", a), ("b", b)))
    )


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize("times", [1.05, 2.0])
@pytest.mark.parametrize("from_step", [0, 1])
def test_another_rate_is_found_where_it_begins(tmp_path: Path, task: str, times: float, from_step: int) -> None:
    found = compared(tmp_path, by_hand(), by_hand(times, from_step=from_step), task)
    first = found.first_divergence
    assert first is not None and (first.step, first.phase, first.path) == (from_step, Phase.UPDATE, ""), found
    assert first.hint == f"B's update is {times:g} times A's: look at the learning rate and its schedule"


def test_the_same_is_aligned(tmp_path: Path) -> None:
    def otherwise(model: nn.Module, optimizer: nn.Optimizer, number: int) -> Tensor:
        loss = by_hand()(model, optimizer, number)
        for parameter in model.parameters():
            parameter.data[...] = np.nextafter(parameter.data, np.float32(np.inf) * (number % 2 * 2 - 1))
        return loss

    assert compared(tmp_path, by_hand(), otherwise).verdict is Verdict.ALIGNED


def test_weights_that_stay_as_they_are_were_not_updated(tmp_path: Path) -> None:
    first = compared(tmp_path, by_hand(), by_hand(without="layers.1.mlp.up")).first_divergence
    assert first is not None and (first.phase, first.kind, first.path) == (
        Phase.UPDATE,
        Kind.MISSING,
        "layers.1.mlp.up",
    )
    assert first.hint.startswith(
        "no optimizer was seen to step in B, and at its probe.step() this weight was as before"
    )
