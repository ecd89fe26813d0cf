"""Gradients of which little is left: what cancels out, and what is too small for float16, are no faults."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import probe  # noqa: E402
from probe.comparison.result import Verdict  # noqa: E402
from probe.records import Phase  # noqa: E402


class Attention(torch.nn.Module):
    """Of which the softmax may add up in another order; keys have a large common part, which it does not see."""

    def __init__(self, scale: float, offset: float) -> None:
        super().__init__()
        self.query, self.key, self.value = (torch.nn.Linear(32, 32) for _ in range(3))
        self.scale, self.offset, self.swapped = scale, offset, False

    def forward(self, x: Any) -> Any:
        x = x + self.offset
        scores = self.query(x) @ self.key(x).transpose(-1, -2) * self.scale
        weights = scores.flip(-1).softmax(-1).flip(-1) if self.swapped else scores.softmax(-1)
        value = self.value(x)
        return weights.flip(-1) @ value.flip(-2) if self.swapped else weights @ value


def record(path: Path, dtype: Any, swapped: bool, loss_scale: float, offset: float, factor: float = 1.0) -> Path:
    torch.manual_seed(0)
    model = torch.nn.Sequential(Attention(0.2, offset), torch.nn.Linear(32, 8)).to(dtype)
    model[0].swapped = swapped
    if factor != 1:
        model[0].key.weight.register_hook(lambda gradient: gradient * factor)
    x, target = torch.randn(4, 64, 32).to(dtype), torch.randn(4, 64, 8).to(dtype)
    with probe.capture(model, path):
        loss = ((model(x) - target) ** 2).mean() * loss_scale
        loss.backward()
        probe.step(loss=loss.item())
    return path


def test_what_is_left_is_rounding(tmp_path: Path) -> None:
    a = record(tmp_path / "a.h5", torch.float32, False, 1.0, 100.0)
    b = record(tmp_path / "b.h5", torch.float32, True, 1.0, 100.0)
    found = probe.compare(a, b)
    assert found.verdict is Verdict.ALIGNED, found.first_divergence


def passing_back(module: Any, change: Callable[[Any], Any]) -> None:
    """Let a module pass back to its input what is made of the gradient that it would."""

    class Changed(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return change(gradient)

    module.register_forward_pre_hook(lambda _, inputs: (Changed.apply(inputs[0]),))


def units_larger(units: float) -> Callable[[Any], Any]:
    """Return what makes every second element larger by units of float16 at 0."""

    def change(gradient: Any) -> Any:
        second = torch.arange(gradient.numel()).reshape(gradient.shape) % 2
        return gradient + (units * 2.0**-24 * second).to(gradient.dtype)

    return change


@pytest.mark.parametrize(("units", "size", "verdict"), [(1, 3e-7, Verdict.ALIGNED), (1000, 3e-4, Verdict.DIVERGED)])
def test_below_float16_s_range_a_unit_is_a_large_part(
    tmp_path: Path, units: float, size: float, verdict: Verdict
) -> None:
    def run(path: Path, units: float) -> Path:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)).half()
        passing_back(model[1], units_larger(units))
        with probe.capture(model, path):
            y = model(torch.randn(64, 16).half())
            y.backward(torch.full_like(y, size))
            probe.step()
        return path

    assert probe.compare(run(tmp_path / "a.h5", 0.0), run(tmp_path / "b.h5", units)).verdict is verdict


def test_a_factor_is_named_all_the_same(tmp_path: Path) -> None:
    a = record(tmp_path / "a.h5", torch.float32, False, 1.0, 100.0)
    b = record(tmp_path / "b.h5", torch.float32, True, 1.0, 100.0, factor=1.1)
    first = probe.compare(a, b).first_divergence
    assert first is not None and (first.phase.label, first.path) == ("gradient", "0.key")


def record_bias(path: Path, share: float, offset: float = 0.0) -> Path:
    """A bias before a batch norm: its gradient is a sum over 4096 rows that is 0.

    Every row is off by the same share of the gradient, as where the mean of all rows is taken away.
    """
    torch.manual_seed(0)
    linear, norm = torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8)
    model = torch.nn.Sequential(linear, norm)
    passing_back(norm, lambda gradient: gradient + share * gradient.square().mean().sqrt())
    linear.bias.register_hook(lambda gradient: gradient + offset)
    x, target = torch.randn(4096, 8), torch.randn(4096, 8)
    with probe.capture(model, path):
        loss = ((model(x) - target) ** 2).mean()
        loss.backward()
        probe.step(loss=loss.item())
    return path


def test_a_sum_of_rows_that_cancels_out_has_the_errors_of_all_rows(tmp_path: Path) -> None:
    a, b = record_bias(tmp_path / "a.h5", 0.0), record_bias(tmp_path / "b.h5", 3e-7)
    found = probe.compare(a, b)
    assert found.verdict is Verdict.ALIGNED, found.first_divergence
    first = probe.compare(a, record_bias(tmp_path / "c.h5", 3e-7, 1e-5)).first_divergence
    assert first is not None and (first.phase, first.path) == (Phase.GRADIENT, "0")
