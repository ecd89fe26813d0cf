"""Errors that are known from below only: one side flattens the batch, so the two sketches cannot be compared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import probe
from probe.adapters.numpy import nn
from probe.adapters.numpy.tensor import Tensor
from probe.comparison.result import Verdict
from probe.records import Role
from probe.report.text import render
from tests.comparison.planted import Recorder, changed
from tests.files import Tensor as Tensors
from tests.files import write_tensors
from tests.toys import MLP, replaced


def _flat(self: Any, x: Tensor) -> Tensor:
    return MLP.forward(self, x.reshape(-1, x.shape[-1])).reshape(*x.shape)


def _noisy(error: float, base: type[nn.Module]) -> Callable[..., Tensor]:
    """Return a forward whose result has an error that no statistic shows."""

    def forward(self: Any, x: Tensor) -> Tensor:
        y = base.forward(self, x)
        noise = np.random.default_rng(3).standard_normal(y.shape) * (abs(y.data) < abs(y.data).max() / 2)
        y.data += (noise * error * np.linalg.norm(y.data) / np.linalg.norm(noise)).astype(np.float32)
        return y

    return forward


def _doubled(self: Any, x: Tensor) -> Tensor:
    return nn.Linear.forward(self, x) * 2.0


def _pair(run: Recorder, made: float) -> probe.Comparison:
    """A flattens the batch of one MLP; in B its input has an error of 9e-7, and what its gate makes of it one of ``made``."""
    flat = changed(lambda model: replaced(model, "layers.1.mlp", forward=_flat))

    def disturb(model: nn.Module) -> None:
        replaced(model, "layers.1.norm2", forward=_noisy(8e-7, nn.RMSNorm))
        replaced(model, "layers.1.mlp.gate", forward=_noisy(made, nn.Linear))

    return probe.compare(run(flat), run(changed(disturb)))


def test_an_input_known_from_below_explains_as_much_as_what_it_was_made_from(run: Recorder) -> None:
    result = _pair(run, 4e-6)
    given = next(slot for slot in result["layers.1.mlp.gate"] if slot.role is Role.INPUT)
    assert given.metrics.is_lower_bound
    assert given.metrics.rel_l2 < 4e-7
    assert result.verdict is Verdict.ALIGNED, result.divergences


def test_a_larger_error_behind_it_is_still_found(run: Recorder) -> None:
    first = _pair(run, 1e-3).first_divergence
    assert first is not None
    assert first.path == "layers.1.mlp.gate"


@pytest.mark.parametrize("option", ["reference", "noise"])
def test_a_bound_is_held_against_no_measured_floor(run: Recorder, option: str) -> None:
    """B's norm is as far off as A's, its gate has one element off by 2e-3, which is 4e-4 of the norm: a bound, and no error of that size everywhere."""

    def loudest(self: Any, x: Tensor) -> Tensor:
        y = nn.Linear.forward(self, x)
        y.data.reshape(-1)[abs(y.data).argmax()] *= np.float32(1 + 2e-3)
        return y

    def noise(model: nn.Module) -> None:
        replaced(model, "layers.1.norm2", forward=_noisy(1e-4, nn.RMSNorm))

    def disturb(model: nn.Module) -> None:
        replaced(model, "layers.1.norm2", forward=_noisy(-1e-4, nn.RMSNorm))
        replaced(model, "layers.1.mlp", forward=_flat)
        replaced(model, "layers.1.mlp.gate", forward=loudest)

    other, b = run(changed(noise)), run(changed(disturb))
    a, further = (other, run()) if option == "reference" else (run(), other)
    result = probe.compare(a, b, **{option: further})
    gate = next(slot for slot in result["layers.1.mlp.gate"] if slot.role is Role.OUTPUT)
    assert gate.metrics.is_lower_bound and 3e-4 < gate.metrics.rel_l2 < 7e-4
    assert [found.path for found in result.divergences if found.phase.label == "forward"] == []
    text = next(text for text in result.warnings if "sketches tell only a bound" in text)
    assert text.startswith(f"{option}: of ") and text.endswith(
        " pairs of tensors sketches tell only a bound of the error (other shapes, or several in the place of one): the "
        "built-in model judges there; values would tell more (task='tensor')"
    )


def test_the_text_says_that_the_error_may_be_larger(run: Recorder) -> None:
    flat = changed(lambda model: replaced(model, "layers.1.mlp", forward=_flat))
    result = probe.compare(
        run(flat), run(changed(lambda model: replaced(model, "layers.1.mlp.gate", forward=_doubled)))
    )
    assert result.first_divergence is not None
    assert result.first_divergence.path == "layers.1.mlp.gate"
    assert "  rel ≥5.0e-01 (up to " in render(result).plain


def test_sketches_of_one_shape_say_how_large_an_error_is(run: Recorder) -> None:
    result = probe.compare(run(), run(changed(lambda m: replaced(m, "norm", forward=_noisy(1e-5, nn.RMSNorm)))))
    assert result.first_divergence is not None
    assert not result.first_divergence.metrics.is_lower_bound
    assert result.first_divergence.metrics.rel_l2 == pytest.approx(1e-5, rel=0.5)


def test_what_overflows_is_not_taken_for_equal(tmp_path: Path) -> None:
    x = np.full((2, 4, 3), 1e200)
    a = write_tensors(tmp_path / "a.h5", [Tensors(x)], values=False)
    b = write_tensors(tmp_path / "b.h5", [Tensors(2 * x.reshape(8, 3))], values=False)
    (slot,) = [each for each in probe.compare(a, b).slots if each.role is Role.OUTPUT]
    assert slot.verdict not in ("equal", "noise"), slot
