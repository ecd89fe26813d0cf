"""In which order parts lie in a weight, where no values are stored: by the sums along its axes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import probe
from probe.adapters.numpy import nn
from probe.comparison.result import Verdict
from probe.records import Phase
from tests.comparison.planted import Recorder
from tests.comparison.test_weight_bundles import STACKED, models
from tests.fusing import apart, mapping, together
from tests.toys import module


def without_sums(path: Path) -> Path:
    """Make it a file that was written before there were sums."""
    with h5py.File(path, "r+") as file:
        del file["axis_sums"], file["sums"]
    return path


def swapped_rows(model: Any, first: int, second: int) -> None:
    weight = module(model, "layers.1.attn.qkv").weight.data
    weight[[first, second]] = weight[[second, first]]


def test_two_rows_of_a_packed_weight_that_are_swapped(run: Recorder) -> None:
    whole = together()
    swapped_rows(whole, 1, 2)
    first = probe.compare(run(apart()), run(whole), mapping=mapping()).first_divergence
    assert first is not None and (first.phase, first.path) == (Phase.INIT, "layers.1.attn.q")
    assert any("of its parts q (rel" in text and "k and v agree" in text for text in first.evidence)


@pytest.mark.parametrize("task", ["tensor", "statistics"])
def test_values_on_one_side_are_enough(run: Recorder, task: str) -> None:
    tasks = task, "statistics" if task == "tensor" else "tensor"
    right = [run(model, task=each) for model, each in zip((apart(), together()), tasks, strict=True)]
    assert probe.compare(*right, mapping=mapping()).verdict is Verdict.ALIGNED
    whole = together()
    swapped_rows(whole, 3, 20)
    first = probe.compare(right[0], run(whole, task=tasks[1]), mapping=mapping()).first_divergence
    assert first is not None and first.phase is Phase.INIT


def test_without_them_the_order_is_not_compared_and_that_is_said(run: Recorder) -> None:
    whole, plain = together(), together(groups=1)
    for n in range(3):
        for slot in ("weight", "bias"):
            place = module(whole, f"layers.{n}.attn.qkv")
            getattr(place, slot).data[...] = getattr(module(plain, f"layers.{n}.attn.qkv"), slot).data
    files = without_sums(run(apart())), without_sums(run(whole))
    first = probe.compare(*files, mapping=mapping()).first_divergence
    assert first is not None and first.phase is Phase.FORWARD and first.path in ("layers.0.attn", "layers.0.attn.o")
    text = "in which order q, k and v lie in B's layers.0.attn.qkv was not compared: record with task='tensor'"
    assert text in first.evidence


@pytest.mark.parametrize("slot", ["gate_up", "down"])
def test_two_experts_that_are_swapped(run: Recorder, slot: str) -> None:
    both = models()
    weight = getattr(module(both[1], "layers.1.mlp"), slot).data
    weight[[0, 2]] = weight[[2, 0]]
    first = probe.compare(*(run(model) for model in both), mapping=STACKED).first_divergence
    assert first is not None and (first.phase, first.b[0].slot) == (Phase.INIT, slot)


@pytest.mark.parametrize("is_wrong", [False, True])
def test_a_whole_that_is_stored_the_other_way_round(run: Recorder, is_wrong: bool) -> None:
    whole = together()
    if is_wrong:
        swapped_rows(whole, 1, 2)
    linear = module(whole, "layers.1.attn.qkv")
    linear.__class__ = nn.LinearInOut
    linear.weight = nn.Parameter(np.ascontiguousarray(linear.weight.data.T))
    found = probe.compare(run(apart()), run(whole), mapping=mapping())
    assert found.verdict is (Verdict.DIVERGED if is_wrong else Verdict.ALIGNED), found.first_divergence


def test_the_file_has_them_once_and_only_of_parameters(run: Recorder) -> None:
    model = together()
    with h5py.File(run(model, steps=3)) as file:
        rows = file["axis_sums"][:]
        names = [row.decode() for row in file["parameters"]["slot"]]
        assert set(rows["step"]) == {0} and len(rows) == sum(p.data.ndim for p in model.parameters())
        assert {names[row] for row in rows["parameter"]} <= {"weight", "bias"} and rows["count"].sum() == len(
            file["sums"]
        )
    with h5py.File(run(together(), task="tensor")) as file:
        assert not len(file["sums"])  # values say more


def test_values_of_some_modules_leave_sums_of_the_others(run: Recorder) -> None:
    whole = together()
    swapped_rows(whole, 1, 2)
    files = [run(model, task="tensor", tensors=["*.norm1"]) for model in (apart(), whole)]
    first = probe.compare(*files, mapping=mapping()).first_divergence
    assert first is not None and (first.phase, first.path) == (Phase.INIT, "layers.1.attn.q")


def test_swapped_experts_are_not_called_groups_of_one_part(run: Recorder) -> None:
    both = models()
    weight = module(both[1], "layers.1.mlp").down.data
    weight[[0, 2]] = weight[[2, 0]]
    first = probe.compare(*(run(model) for model in both), mapping=STACKED).first_divergence
    assert first is not None and "groups" not in first.hint
