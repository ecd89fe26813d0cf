"""fleet's parallel layers on two ranks, in processes of their own, against one process."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("paddle")

import probe  # noqa: E402
from benchmarks.ranks import fleet  # noqa: E402
from benchmarks.ranks.__main__ import ranks_in  # noqa: E402
from probe.comparison.result import Verdict  # noqa: E402


def test_layers_of_fleet_are_put_together_and_a_missing_all_reduce_is_named(tmp_path: Path) -> None:
    whole, ranks = fleet.train(tmp_path, "tensor")
    answer = probe.compare(tmp_path / f"{whole}.h5", tmp_path / f"{ranks}.h5")
    coverage = answer.coverage
    assert (answer.verdict, coverage.only_a, coverage.only_b, coverage.not_comparable) == (Verdict.ALIGNED, 0, 0, 0)
    assert probe.open(tmp_path / f"{ranks}.h5")["layers.0.fc1"].param[0].values().shape == (fleet.HIDDEN, fleet.FFN)
    fault = fleet.FAULTS[0]
    whole, faulty = fleet.train(tmp_path, "tensor", fault.name)
    first = probe.compare(tmp_path / f"{whole}.h5", tmp_path / f"{faulty}.h5").first_divergence
    assert first is not None and first.path == fault.path
    assert ranks_in(first.facts) == (0, 1)
