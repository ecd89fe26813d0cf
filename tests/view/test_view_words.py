"""Words that somebody meets who has not read anything: each says what it means, or is not said where it means nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import probe
from probe.report.html import as_html
from tests.report.reading import compared
from tests.toys import gpt, record, rounding_otherwise

Show = Callable[..., Any]
STEPS = 3


def written(answer: Any, folder: Path) -> Path:
    path = folder / "report.html"
    path.write_text(as_html(answer), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def structural(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a run that has numbers, and one that has none."""
    folder = tmp_path_factory.mktemp("structure")
    a = record(folder / "a.h5", steps=STEPS)
    return written(probe.compare(a, record(folder / "b.h5", steps=STEPS, task="structure")), folder)


def test_a_curve_of_one_side_alone_is_not_called_equal(structural: Path, opened: Show) -> None:
    page = opened(structural).page
    page.get_by_role("tab", name="Curves").click()
    said = page.locator(".curve figcaption").all_inner_texts()
    assert any("norm of all recorded gradients only in A" in each for each in said)
    assert any("embed.weight only in A" in each for each in said) and "loss equal" in said


def test_what_is_not_comparable_is_in_the_legend(structural: Path, opened: Show, tmp_path: Path) -> None:
    page = opened(structural).page
    assert "n/c" in page.locator(".row .cell").all_inner_texts()
    assert "n/c not comparable" in page.locator(".picture .legend").inner_text()
    page = opened(written(compared(tmp_path), tmp_path)).page
    assert "n/c" not in page.locator(".picture .legend").inner_text()


def test_the_graph_of_what_was_not_compared_has_a_phase(structural: Path, opened: Show) -> None:
    page = opened(structural).page
    page.get_by_role("tab", name="Graph").click()
    assert page.get_by_label("Phase of the graph").input_value() == "forward"


def test_gradients_that_differ_by_rounding_are_said_to(tmp_path: Path, opened: Show) -> None:
    a = record(tmp_path / "a.h5", steps=STEPS)
    answer = probe.compare(a, record(tmp_path / "b.h5", rounding_otherwise(gpt()), steps=STEPS))
    assert answer.verdict.value == "aligned"
    page = opened(written(answer, tmp_path)).page
    page.get_by_role("tab", name="Curves").click()
    assert page.locator(".curve figcaption").last.inner_text().endswith(", which rounding explains")


def test_the_facts_beside_the_answer_are_explained(tmp_path: Path, opened: Show) -> None:
    page = opened(written(compared(tmp_path), tmp_path)).page
    for name in ("Confidence", "Margin", "Limits from"):
        assert len(page.locator(".facts dt", has_text=name).get_attribute("title")) > 40
    assert "× the limits" in page.locator(".facts").inner_text()
