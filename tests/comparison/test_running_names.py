"""Running statistics that the two sides call by other names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import probe
from probe.adapters.numpy import nn
from probe.adapters.numpy.tensor import Tensor
from probe.comparison.result import Verdict

USUAL = ("running_mean", "running_var")


class Norm(nn.Module):
    """Keeps running statistics, and does nothing else."""

    def __init__(
        self, names: tuple[str, ...], keeps: float, *, shape: tuple[int, ...] = (4,), backwards: bool = False
    ) -> None:
        start = (np.zeros(shape, np.float32), np.ones(shape, np.float32))
        buffers = [(name, nn.Buffer(each)) for name, each in zip(names, start, strict=False)]
        super().__init__(**dict(reversed(buffers) if backwards else buffers))
        self.names, self.keeps = names, keeps

    def forward(self, x: Tensor) -> Tensor:
        for name, new in zip(self.names, (x.data.mean(0), x.data.var(0)), strict=False):
            buffer = getattr(self, name)
            old = buffer.data
            buffer.data = (self.keeps * old + (1 - self.keeps) * new.reshape(old.shape)).astype(np.float32)
        return x * 1.0


class OwnNorm(Norm):
    """The same in somebody's own code."""


def record(path: Path, norms: list[Norm]) -> Path:
    nn.manual_seed(0)
    model = nn.Sequential(*(layer for norm in norms for layer in (nn.Linear(4, 4), norm)))
    optimizer = nn.SGD(model.parameters(), lr=0.01)
    with probe.capture(model, path):
        for step in range(2):
            x = np.random.default_rng(step).normal(size=(8, 4)).astype(np.float32)
            (model(Tensor(x)) ** 2.0).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            probe.step()
    return path


@pytest.fixture
def usual(tmp_path: Path) -> Path:
    return record(tmp_path / "a.h5", [Norm(USUAL, 0.9), Norm(USUAL, 0.9)])


@pytest.mark.parametrize("names", [("mean", "var"), ("m", "v"), ("ema", "ema_of_squares")], ids=str)
@pytest.mark.parametrize("keeps", [0.9, 0.1])
def test_they_are_paired_by_what_they_hold_and_a_wrong_momentum_is_found(
    names: tuple[str, str], keeps: float, usual: Path, tmp_path: Path
) -> None:
    b = record(tmp_path / "b.h5", [OwnNorm(names, keeps), OwnNorm(names, 0.9)])
    for path, other, place in ((usual, b, "b"), (b, usual, "a")):
        found = probe.compare(path, other)
        assert any(f"{names[0]} of OwnNorm with running_mean (×2, 98 % sure)" in text for text in found.warnings)
        if keeps == 0.9:
            assert found.verdict is Verdict.ALIGNED, found.first_divergence
            continue
        first = found.first_divergence
        assert first is not None and first.a[0].path == "1"
        assert getattr(first, place)[0].slot == names[0]
        assert f"{names[0]} matched with running_mean on the other side, 98 % sure" in first.evidence


def test_where_all_are_wrong_names_and_what_they_begin_with_tell(usual: Path, tmp_path: Path) -> None:
    b = record(tmp_path / "b.h5", [OwnNorm(("own_mean", "own_variance"), 0.1, backwards=True) for _ in range(2)])
    found = probe.compare(usual, b)
    assert found.first_divergence is not None
    [text] = [text for text in found.warnings if "matched without a mapping" in text]
    assert "own_mean of OwnNorm with running_mean (×2, 85 % sure)" in text
    assert "own_variance of OwnNorm with running_var (×2, 85 % sure)" in text


def test_axes_of_size_1_are_no_other_shape(usual: Path, tmp_path: Path) -> None:
    names = ("mean", "var")
    b = record(tmp_path / "b.h5", [OwnNorm(names, 0.9, shape=(1, 4)), OwnNorm(names, 0.1, shape=(1, 4))])
    first = probe.compare(usual, b).first_divergence
    assert first is not None and first.a[0].path == "3" and first.b[0].slot == "mean"


def test_what_one_side_alone_keeps_is_told(usual: Path, tmp_path: Path) -> None:
    b = record(tmp_path / "b.h5", [Norm(USUAL, 0.9), Norm((), 0.9)])
    told = (
        "recorded, and not compared for want of a counterpart: buffer running_mean of 3, buffer running_var of 3 in {}"
    )
    assert probe.compare(usual, b).warnings.count(told.format("A")) == 1
    assert told.format("B") in probe.compare(b, usual).warnings


def test_under_a_mapping_other_names_are_told_and_lines_of_params_pair_them(usual: Path, tmp_path: Path) -> None:
    b = record(tmp_path / "b.h5", [OwnNorm(("mean", "var"), 0.9), OwnNorm(("mean", "var"), 0.1)])
    mapping = tmp_path / "map.yaml"
    mapping.write_text("Norm: {1: 1, 3: 3}\n".replace("Norm", "Sequential"), encoding="utf-8")
    found = probe.compare(usual, b, mapping=mapping)
    assert found.verdict is Verdict.ALIGNED
    assert (
        "recorded, and not compared for want of a counterpart: buffer running_mean of * ×2, buffer running_var of * ×2 in A; buffer "
        "mean of * ×2, buffer var of * ×2 in B; lines of params in a mapping pair what has another name (docs/reference/mapping.md)"
    ) in found.warnings
    mapping.write_text("Norm:\n  params: {running_mean: mean, running_var: var}\n", encoding="utf-8")
    first = probe.compare(usual, b, mapping=mapping).first_divergence
    assert first is not None and first.a[0].path == "3" and first.b[0].slot == "mean"


def test_buffers_that_no_step_writes_to_are_not_guessed(tmp_path: Path) -> None:
    files = [
        record(tmp_path / f"{which}.h5", [kind((name,), 1.0), kind((name,), 1.0)])
        for which, kind, name in (("a", Norm, "table"), ("b", OwnNorm, "cache"))
    ]
    found = probe.compare(*files)
    assert not any("guess" in text for text in found.warnings), found.warnings


def test_that_both_began_with_zeros_pairs_nothing(tmp_path: Path) -> None:
    a = record(tmp_path / "a.h5", [Norm(("low",), 0.9), Norm(("low",), 0.9)])
    b = record(tmp_path / "b.h5", [OwnNorm(("top",), 0.5), OwnNorm(("top",), 0.5)])
    found = probe.compare(a, b)
    assert found.verdict is Verdict.ALIGNED, found.first_divergence
    assert any("buffer low of * ×2 in A; buffer top of * ×2 in B" in text for text in found.warnings), found.warnings
