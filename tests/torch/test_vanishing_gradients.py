"""Gradients of which little is left: what cancels out, and what is too small for float16, are no faults."""

from __future__ import annotations

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


class Rounded(torch.autograd.Function):
    """Passes a gradient back that is one unit of its dtype at 0 larger, in every second element."""

    @staticmethod
    def forward(ctx: Any, x: Any, units: float) -> Any:
        ctx.units = units
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        second = torch.arange(gradient.numel()).reshape(gradient.shape) % 2
        return gradient + (ctx.units * 2.0**-24 * second).to(gradient.dtype), None


class Last(torch.nn.Linear):
    units = 0.0

    def forward(self, x: Any) -> Any:
        return super().forward(Rounded.apply(x, self.units))


@pytest.mark.parametrize(("units", "size", "verdict"), [(1, 3e-7, Verdict.ALIGNED), (1000, 3e-4, Verdict.DIVERGED)])
def test_below_float16_s_range_a_unit_is_a_large_part(
    tmp_path: Path, units: float, size: float, verdict: Verdict
) -> None:
    def run(path: Path, units: float) -> Path:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(16, 16), Last(16, 16)).half()
        model[1].units = units
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


class Shifted(torch.autograd.Function):
    """Passes back a gradient of which every row is off by the same, as where the mean of all rows is taken away."""

    @staticmethod
    def forward(ctx: Any, x: Any, share: float) -> Any:
        ctx.share = share
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient + ctx.share * gradient.square().mean().sqrt(), None


def record_bias(path: Path, share: float, offset: float = 0.0) -> Path:
    """A bias before a batch norm: its gradient is a sum over 4096 rows that is 0."""
    torch.manual_seed(0)
    linear, norm = torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8)
    model = torch.nn.Sequential(linear, norm)
    if share:
        norm.register_forward_pre_hook(lambda module, inputs: (Shifted.apply(inputs[0], share),))
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
