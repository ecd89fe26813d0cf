"""Configurations of public models: what is planted is named, each alone, and nothing where two mean the same."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from rich.cells import cell_len

from probe.report import settings as report
from probe.settings.comparing import Held, held_against
from probe.settings.reading.files import read
from probe.settings.resolving import resolved
from tests.programs import ROOT, benchmark

FOLDER = ROOT / "benchmarks" / "settings" / "configurations"
QWEN = [FOLDER / f"qwen2.5-7b.{form}" for form in ("config.json", "mindformers.yaml", "megatron.log", "megatron.sh")]


def held(a: Path, b: Path) -> Held:
    return held_against(*(resolved(read(str(path))) for path in (a, b)))


def test_the_page_of_evidence_is_what_is_scored(tmp_path: Path) -> None:
    """All of it: 60 of 60 planted, and nothing in 29 clean pairs."""
    benchmark("settings", "--markdown", str(tmp_path / "settings.md"))
    written = (ROOT / "docs" / "evidence" / "settings.md").read_text(encoding="utf-8")
    assert "60 of 60 planted differences named, each alone; nothing named in 29 of 29 clean pairs" in written
    assert (tmp_path / "settings.md").read_text(encoding="utf-8") == written


@pytest.mark.parametrize("files", [*pairwise(QWEN)], ids=lambda files: files[0].name)
def test_sides_change_places(files: tuple[Path, Path]) -> None:
    there, back = held(*files), held(*files[::-1])
    assert (there.equal, there.only_a, there.only_b) == (back.equal, back.only_b, back.only_a)
    assert {each.setting for each in there.differences} == {each.setting for each in back.differences}


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("path", QWEN, ids=lambda path: path.name)
def test_reports_fit_the_terminal(path: Path, width: int) -> None:
    sides = held(path, FOLDER / "deepseek-v3.mindformers.yaml")
    for verbose in (False, True):
        text = report.held(sides, width, verbose=verbose).plain
        assert all(cell_len(line) <= width for line in text.splitlines())
        for each in sides.counting:
            assert each.a.name in text.replace("\n", " ").replace("  ", " ") or "…" in text
