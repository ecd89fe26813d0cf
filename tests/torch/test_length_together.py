"""Updates of 16-bit weights: rounding hides in each what all of them together show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import probe  # noqa: E402
from probe.comparison.result import Verdict  # noqa: E402
from probe.comparison.run import Comparison  # noqa: E402
from probe.records import Phase  # noqa: E402

LAYERS = 4


class Secret(torch.optim.AdamW):
    """Takes shorter or longer steps than its settings say."""

    times = 1.0

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["lr"] *= self.times
        super().step(closure)
        for group in self.param_groups:
            group["lr"] /= self.times


class Linear(nn.Linear):
    """Adds up in two parts."""

    def forward(self, x: Any) -> Any:
        return x[..., 16:] @ self.weight[:, 16:].T + x[..., :16] @ self.weight[:, :16].T + self.bias


def run(path: Path, dtype: Any, times: float = 1.0, kind: Any = nn.Linear, rule: Any = Secret) -> Path:
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Sequential(kind(32, 32), nn.LayerNorm(32), nn.GELU()) for _ in range(LAYERS)])
    optimizer = rule(model.to(dtype).parameters(), lr=1e-3, weight_decay=0.0)
    optimizer.times = times
    x, y = torch.randn(64, 32).to(dtype), torch.randn(64, 32)
    with probe.capture(model, path):
        for _ in range(2):
            loss = (model(x).float() - y).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            probe.step(loss=loss)
    return path


def compared(folder: Path, times: float, dtype: Any = torch.bfloat16) -> Comparison:
    return probe.compare(run(folder / "a.h5", dtype), run(folder / "b.h5", dtype, times, Linear))


@pytest.mark.parametrize(("times", "how"), [(0.8, "shorter in B, typically"), (1.25, "longer in B, typically")])
def test_nearly_all_are_longer_or_shorter(tmp_path: Path, times: float, how: str) -> None:
    first = compared(tmp_path, times).first_divergence
    assert first is not None and (first.step, first.phase, first.path) == (0, Phase.UPDATE, "")
    assert how in first.evidence[0] and first.evidence[0].startswith("the updates of "), first.evidence
    assert first.hint.endswith("look at the learning rate and its schedule, at Adam's bias correction and eps")
    named = first.hint.partition("look")[0]  # AdamW's own step is hooked, and tells lr, once an AdamW was made before
    assert named in ("", f"lr: 0.001 in A, {0.001 * times:g} in B; ")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_the_same_is_aligned(tmp_path: Path, dtype: Any) -> None:
    assert compared(tmp_path, 1.0, dtype).verdict is Verdict.ALIGNED


@pytest.mark.parametrize(
    ("times", "said"), [(1.003, "longer in B, typically by 0.003"), (0.99, "shorter in B, typically by 0.01")]
)
def test_one_factor_of_all_is_told_in_32_bits(tmp_path: Path, times: float, said: str) -> None:
    first = compared(tmp_path, times, torch.float32).first_divergence
    assert first is not None and (first.step, first.phase, first.path) == (0, Phase.UPDATE, "")
    assert first.evidence[0] == f"the updates of 100% of 16 parameters are {said} of A's"


def test_one_factor_that_bias_corrections_in_float32_can_make_is_none(tmp_path: Path) -> None:
    assert compared(tmp_path, 1.0005, torch.float32).verdict is Verdict.ALIGNED


def test_lengths_that_scatter_have_no_one_factor(tmp_path: Path) -> None:
    """Each weight's update is longer by another part: nothing that is common to all of them is wrong."""

    class Scattered(torch.optim.AdamW):
        def __init__(self, parameters: Any, **options: Any) -> None:
            super().__init__([{"params": [parameter]} for parameter in parameters], **options)

        def step(self, closure: Any = None) -> Any:
            for place, group in enumerate(self.param_groups):
                group["lr"] = 1e-3 * (1.001 + 0.001 * (place % 6))
            super().step(closure)
            for group in self.param_groups:
                group["lr"] = 1e-3

    a = run(tmp_path / "a.h5", torch.float32)
    found = probe.compare(a, run(tmp_path / "b.h5", torch.float32, 1.0, Linear, Scattered))
    assert not any("typically" in text for each in found.divergences for text in each.evidence)
