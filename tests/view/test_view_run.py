"""The page of one recording: its tree with numbers, its graph, its curves, by the parts that the page of two has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import probe
from tests.toys import gpt, module, record
from tests.view.test_view_axe import AXE, RUN
from tests.view.test_view_widths import LINES

Show = Callable[..., Any]
STEPS = 3


def saved(folder: Path, **options: Any) -> Path:
    """Record a model, and save the page."""
    path = record(folder / "a.h5", steps=STEPS, **options)
    with probe.open(path) as run:
        return run.save(folder / "run.html")


@pytest.fixture(scope="module")
def page_of_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("run"), task="tensor")


def cells(page: Any, name: str) -> list[str]:
    """Return the cells of the first row of a module."""
    row = page.get_by_role("row").filter(has=page.get_by_text(name, exact=True)).first
    return row.locator(".cell").all_inner_texts()


def test_the_first_screen_says_what_was_recorded(page_of_run: Path, opened: Show) -> None:
    page = opened(page_of_run).page
    said = page.locator(".verdict").inner_text()
    for part in ("Recorded", "GPT", "finite", "44", "8,640", str(STEPS)):
        assert part in said, part
    assert page.title() == "a.h5: recorded"
    assert page.get_by_role("tab").all_inner_texts() == ["Modules", "Graph", "Curves", "How it was recorded"]
    assert "B" not in page.locator(".heads").inner_text().replace("bwd", "")


def test_cells_are_the_numbers_of_the_file(page_of_run: Path, opened: Show) -> None:
    page = opened(page_of_run).page
    with probe.open(page_of_run.with_name("a.h5")) as run:
        for step in range(STEPS):
            page.get_by_label("Step", exact=True).select_option(str(step))
            records = [each for each in run["embed"] if each.step == step]
            made = {each.role.label: each for each in records if each.phase.label in ("forward", "update")}
            for name in ("rms", "norm", "max"):
                page.get_by_label("Number in the cells").select_option(name)
                found = cells(page, "embed")
                assert float(found[1]) == pytest.approx(getattr(made["output"], name), rel=1e-3)
                assert float(found[4]) == pytest.approx(getattr(made["delta"], name), rel=1e-3)


def test_the_panel_has_the_statistics(page_of_run: Path, opened: Show) -> None:
    page = opened(page_of_run).page
    page.get_by_text("embed", exact=True).click()
    panel = page.locator(".panel")
    assert "Embedding" in panel.inner_text() and "Matched" not in panel.inner_text()
    panel.locator("button.line", has_text="output 0").first.click()
    with probe.open(page_of_run.with_name("a.h5")) as run:
        assert f"{run['embed'].output[0].norm:.6g}" in panel.locator(".statistics").inner_text()


def test_the_graph_has_numbers_at_nodes_and_edges(page_of_run: Path, opened: Show) -> None:
    page = opened(page_of_run).page
    page.get_by_role("tab", name="Graph").click()
    node = page.locator(".node[aria-label^='A norm ']")
    with probe.open(page_of_run.with_name("a.h5")) as run:
        assert node.locator(".error").text_content() == f"{run['norm'].output[0].rms:.4g}"
    titles = page.locator(".edge-hit title").all_text_contents()
    assert any(title.startswith("rms ") and "float32 [2, 6, 16]" in title for title in titles), titles
    node.click()
    assert page.locator(".panel .path").inner_text() == "norm"


def test_nan_is_what_n_goes_to(tmp_path: Path, opened: Show) -> None:
    """The first module that makes NaN is the first that the key n goes to; it is red in the tree and in the graph."""
    model = gpt()
    module(model, "layers.1.norm2").weight.data[:] = np.nan
    page = opened(saved(tmp_path, model=model)).page
    assert "NaN or Inf in" in page.locator(".verdict").inner_text()
    page.get_by_role("button", name="go to the first").click()
    found = page.locator(".panel .path").inner_text()
    assert found == "layers.1.norm2", "its weight is NaN from the beginning"
    assert cells(page, "norm2")[1] != "NaN" and page.locator(".row.selected .cell").nth(1).inner_text() == "NaN"
    page.get_by_role("tab", name="Graph").click()
    assert "non-finite" in page.locator(".side-a .node.chosen").get_attribute("class")
    assert page.locator(".edge.inherited").count() > 0


def test_a_recording_without_numbers(tmp_path: Path, opened: Show) -> None:
    page = opened(saved(tmp_path, task="structure")).page
    assert "Structure alone" in page.locator(".verdict").inner_text()
    for tab in page.get_by_role("tab").all():
        tab.click()


@pytest.mark.skipif(not AXE.exists(), reason="needs axe-core: npm ci in probe/report/html/app")
@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_axe_finds_nothing(scheme: str, width: int, page_of_run: Path, opened: Show) -> None:
    page = opened(page_of_run, color_scheme=scheme, viewport={"width": width, "height": 800}, bypass_csp=True).page
    page.evaluate(AXE.read_text(encoding="utf-8"))
    for tab in page.get_by_role("tab").all():
        tab.click()
        assert page.evaluate(RUN) == [], tab.inner_text()
        assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")


def test_no_button_stands_alone_on_a_telephone(page_of_run: Path, opened: Show) -> None:
    page = opened(page_of_run, viewport={"width": 390, "height": 844}).page
    assert min(page.locator("#pane-modules .toolbar").evaluate(LINES)) > 1
    facts = page.locator(".facts").bounding_box()
    right = page.locator(".facts dd").evaluate_all(
        "all => Math.max(...all.map((e) => e.getBoundingClientRect().right))"
    )
    assert right <= facts["x"] + facts["width"], "no fact is cut"
