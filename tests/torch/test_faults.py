"""The fault suite as tests: every row, from tensors and from statistics only."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from benchmarks.faults.models import A, B  # noqa: E402
from benchmarks.faults.suite import MODES, ROWS, judge, record  # noqa: E402
from benchmarks.faults.truth import FAULTS, KINDS, PHASES  # noqa: E402


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    folder = tmp_path_factory.mktemp("faults")
    record(folder, ROWS, MODES)
    return folder


def test_truth_table_is_whole():
    assert set(B) == set(ROWS)
    for truth in FAULTS:
        assert truth.phase in PHASES and truth.kind in KINDS
        assert truth.steps_run == B[truth.name].steps == A[truth.baseline].steps > truth.step


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("row", ROWS)
def test_row(recordings, row, mode):
    answer = judge(recordings, row, mode)
    assert answer.right, answer.said
