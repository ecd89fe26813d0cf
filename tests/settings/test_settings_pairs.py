"""Configurations of public models: what is planted is named, each alone, and nothing where two mean the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.cells import cell_len

from benchmarks.settings.__main__ import held, of_pair, of_plant, page, scores
from benchmarks.settings.pairs import CLEAN, FOLDER, PLANTED, Pair, Plant
from probe.report import settings as report


@pytest.mark.parametrize("pair", CLEAN, ids=lambda pair: f"{pair.a}-{pair.b}")
def test_nothing_is_named_where_two_mean_the_same(pair: Pair) -> None:
    score = of_pair(pair)
    assert not score.named
    assert score.compared >= (3 if "vllm" in pair.b else 15), "a pair that shares nothing would pass too"


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: f"{plant.a}-{plant.b}-{plant.setting}")
def test_what_is_planted_is_named_alone(plant: Plant, tmp_path: Path) -> None:
    score = of_plant(plant, tmp_path)
    assert score.named == score.expected


def test_sides_change_places() -> None:
    """Which of two is A does not matter."""
    for pair in CLEAN[:8]:
        there, back = held(FOLDER / pair.a, FOLDER / pair.b), held(FOLDER / pair.b, FOLDER / pair.a)
        assert (there.equal, there.only_a, there.only_b) == (back.equal, back.only_b, back.only_a)
        assert {each.setting for each in there.differences} == {each.setting for each in back.differences}


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("pair", CLEAN[5:9], ids=lambda pair: f"{pair.a}-{pair.b}")
def test_reports_fit_the_terminal(pair: Pair, width: int) -> None:
    sides = held(FOLDER / pair.a, FOLDER / CLEAN[20].b)
    for verbose in (False, True):
        text = report.held(sides, width, verbose=verbose).plain
        assert all(cell_len(line) <= width for line in text.splitlines())
        for each in sides.counting:
            assert each.a.name in text.replace("\n", " ").replace("  ", " ") or "…" in text


def test_the_page_of_evidence_is_what_is_scored() -> None:
    written = (FOLDER.parents[2] / "docs" / "evidence" / "settings.md").read_text(encoding="utf-8")
    assert page(list(scores())) == written, "run python -m benchmarks.settings --markdown docs/evidence/settings.md"
