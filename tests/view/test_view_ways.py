"""Ways through the page: from the answer and the picture to a row, from place to place, and by search."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import probe
from probe.report.html import as_html
from probe.testing import sample
from tests.report.reading import DATA, MAPPING, compared, document_in, recorded
from tests.toy import nn
from tests.toy.tensor import Tensor
from tests.toys import gpt, record

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


def test_dragging_zooms_and_leaves_the_page_where_it_is(report: Path, opened: Show) -> None:
    page = opened(report, viewport=SMALL).page
    box = page.locator(".canvas .u-over").bounding_box()
    heading = page.locator(".picture .title").bounding_box()
    page.mouse.move(box["x"] + 200, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + 400, box["y"] + 60, steps=5)
    page.mouse.up()
    reset = page.get_by_role("button", name="Show all")
    reset.wait_for()
    assert page.locator(".picture .title").bounding_box() == heading and page.evaluate("scrollY") == 0
    reset.click()
    reset.wait_for(state="detached")


class Inside(nn.Module):
    """A linear layer, of what is computed without a module."""

    def __init__(self, factor: float) -> None:
        super().__init__(project=nn.Linear(4, 4))
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return self.project(x * self.factor)


class Net(nn.Module):
    """One of them, among others."""

    def __init__(self, factor: float) -> None:
        super().__init__(first=nn.Linear(4, 4), scaled=Inside(factor), last=nn.Linear(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.scaled(self.first(x)))


@pytest.fixture
def charged(tmp_path: Path) -> Path:
    """The report of a fault that shows in the input of a module, and is charged to the one around it."""
    for name, factor in (("a", 1.0), ("b", 1.5)):
        nn.manual_seed(0)
        model = Net(factor)
        with probe.capture(model, tmp_path / f"{name}.h5"):
            model(Tensor(sample((5, 4), 0))).sum().backward()
            probe.step(loss=1.0)
    path = tmp_path / "report.html"
    path.write_text(as_html(probe.compare(tmp_path / "a.h5", tmp_path / "b.h5")), encoding="utf-8")
    return path


def test_the_row_that_is_named_is_marked(charged: Path, opened: Show) -> None:
    page = opened(charged).page
    assert "First divergence: scaled" in page.locator(".verdict").inner_text()
    row = page.locator(".row.selected")
    cell = row.locator(".cell.introduced")
    assert row.locator(".own").first.inner_text() == "scaled" and cell.inner_text().startswith("◆")
    title = cell.get_attribute("title")
    assert title.startswith("forward: introduced; it shows in the input of scaled.project. The error begins here")
    panel = page.locator(".panel")
    assert "◆ step 0 · forward · introduced" in panel.inner_text()
    assert "What reads “inherited” below has the error from there." in panel.inner_text()
    panel.get_by_role("button", name="where it shows first: input of scaled.project").click()
    assert "Shown here, charged to scaled: step 0 · forward · introduced" in panel.inner_text()
    panel.locator(".charged button").click()
    assert page.locator(".row.selected .own").first.inner_text() == "scaled"
    page.get_by_label("Verdict", exact=True).select_option("introduced")
    hits = page.locator(".row.hit .own").all_inner_texts()
    assert hits == ["scaled", "scaled", "project", "project"]
    assert page.get_by_label("What to jump to").locator("option").first.inner_text() == "introduced (2)"


def visited(page: Any, key: str, times: int) -> list[str]:
    found = []
    for _ in range(times):
        page.keyboard.press(key)
        found.append(page.locator(".panel .path").first.inner_text())
    return found


def test_n_and_p_visit_every_place_once(tmp_path: Path, opened: Show) -> None:
    """The states of all parameters are one finding, of the whole model; the parameter that it shows in is a place too."""
    models = gpt(), gpt()
    betas = [(0.9, 0.999), (0.9, 0.95)]
    a, b = (
        record(tmp_path / f"{name}.h5", model, optimizer=nn.AdamW(model.parameters(), lr=1e-3, betas=each))
        for name, model, each in zip("ab", models, betas, strict=True)
    )
    found = probe.compare(a, b)
    path = tmp_path / "report.html"
    path.write_text(as_html(found), encoding="utf-8")
    places = list(dict.fromkeys(slot.path_a for slot in found.slots if slot.verdict == "introduced"))
    assert found.first_divergence.path == "" and len(places) > 10
    page = opened(path).page
    assert visited(page, "n", len(places) + 1) == [*places, "(the whole model)"]
    assert visited(page, "p", len(places) + 1) == [*reversed(places), "(the whole model)"]
    select = page.get_by_label("What to jump to")
    assert f"introduced ({len(places) + 1})" in select.inner_text()
    assert select.evaluate("e => getComputedStyle(e).maxWidth") == "none", "its text is not cut off"


def test_a_filter_moves_nothing_and_tells_of_no_row(report: Path, opened: Show) -> None:
    page = opened(report).page
    page.get_by_label("Search path or class").fill("RMSNorm")
    before = page.locator(".toolbar").bounding_box()["height"]
    assert before < 50 and page.locator(".found").inner_text().startswith("7 rows")
    page.get_by_label("Search path or class").fill("no such thing")
    assert page.locator(".found").inner_text().startswith("0 rows: nothing is like this")
    assert page.locator(".row").count() == 0
    page.get_by_label("Search path or class").press("Enter")
    page.locator(".found button").click()
    assert page.locator(".toolbar").bounding_box()["height"] == before and page.locator(".found").count() == 0


def test_enter_goes_from_hit_to_hit(report: Path, opened: Show) -> None:
    page = opened(report).page
    search = page.get_by_label("Search path or class")
    search.fill("norm2")
    found = []
    for key in ("Enter", "Enter", "Enter", "Shift+Enter"):
        search.press(key)
        found.append(page.locator(".panel .path").first.inner_text())
    assert found == ["layers.2.norm2", "layers.0.norm2", "layers.1.norm2", "layers.0.norm2"]
    assert page.evaluate("document.activeElement.id") == "search"
    weights = [page.locator(f".row.{kind} .own").first.evaluate("e => getComputedStyle(e).fontWeight")
               for kind in ("hit", "around")]  # fmt: skip
    assert weights == ["700", "400"]


class Around(nn.Module):
    """A module around another one, under a name that is chosen."""

    def __init__(self, name: str, inner: nn.Module) -> None:
        super().__init__(**{name: inner})
        self.inner = name

    def forward(self, x: Tensor) -> Tensor:
        return getattr(self, self.inner)(x)


NAMED = {
    "decoder.block.1.layer.2": "block.1.layer.2", "layers.1.norm": "layers.1.norm", "model.layers.1.project": "project",
    "encoder.mlp.fc": "mlp.fc", "model.h.3": "model.h.3", "head": "head", "0": "0",
}  # fmt: skip


@pytest.mark.parametrize(("path", "named"), NAMED.items())
def test_what_the_first_divergence_is_called(path: str, named: str, tmp_path: Path, opened: Show) -> None:
    for name in "ab":
        nn.manual_seed(0)
        model: nn.Module = nn.Linear(4, 4)
        model.weight.data[0] += name == "b"
        for part in reversed(path.split(".")):
            model = Around(part, model)
        with probe.capture(model, tmp_path / f"{name}.h5"):
            model(Tensor(sample((5, 4), 0))).sum().backward()
            probe.step(loss=1.0)
    report = tmp_path / "report.html"
    found = probe.compare(tmp_path / "a.h5", tmp_path / "b.h5")
    assert found.first_divergence.path == path
    report.write_text(as_html(found), encoding="utf-8")
    assert opened(report).page.locator("h2").first.inner_text().startswith(f"First divergence: {named} ")


def test_pairs_that_were_collected_stay_in_sight(tmp_path: Path, opened: Show) -> None:
    mapping = {**MAPPING, "Block": {"norm1": "ln1", "attn": "attention"}}
    path = tmp_path / "report.html"
    path.write_text(as_html(probe.compare(*recorded(tmp_path), mapping=mapping, min_confidence=1)), encoding="utf-8")
    page = opened(path).page
    page.get_by_label("Verdict", exact=True).select_option("unmatched")
    for name in ("norm2", "ln2"):
        page.get_by_role("row").filter(has_text=name).get_by_role("button", name="match").first.click()
    page.get_by_role("button", name="Add this pair").click()
    assert "1 pair collected" in page.locator(".bar").inner_text()
    page.locator(".work").evaluate("work => work.scrollIntoView()")
    tree, bar = page.locator(".tree").bounding_box(), page.locator(".bar").bounding_box()
    assert tree["y"] + tree["height"] <= bar["y"], "no row is under the bar"
    page.get_by_role("button", name="See and export").click()
    save, bar = (page.get_by_role("button", name="Save as a file").bounding_box(), page.locator(".bar").bounding_box())
    assert 0 < save["y"] and save["y"] + save["height"] <= bar["y"]
    page.get_by_role("button", name="remove").click()
    assert page.locator(".bar").count() == 0


def test_words_are_explained_and_said_once(report: Path, opened: Show) -> None:
    page = opened(report).page
    assert page.locator(".legend li").first.get_attribute("title").startswith("The error begins here")
    assert (
        page.locator("dt", has_text="coherence").first.get_attribute("title").startswith("Cosine between A and B − A")
    )


def test_a_warning_is_not_said_again_with_its_run(report: Path, tmp_path: Path, opened: Show) -> None:
    text = report.read_text(encoding="utf-8")
    found = document_in(text)
    found["sides"]["a"]["notes"] = ["told twice", "told here"]
    found["answer"]["warnings"] = ["A: told twice"]
    data = base64.b64encode(zlib.compress(json.dumps(found).encode())).decode()
    path = tmp_path / "report.html"
    path.write_text(DATA.sub(lambda at: at[0].replace(at[1], data), text), encoding="utf-8")
    said = opened(path).page.locator(".rest").inner_text()
    assert said.count("told twice") == 1 and said.count("told here") == 1


def test_on_a_telephone_names_can_be_read(report: Path, opened: Show) -> None:
    page = opened(report, viewport={"width": 420, "height": 850}).page
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "the page does not move sideways"
    widths = page.evaluate("[...document.querySelectorAll('.row .own')].map((name) => name.parentElement.clientWidth)")
    assert widths and min(widths) >= 20, "short names need no more"
    assert page.evaluate(
        "(() => { const tree = document.querySelector('.grid'); tree.scrollLeft = 999; return tree.scrollLeft })()"
    )
    title, legend = (page.locator(f".picture {name}").bounding_box() for name in ("h2", ".legend"))
    assert title["y"] + title["height"] <= legend["y"]
    hint = "(() => { const hint = document.querySelector('.hint'); return hint.scrollHeight <= hint.clientHeight })()"
    assert page.evaluate(hint), "the whole hint is seen"
