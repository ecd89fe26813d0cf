"""Rows in one other order in all layers: a layout where both sides read them so, and a fault where what uses them does not."""

from __future__ import annotations

import numpy as np
import pytest

import probe
from probe.adapters.numpy import nn
from probe.comparison.result import Verdict
from probe.records import Phase
from tests.comparison.planted import Recorder
from tests.toys import LAYERS, WIDTH, gpt, module

ORDER = np.random.default_rng(3).permutation(WIDTH // 2)
"""of the rows of the first head"""
SMALL = 0.1
"""queries and keys as small as before training: whatever their order, scores are about 0"""


def model(*names: str) -> nn.Module:
    """Make a model in which the named weights of all layers have the rows of their first head in another order."""
    made = gpt()
    for layer in range(LAYERS):
        for name in ("attn.q", "attn.k"):
            module(made, f"layers.{layer}.{name}").weight.data *= SMALL
        for name in names:
            rows = module(made, f"layers.{layer}.{name}").weight.data
            rows[: len(ORDER)] = rows[ORDER]
    return made


@pytest.mark.parametrize(
    ("name", "task"),
    [(name, task) for name in ("attn.q", "attn.k", "mlp.up") for task in ("tensor", "statistics")]
    + [("attn.v", "tensor")],
)
def test_rows_that_nothing_reads_in_that_order_are_a_fault(run: Recorder, name: str, task: str) -> None:
    first = probe.compare(run(model(), task=task), run(model(name), task=task)).first_divergence
    assert first is not None and (first.phase, first.a[0].path) == (Phase.INIT, f"layers.0.{name}")


@pytest.mark.parametrize("task", ["tensor", "statistics"])
def test_queries_and_keys_in_the_same_order_are_a_layout(run: Recorder, task: str) -> None:
    found = probe.compare(run(model(), task=task), run(model("attn.q", "attn.k"), task=task))
    assert found.verdict is Verdict.ALIGNED, found.first_divergence
    assert sum("hold the same rows in another order" in text for text in found.warnings) == 2
