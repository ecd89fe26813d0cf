"""Updates of which each alone differs by no more than a few signs would make it, and all of them together by more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import probe
from probe.adapters.numpy import nn
from probe.adapters.numpy.tensor import Tensor
from probe.comparison.result import Verdict
from probe.records import Phase
from tests.toys import gpt, record, rounding_otherwise


class Inside(nn.AdamW):
    """Adam as some have it: eps under the root."""

    def update(self, p: np.ndarray, g: np.ndarray, group: dict[str, Any], state: dict[str, Any]) -> None:
        state["step"] = state.get("step", 0) + 1
        first = state.setdefault("exp_avg", Tensor(np.zeros_like(p))).data
        second = state.setdefault("exp_avg_sq", Tensor(np.zeros_like(p))).data
        beta1, beta2 = group["betas"]
        first[...] = beta1 * first + (1 - beta1) * g
        second[...] = beta2 * second + (1 - beta2) * g * g
        scale = (second / (1 - beta2 ** state["step"]) + group["eps"]) ** 0.5
        p -= group["lr"] * (first / (1 - beta1 ** state["step"]) / scale + group["weight_decay"] * p)


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize(("kind", "verdict"), [(nn.AdamW, Verdict.ALIGNED), (Inside, Verdict.DIVERGED)])
def test_eps_under_the_root(tmp_path: Path, task: str, kind: type[nn.AdamW], verdict: Verdict) -> None:
    a = record(tmp_path / "a.h5", gpt(), task=task)
    model = rounding_otherwise(gpt())
    b = record(tmp_path / "b.h5", model, optimizer=kind(model.parameters(), lr=1e-3), task=task)
    found = probe.compare(a, b)
    assert found.verdict is verdict
    if verdict is Verdict.DIVERGED:
        first = found.first_divergence
        assert first is not None and (first.step, first.phase, first.path) == (0, Phase.UPDATE, "")
        assert any("as one vector, differ by" in text for text in first.evidence), first.evidence
