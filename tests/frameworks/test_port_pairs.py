"""A tenth of the localisation benchmark's pairs of PyTorch with PaddlePaddle and MindSpore: `python -m benchmarks.localisation --part ports`."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from benchmarks.localisation.pairs.registry import PARTS  # noqa: E402
from benchmarks.localisation.tools import suite, table  # noqa: E402


def test_a_tenth_of_the_ports_is_named_right(tmp_path: Path) -> None:
    pairs = suite.chosen(0.1, "ports")
    assert {pair.b.framework for pair in pairs} == {"paddle", "mindspore"}
    found = [answer for some in suite.answers(pairs, ("statistics",), tmp_path, 1) for answer in some]
    assert len(found) == len(pairs) and not table.misses(found)


def test_a_port_must_have_been_recorded(tmp_path: Path) -> None:
    (pair,) = (pair for pair in PARTS["ports"] if pair.name == "port-bert/paddle/fp32/eps/layers.1.norm1/1e-05/sgd")
    with pytest.raises(FileNotFoundError, match="ports are recorded first, by record_ports"):
        suite.record(pair.b, "statistics", tmp_path, "x")
