"""A module without weights that one side alone has, behind modules that were not compared: it is not what is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import probe  # noqa: E402
from probe.comparison.result import Kind, Verdict  # noqa: E402
from probe.records import Phase  # noqa: E402

WIDTH = 16
MAPPING = {"Net": {"block.inner": "part.first"}}


class Block(torch.nn.Module):
    """Holds a layer that the mapping names, and one that it does not."""

    def __init__(self, inner: str, gate: str, factor: float) -> None:
        super().__init__()
        self.names, self.factor = (inner, gate), factor
        for name in self.names:
            self.add_module(name, torch.nn.Linear(WIDTH, WIDTH))

    def forward(self, x: Any) -> Any:
        inner, gate = (getattr(self, name) for name in self.names)
        x = inner(x)
        return x * (self.factor * gate(x)).sigmoid()


class Net(torch.nn.Module):
    def __init__(self, names: tuple[str, str, str], has_pool: bool, factor: float) -> None:
        super().__init__()
        block, *inside = names
        self.add_module(block, Block(*inside, factor))
        self.block_name, self.pool = block, torch.nn.AdaptiveAvgPool1d(1) if has_pool else None
        self.head = torch.nn.Linear(WIDTH, 4)

    def forward(self, x: Any) -> Any:
        x = getattr(self, self.block_name)(x)
        return self.head(x.mean(1) if self.pool is None else self.pool(x.mT).squeeze(-1))


def record(path: Path, names: tuple[str, str, str], has_pool: bool, factor: float = 1.0) -> Path:
    torch.manual_seed(0)
    model, x = Net(names, has_pool, factor), torch.randn(6, 5, WIDTH)
    with probe.capture(model, path):
        loss = model(x).pow(2).mean()
        loss.backward()
        probe.step(loss=loss.item())
    return path


@pytest.mark.parametrize("factor", [1.0, 1.5])
def test_what_stands_before_it_may_be_wrong(tmp_path: Path, factor: float) -> None:
    a = record(tmp_path / "a.h5", ("block", "inner", "gate"), has_pool=True)
    b = record(tmp_path / "b.h5", ("part", "first", "second"), has_pool=False, factor=factor)
    found = probe.compare(a, b, MAPPING, min_confidence=1)
    if factor == 1:
        assert found.verdict is Verdict.ALIGNED, found.first_divergence
        return
    first = found.first_divergence
    assert first is not None
    assert (first.phase, first.kind, first.path) == (Phase.FORWARD, Kind.INTRODUCED, ""), first
    assert first.evidence[0] == "the input 0 of head differs, what was there before it agrees"
    assert "not compared there: pool (in A only)" in first.evidence[1], first.evidence
