"""Ways through the page: from the answer and the picture to a row, from place to place, and by search."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from probe.report.html import as_html
from tests.report.reading import compared

Show = Callable[..., Any]
SMALL = {"width": 1280, "height": 560}
"""a screen on which the tree is below what is seen at first"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of one fault."""
    path = tmp_path_factory.mktemp("ways") / "report.html"
    path.write_text(as_html(compared(path.parent, task="tensor")), encoding="utf-8")
    return path


def is_seen(page: Any, height: int) -> bool:
    """Tell whether the chosen row is on the screen, below the toolbar of the tree."""
    row, bar = page.locator(".row.selected").bounding_box(), page.locator(".toolbar").bounding_box()
    return bar["y"] >= 0 and bar["y"] + bar["height"] <= row["y"] and row["y"] + row["height"] <= height


@pytest.mark.parametrize("motion", ["reduce", "no-preference"])
def test_a_name_of_the_way_leads_to_its_row(motion: str, report: Path, opened: Show) -> None:
    page = opened(report, viewport=SMALL, reduced_motion=motion).page
    assert page.evaluate("scrollY") == 0 and not is_seen(page, 560)
    page.locator(".chain .here").click()
    assert "norm2" in page.locator(".row.selected").inner_text() and is_seen(page, 560)
    assert page.evaluate("document.activeElement.className") == "grid"


def point_of(page: Any, text: str) -> tuple[float, float]:
    """Return where the mouse is told of a node with this text in the picture."""
    box = page.locator(".canvas .u-over").bounding_box()
    for x in range(0, int(box["width"]), 4):
        for level in (0.2, 0.3, 0.4, 0.5):
            at = box["x"] + x, box["y"] + level * box["height"]
            page.mouse.move(*at)
            if page.locator(".hover").count() and text in page.locator(".hover").inner_text():
                return at
    raise AssertionError(f"no {text} in the picture")


def test_a_point_of_the_picture_leads_to_its_row(report: Path, opened: Show) -> None:
    page = opened(report, viewport=SMALL).page
    page.mouse.click(*point_of(page, "introduced"))
    assert "norm2" in page.locator(".row.selected").inner_text() and is_seen(page, 560)
