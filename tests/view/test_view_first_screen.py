"""What is seen at 1280×800 without a touch: the verdict, the picture and the faulty row."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from probe.report.html import as_html
from tests.report.reading import compared


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_verdict_picture_and_faulty_row_stand_on_the_first_screen(
    task: str, tmp_path: Path, opened: Callable[..., Any]
) -> None:
    path = tmp_path / "report.html"
    path.write_text(as_html(compared(tmp_path, task=task)), encoding="utf-8")
    page = opened(path).page
    assert "norm2" in page.locator(".row.selected").inner_text()
    for place in (".verdict", ".canvas", ".row.selected"):
        box = page.locator(place).bounding_box()
        assert box["y"] >= 0 and box["y"] + box["height"] <= 800, place
    row, rows = page.locator(".row.selected").bounding_box(), page.locator(".rows").bounding_box()
    assert rows["y"] <= row["y"] and row["y"] + row["height"] <= rows["y"] + rows["height"], "nothing covers it"
