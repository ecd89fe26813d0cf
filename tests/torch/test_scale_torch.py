"""Many ranks, made by one process (`benchmarks.scale`): put together by this process or by others, once a step, fault and all."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import probe
from benchmarks.scale.making import Layout, Side, make
from probe.comparison.result import Verdict
from probe.ranks import reader

LAYERS = 4
NOISE = 3e-8
FAULT = "layers.2.mlp.linear_fc2"
EIGHT = Layout(2, 2, 2)


@pytest.fixture(scope="module", params=["statistics", "tensor"])
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One process, eight ranks that are off by rounding, four ranks, and eight with a fault in the second stage."""
    folder = tmp_path_factory.mktemp(request.param)
    whole = Side(Layout(), LAYERS, task=request.param)
    sides = {
        "one": whole,
        "eight": replace(whole, layout=EIGHT, noise=NOISE),
        "four": replace(whole, layout=Layout(4, 1, 1)),
        "faulty": replace(whole, layout=EIGHT, fault=FAULT),
    }
    for name, side in sides.items():
        make(side, folder / f"{name}.h5")
    return {name: folder / f"{name}.h5" for name in sides}


def told(answer: Any) -> str:
    return json.dumps(answer.as_json(), sort_keys=True, default=str)


@pytest.mark.parametrize("pair", [("one", "eight"), ("eight", "one"), ("four", "eight"), ("one", "four")])
def test_clean_layouts(runs: dict[str, Path], pair: tuple[str, str]) -> None:
    found = probe.compare(*(runs[name] for name in pair))
    assert found.verdict is Verdict.ALIGNED, found
    assert found.coverage.share == 1


def test_a_fault_in_one_stage(runs: dict[str, Path]) -> None:
    first = probe.compare(runs["one"], runs["faulty"]).first_divergence
    assert first is not None and first.path == FAULT
    assert first.b[0].path == FAULT


def test_stages_that_other_processes_put_together(runs: dict[str, Path]) -> None:
    here = probe.compare(runs["four"], runs["faulty"])
    assert told(probe.compare(runs["four"], runs["faulty"], scheduler="processes:2")) == told(here)


def test_a_step_is_put_together_once(runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """All that is known of how tensors are divided is known without the other side."""
    done = []
    original = reader.merged
    monkeypatch.setattr(reader, "merged", lambda *args: done.append(args) or original(*args))
    probe.compare(runs["one"], runs["eight"])
    assert len(done) == 1
