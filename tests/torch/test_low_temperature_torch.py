"""Losses of few rows and large logits, as contrastive ones behind a low temperature: rounding of the logits is much of such a loss."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import probe  # noqa: E402
from probe.comparison.answer import Comparison  # noqa: E402
from probe.comparison.result import Verdict  # noqa: E402
from probe.records import Phase  # noqa: E402

ROWS = 4
TEMPERATURE = 0.07


class Contrast(nn.Module):
    """Tells a row's own key from a number of others; in two forms, which round otherwise."""

    def __init__(self, is_first: bool) -> None:
        super().__init__()
        self.encoder, self.is_first = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 8)), is_first
        self.register_buffer("others", functional.normalize(torch.randn(16, 8), dim=1))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        u = self.encoder(x)
        with torch.no_grad():
            v = self.encoder(y)
        if self.is_first:
            u, v = functional.normalize(u, dim=1), functional.normalize(v, dim=1)
            return torch.cat([(u * v).sum(1, keepdim=True), u @ self.others.T], 1) / TEMPERATURE
        u, v = u / u.norm(dim=1, keepdim=True), v / v.norm(dim=1, keepdim=True)
        own = torch.einsum("nc,nc->n", u, v)[:, None]
        return torch.cat([own, torch.einsum("nc,mc->nm", u, self.others)], 1) / TEMPERATURE


def record(path: Path, is_first: bool, seed: int, spread: float, smoothing: float) -> Path:
    torch.manual_seed(seed)
    model = Contrast(is_first)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with probe.capture(model, path):
        for step in range(2):
            x, noise = (torch.randn(ROWS, 24, generator=torch.Generator().manual_seed(at)) for at in (step, 100 + step))
            with torch.autocast("cpu", torch.bfloat16):
                logits = model(x, x + spread * noise).float()
                loss = functional.cross_entropy(logits, torch.zeros(ROWS, dtype=torch.long), label_smoothing=smoothing)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            probe.step(loss=loss)
    return path


def compared(path: Path, seed: int, spread: float, smoothing: float = 0.0) -> Comparison:
    a = record(path / "a.h5", True, seed, spread, 0.0)
    return probe.compare(a, record(path / "b.h5", False, seed, spread, smoothing))


CASES = [(4, 0.5), (5, 0.1)]


@pytest.mark.parametrize(("seed", "spread"), CASES)
def test_rounding_of_large_logits_is_no_fault_of_the_loss(tmp_path: Path, seed: int, spread: float) -> None:
    found = compared(tmp_path, seed, spread)
    assert found.verdict is Verdict.ALIGNED, found


@pytest.mark.parametrize(("seed", "spread"), CASES)
def test_another_loss_is_found(tmp_path: Path, seed: int, spread: float) -> None:
    first = compared(tmp_path, seed, spread, smoothing=0.1).first_divergence
    assert first is not None and first.phase is Phase.LOSS
    assert first.evidence[0].startswith("the loss differs: ")
