"""The cells of the trees: what was not judged, what a folded row has inside, and how large an inherited error is."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import probe
from probe.adapters.numpy import nn
from probe.report.html import as_html
from tests.report.reading import compared
from tests.toys import gpt, module, record

Show = Callable[..., Any]


def written(answer: Any, folder: Path) -> Path:
    path = folder / "report.html"
    path.write_text(as_html(answer), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def diverged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cells")
    return written(compared(folder), folder)


def cells_of(page: Any, row: int) -> list[Any]:
    return page.locator(f"#row-{row} .cell").all()


def colour(place: Any, name: str = "backgroundColor") -> tuple[float, ...]:
    found = place.evaluate(f"e => getComputedStyle(e).{name}")
    return tuple(float(each) for each in re.findall(r"[\d.]+", found))


def test_a_folded_row_has_the_worst_of_what_is_inside_in_every_phase(diverged: Path, opened: Show) -> None:
    page = opened(diverged).page
    page.get_by_role("button", name="fold", exact=True).click()
    page.get_by_role("row").filter(has_text="layers").locator(".twist").click()
    row = page.get_by_role("row").filter(has=page.get_by_text("PortedBlock")).nth(1)
    before = [cell.inner_text() for cell in row.locator(".cell").all()]
    init, forward, *others = row.locator(".cell").all()
    assert init.inner_text() == "=" and "introduced" in forward.get_attribute("class")
    assert "the worst inside: output of layers.1.norm2" in forward.get_attribute("title")
    assert all("inherited" in each.get_attribute("class") for each in others), before
    row.locator(".twist").click()
    assert "introduced" not in row.locator(".cell").nth(1).get_attribute("class"), "open, it has its own"
    assert not row.locator(".cell").nth(3).inner_text(), "it has no weight of its own"


def test_inherited_errors_are_shaded_by_their_size(tmp_path: Path, opened: Show) -> None:
    a, b = gpt(), gpt()
    module(b, "layers.0.norm1").eps = 1e-3
    found = probe.compare(record(tmp_path / "a.h5", a), record(tmp_path / "b.h5", b))
    page = opened(written(found, tmp_path)).page
    page.get_by_role("button", name="unfold").click()
    sizes = {}
    for cell in page.locator(".row .cell.inherited").all():
        sizes[float(cell.inner_text())] = colour(cell)
    least, largest = min(sizes), max(sizes)
    assert largest > 5 * least and sizes[largest][2] < sizes[least][2] - 0.02, "the larger, the deeper the yellow"


def test_what_was_not_judged_is_not_drawn_as_equal(tmp_path: Path, opened: Show) -> None:
    """A buffer that nothing uses differs; weights beside it are equal."""
    for name, value in (("a", 1.0), ("b", 2.0)):
        model = gpt()
        module(model, "norm").table = nn.Buffer(np.full(4, value, np.float32))
        record(tmp_path / f"{name}.h5", model)
    found = probe.compare(tmp_path / "a.h5", tmp_path / "b.h5")
    assert {slot.verdict for slot in found.slots if slot.slot_a == "table"} == {"not judged"}
    page = opened(written(found, tmp_path)).page
    row = page.get_by_role("row").filter(has=page.get_by_text("norm", exact=True)).last
    judged, other = row.locator(".cell").first, page.locator(".cell.equal").first
    assert judged.inner_text() != "=" and "not-judged" in judged.get_attribute("class")
    assert colour(judged, "color") != colour(other, "color")
    assert judged.get_attribute("title").startswith("init: not judged. It differs, or may")
    assert "not judged" in page.locator(".picture .legend").inner_text()
    page.get_by_label("Verdict", exact=True).select_option("not judged")
    assert page.locator(".found").inner_text().startswith("1 row")
    page.get_by_role("button", name="clear").click()
    page.get_by_role("button", name="fold", exact=True).click()
    page.locator("#row-0 .twist").click()
    assert "not-judged" in page.locator("#row-0 .cell").first.get_attribute("class"), "nor where it is folded away"
