"""On a telephone, a laptop and a large screen: nothing is wider than the window, and no button stands alone in a line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import probe
from probe.report.html import as_html
from tests.report.reading import MAPPING, recorded
from tests.toys import gpt, module, record
from tests.view.test_view_names import NAMES
from tests.view.test_view_names import recorded as recorded_with_name
from tests.view.test_view_ways import Around

Show = Callable[..., Any]
WIDTHS = {390: 844, 1280: 800, 1920: 1080}
IS_NARROW = "document.scrollingElement.scrollWidth <= innerWidth"
LINES = """toolbar => {
  const lines = {};
  for (const each of toolbar.querySelectorAll("button, select, input")) {
    const { top, height } = each.getBoundingClientRect();
    (lines[Math.round((top + height / 2) / 12)] ??= []).push(each.innerText || each.placeholder);
  }
  return Object.values(lines).map((line) => line.length);
}"""
"""how many controls stand in each line"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of one fault, from values, with unmatched modules, curves and several steps."""
    folder = tmp_path_factory.mktemp("widths")
    mapping = {**MAPPING, "TopLayer": {**MAPPING["TopLayer"], "embed": "nowhere"}}
    path = folder / "report.html"
    runs = recorded(folder, task="tensor", steps=2)
    path.write_text(as_html(probe.compare(*runs, mapping=mapping, min_confidence=1)), encoding="utf-8")
    return path


def tabs_of(page: Any) -> list[str]:
    """Show one tab after the other, and all that can be opened in it."""
    found = []
    for tab in page.get_by_role("tab").all():
        tab.click()
        page.evaluate("document.querySelectorAll('details').forEach((each) => (each.open = true))")
        found.append(tab.inner_text())
        assert page.evaluate(IS_NARROW), tab.inner_text()
        for table in page.locator(".preview:visible").all():
            assert table.evaluate("e => e.getBoundingClientRect().right <= innerWidth"), (
                "what would be compared is seen"
            )
    return found


@pytest.mark.parametrize("width", WIDTHS)
def test_no_tab_is_wider_than_the_window(width: int, report: Path, opened: Show) -> None:
    page = opened(report, viewport={"width": width, "height": WIDTHS[width]}).page
    assert tabs_of(page) == ["Modules", "Graph", "Match by hand (2)", "Curves", "What this rests on"]
    page.keyboard.press("?")
    dialog = page.get_by_role("dialog").bounding_box()
    assert dialog["x"] >= 0 and dialog["x"] + dialog["width"] <= width
    assert dialog["y"] >= 0 and dialog["y"] + dialog["height"] <= WIDTHS[width], "all keys are seen"
    page.keyboard.press("Escape")
    page.get_by_role("tab", name="Modules").click()
    for name in ("embed", "words"):
        page.get_by_role("row").filter(has=page.get_by_text(name, exact=True)).get_by_role(
            "button", name="match"
        ).click()
    bar = page.locator(".bar").bounding_box()
    assert page.get_by_role("button", name="Add this pair").bounding_box()["x"] < width and bar["height"] < 120
    page.get_by_role("button", name="Add this pair").click()
    tabs_of(page)


@pytest.mark.parametrize("width", WIDTHS)
def test_no_button_stands_alone(width: int, report: Path, opened: Show) -> None:
    page = opened(report, viewport={"width": width, "height": WIDTHS[width]}).page
    jumps = page.get_by_label("What to jump to")
    for name in ("Modules", "Graph"):
        page.get_by_role("tab", name=name).click()
        lines = page.locator(".toolbar:visible").evaluate(LINES)
        assert min(lines) > 1 and (width == 390 or len(lines) == 1), lines
    page.get_by_role("tab", name="Modules").click()
    jumps.evaluate("select => (select.options[0].textContent = 'introduced (12345)')")
    lines = page.locator(".toolbar:visible").evaluate(LINES)
    assert min(lines) > 1 and (width == 390 or len(lines) == 1) and page.evaluate(IS_NARROW)
    page.evaluate("document.querySelector('#pane-modules .toolbar').style.fontSize = '16px'")  # other fonts are wider
    assert width == 390 or len(page.locator(".toolbar:visible").evaluate(LINES)) == 1


def test_the_files_are_named_on_a_telephone(report: Path, opened: Show) -> None:
    page = opened(report, viewport={"width": 390, "height": 844}).page
    for name in page.locator(".side-name").all():
        assert name.evaluate("e => e.scrollWidth <= e.clientWidth"), name.inner_text()
    assert page.locator(".top .choice").bounding_box()["height"] < 40, "step 0 stands in one line"


@pytest.mark.parametrize("name", ["markup", "long", "newline"])
def test_long_names_on_a_telephone(name: str, tmp_path: Path, opened: Show) -> None:
    runs = [recorded_with_name(tmp_path / f"{side}.h5", NAMES[name], each) for side, each in (("a", 2.0), ("b", 3.0))]
    path = tmp_path / "report.html"
    path.write_text(as_html(probe.compare(*runs)), encoding="utf-8")
    assert len(tabs_of(opened(path, viewport={"width": 390, "height": 844}).page)) > 3


def test_names_deep_in_a_tree_have_room_at_1024(tmp_path: Path, opened: Show) -> None:
    deep = [gpt(), gpt()]
    module(deep[1], "layers.1.attn.o").weight.data[0] += 1.0
    paths = []
    for name, model in zip("ab", deep, strict=True):
        for part in ("decoder", "stack", "model", "wrapped"):
            model = Around(part, model)
        paths.append(record(tmp_path / f"{name}.h5", model))
    path = tmp_path / "report.html"
    path.write_text(as_html(probe.compare(*paths)), encoding="utf-8")
    page = opened(path, viewport={"width": 1024, "height": 768}).page
    row = page.locator(".row.selected")
    assert int(row.get_attribute("aria-level")) >= 8
    for text in row.locator(".name .text").all():
        assert text.bounding_box()["width"] >= 12 and "o" in text.inner_text()
    names = page.locator(".row .name .text").all()
    assert (
        min(
            each.evaluate(
                "e => e.closest('.name').clientWidth - parseFloat(getComputedStyle(e.closest('.name')).paddingLeft)"
            )
            for each in names
        )
        > 90
    )
    cell = row.locator(".cell.introduced").first
    assert cell.evaluate("e => e.scrollWidth <= e.clientWidth"), "the number of the finding is whole"


def test_the_answer_is_short_on_a_telephone(report: Path, opened: Show) -> None:
    page = opened(report, viewport={"width": 390, "height": 844}).page
    assert page.locator(".verdict").bounding_box()["height"] < 430
    assert page.locator(".tabs").bounding_box()["y"] < 560
