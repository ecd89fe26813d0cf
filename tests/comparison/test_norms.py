"""What makes a value larger or smaller as a whole, by less than its elements are off: its norm tells, or its mean."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import probe
from probe.adapters.numpy import nn
from probe.adapters.numpy.tensor import Tensor
from probe.comparison.result import Verdict
from probe.records import Phase
from tests.toys import batch, gpt, loss_of, module, plain_step, record, replaced, rounding_otherwise, scaled_gradient

UP = "layers.1.mlp.up"
BY = 5.6e-7
"""9 unit roundoffs of float32: the norm may be off by 6, elements by 22 behind what is off by 3"""
FACTORS = (1 + BY * (1 + 1.2 * (-1.0) ** np.arange(32))).astype(np.float32)
"""off by 1.6 times as much in all, up and down"""


def scaling(since: int = 0) -> nn.Module:
    """Return a model with another order of sums, of which one layer returns too much from a call on."""
    model, calls = rounding_otherwise(gpt()), []
    forward = type(module(model, UP)).forward

    def scaled(self: nn.Module, x: Tensor) -> Tensor:
        calls.append(None)
        return forward(self, x) * Tensor(FACTORS if len(calls) > since else np.ones_like(FACTORS))

    replaced(model, UP, forward=scaled)
    return model


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_a_small_factor_of_a_module_is_named(tmp_path: Path, task: str) -> None:
    a, b = record(tmp_path / "a.h5", gpt(), task=task), record(tmp_path / "b.h5", scaling(), task=task)
    first = probe.compare(a, b).first_divergence
    assert first is not None and (first.step, first.phase, first.path) == (0, Phase.FORWARD, UP)
    assert first.measure == "of the norm" and first.error == pytest.approx(BY, rel=0.3)
    assert (
        f"its norm is off by {first.error:.1e}, which rounding makes no larger than {first.limit:.1e}" in first.evidence
    )


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize("is_constant", [True, False])
def test_a_small_constant_is_named(tmp_path: Path, task: str, is_constant: bool) -> None:
    """14 unit roundoffs, where elements may be off by 22; up and down they are noise."""
    faulty = rounding_otherwise(gpt())
    forward = type(module(faulty, UP)).forward

    def shifted(self: nn.Module, x: Tensor) -> Tensor:
        y = forward(self, x)
        by = 14 * 2.0**-24 * np.sqrt(np.mean(y.data**2)) * np.ones_like(y.data)
        return y + (by if is_constant else by * (-1.0) ** np.arange(y.data.shape[-1])).astype(np.float32)

    replaced(faulty, UP, forward=shifted)
    a, b = record(tmp_path / "a.h5", gpt(), task=task), record(tmp_path / "b.h5", faulty, task=task)
    first = probe.compare(a, b).first_divergence
    assert (first and first.path) == (UP if is_constant else None)


def test_behind_a_fault_norms_are_consequences(tmp_path: Path) -> None:
    a, b = record(tmp_path / "a.h5", gpt()), record(tmp_path / "b.h5", scaling())
    assert [each.path for each in probe.compare(a, b).divergences] == [UP]


def test_weights_that_updates_have_moved_apart_change_norms_too(tmp_path: Path) -> None:
    """So such a factor is only seen where the step is known to begin with the same weights."""
    a, b = record(tmp_path / "a.h5", gpt(), steps=2), record(tmp_path / "b.h5", scaling(since=1), steps=2)
    assert probe.compare(a, b).verdict is Verdict.ALIGNED


def scaled_loss(model: nn.Module, optimizer: nn.Optimizer, number: int) -> Tensor:
    loss = loss_of(model(batch(number)), batch(number))
    scaled_gradient(loss, 1 + 5e-7).backward()
    optimizer.step()
    return loss


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_a_small_factor_of_the_loss_is_named(tmp_path: Path, task: str) -> None:
    a = record(tmp_path / "a.h5", gpt(), task=task)
    b = record(tmp_path / "b.h5", rounding_otherwise(gpt()), task=task, step=scaled_loss)
    first = probe.compare(a, b).first_divergence
    assert first is not None and (first.phase, first.measure) == (Phase.LOSS, "of the norm")
    clean = record(tmp_path / "c.h5", rounding_otherwise(gpt()), task=task, step=plain_step)
    assert probe.compare(a, clean).verdict is Verdict.ALIGNED


def test_a_factor_in_few_elements_is_not_charged_to_what_is_made_of_them(tmp_path: Path) -> None:
    """192 elements say too little of themselves, and 384 behind them say no more."""
    model = rounding_otherwise(gpt())
    replaced(model, "layers.1.norm2", forward=lambda self, x: nn.RMSNorm.forward(self, x) * (1 + 8e-7))
    a, b = record(tmp_path / "a.h5", gpt()), record(tmp_path / "b.h5", model)
    assert probe.compare(a, b).verdict is Verdict.ALIGNED
