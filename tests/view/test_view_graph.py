"""The graph of the page, the cells of its trees, and why a tensor was judged as it was."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import probe
from probe.answer.why import ANSWERS, LEFT
from probe.report.html import as_html
from probe.testing import sample
from tests.report.reading import MAPPING, Port, compared
from tests.toy import nn
from tests.toy.tensor import Tensor
from tests.toys import gpt, module, record
from tests.view.waiting import until

# ---- The graph of the page: the error from where it is made to what it reaches, on both sides, by mouse and by keys.

Show = Callable[..., Any]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of one fault."""
    path = tmp_path_factory.mktemp("graph") / "report.html"
    path.write_text(as_html(compared(path.parent)), encoding="utf-8")
    return path


def graph(report: Path, opened: Show, **options: Any) -> Any:
    page = opened(report, **options).page
    page.get_by_role("tab", name="Graph").click()
    page.wait_for_selector(".graph-canvas .node")
    return page


def node(page: Any, side: str, name: str) -> Any:
    """Return the node whose label begins with a side and a name."""
    return page.locator(f".side-{side} .node[aria-label^='{side.upper()} {name} ']")


def test_the_error_runs_from_the_diamond_downstream_on_both_sides(report: Path, opened: Show) -> None:
    page = graph(report, opened)
    for side, names in (("a", ("attn", "norm2", "mlp")), ("b", ("attention", "ln2", "mlp"))):
        looks = [node(page, side, name).first.get_attribute("class").split()[1] for name in names]
        assert looks[0] in ("noise", "equal") and looks[1:] == ["introduced", "inherited"]
        assert "◆" in node(page, side, names[1]).text_content()
        wide = page.locator(f".side-{side} .edge.inherited").evaluate_all(
            "all => all.map((e) => parseFloat(e.style.strokeWidth))"
        )
        thin = page.locator(f".side-{side} .edge:not(.inherited)").evaluate_all(
            "all => all.map((e) => parseFloat(e.style.strokeWidth))"
        )
        assert wide and thin and min(wide) > max(thin)


def test_pairs_stand_at_one_height(report: Path, opened: Show) -> None:
    page = graph(report, opened)
    for a, b in (("norm2", "ln2"), ("mlp", "mlp"), ("attn", "attention")):
        boxes = [node(page, *each).first.locator("rect").first.bounding_box() for each in (("a", a), ("b", b))]
        assert boxes[0]["y"] == pytest.approx(boxes[1]["y"], abs=0.5) and boxes[0]["x"] < boxes[1]["x"]


def test_the_wrong_node_is_on_the_screen_and_chosen(report: Path, opened: Show) -> None:
    page = graph(report, opened)
    chosen, canvas = page.locator(".side-a .node.chosen").bounding_box(), page.locator(".graph-canvas").bounding_box()
    assert canvas["y"] <= chosen["y"] and chosen["y"] + chosen["height"] <= canvas["y"] + canvas["height"] <= 800
    assert "First divergence" in page.locator(".verdict").inner_text()


def test_a_call_opens_and_closes_and_a_click_leads_to_the_panel(report: Path, opened: Show) -> None:
    page = graph(report, opened)
    mlp = node(page, "a", "mlp").first
    mlp.locator(".opener").click()
    assert node(page, "a", "gate").count() == node(page, "b", "gate").count() == 1, "both sides open together"
    node(page, "a", "gate").click()
    assert "layers.1.mlp.gate" in page.locator(".panel .path").first.inner_text()
    page.locator(".side-a .box-name", has_text="mlp").click()
    assert node(page, "a", "gate").count() == 0


def test_arrows_follow_the_data_and_keys_open_and_zoom(report: Path, opened: Show) -> None:
    page = graph(report, opened)
    page.locator(".graph-canvas").focus()
    page.keyboard.press("ArrowDown")
    assert page.locator(".panel .path").first.inner_text() == "layers.1.mlp"
    page.keyboard.press("Enter")
    assert node(page, "a", "gate").count() == 1
    page.keyboard.press("Enter")
    assert node(page, "a", "gate").count() == 0
    page.keyboard.press("ArrowUp")
    assert page.locator(".panel .path").first.inner_text() == "layers.1.norm2"
    before = page.locator(".graph-canvas > g").get_attribute("transform")
    page.keyboard.press("+")
    assert page.locator(".graph-canvas > g").get_attribute("transform") != before
    active = page.locator(".graph-canvas").get_attribute("aria-activedescendant")
    assert "norm2" in page.locator(f"#{active}").get_attribute("aria-label")


def test_backward_turns_the_arrows(report: Path, opened: Show) -> None:
    page = graph(report, opened)
    assert page.locator(".edge[marker-start]").count() == 0 < page.locator(".edge[marker-end]").count()
    page.get_by_label("Phase of the graph").select_option("backward")
    assert page.locator(".edge[marker-end]").count() == 0 < page.locator(".edge[marker-start]").count()


def test_one_side_alone_on_a_telephone(report: Path, opened: Show) -> None:
    page = graph(report, opened, viewport={"width": 390, "height": 800})
    assert page.locator(".side-b").count() == 0 < page.locator(".side-a .node").count()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_slash_searches_from_the_graph_and_escape_gives_the_page_back(report: Path, opened: Show) -> None:
    page = graph(report, opened)
    page.keyboard.press("f")
    page.wait_for_selector("main.large")
    page.keyboard.press("Escape")
    page.wait_for_selector("main.graph-shown:not(.large)")
    page.keyboard.press("/")
    page.wait_for_selector("#search:focus")


def test_arrows_lead_through_what_code_makes(report: Path, opened: Show) -> None:
    page = graph(report, opened)
    page.locator(".graph-canvas").focus()
    seen = []
    for _ in range(4):  # from the norm to the MLP, the sum behind it, and on
        page.keyboard.press("ArrowDown")
        page.evaluate("new Promise((shown) => requestAnimationFrame(() => setTimeout(shown)))")
        chosen = page.locator(".side-a .node.chosen")
        assert chosen.count() == 1
        seen.append(chosen.get_attribute("aria-label"))
    assert len(set(seen)) >= 3, seen


def test_both_sides_are_named(report: Path, opened: Show) -> None:
    page = graph(report, opened)
    assert page.locator(".graph-canvas .side-label").all_text_contents() == ["A", "B"]


def test_the_names_of_the_sides_stay_at_the_top(report: Path, opened: Show) -> None:
    page = graph(report, opened)
    canvas = page.locator(".graph-canvas").bounding_box()
    page.mouse.move(canvas["x"] + 300, canvas["y"] + 200)
    page.mouse.wheel(0, 300)
    page.wait_for_timeout(100)
    for label in page.locator(".side-label").all():
        assert canvas["y"] - 2 <= label.bounding_box()["y"] < canvas["y"] + 20


def test_what_is_given_something_wrong_has_no_diamond(tmp_path: Path, opened: Show) -> None:
    """The code of a block multiplies what its MLP is given: the block is wrong, not the MLP; the picture from Python says so too."""
    port = Port()
    block = module(port, "decoder.1")

    def forward(x: Any) -> Any:
        x = block.residual(x, block.attention(block.ln1(x)))
        return block.residual(x, block.mlp(block.ln2(x) * 1.5))

    block.forward = forward
    answer = probe.compare(record(tmp_path / "a.h5", gpt()), record(tmp_path / "b.h5", port), mapping=MAPPING)
    assert answer.first_divergence.path == "layers.1"
    path = tmp_path / "report.html"
    path.write_text(as_html(answer), encoding="utf-8")
    page = graph(path, opened)
    assert "◆" in node(page, "a", "layers.1").text_content()
    node(page, "a", "layers.1").locator(".opener").click()
    marked = page.locator(".side-a .node:has(.diamond)").all_text_contents()
    assert node(page, "a", "mlp").count() == 1 and not any("mlp" in each or "norm2" in each for each in marked), marked


class Wide(nn.Module):
    """Many layers beside each other."""

    def __init__(self, count: int) -> None:
        super().__init__(branches=nn.ModuleList(*(nn.Linear(4, 4) for _ in range(count))), norm=nn.RMSNorm(4))

    def forward(self, x: Tensor) -> Tensor:
        total = x
        for branch in self.branches:
            total = total + branch(x)
        return self.norm(total)


def test_both_sides_of_a_wide_graph_are_seen_first(tmp_path: Path, opened: Show) -> None:
    for name in "ab":
        nn.manual_seed(0)
        model = Wide(9)
        if name == "b":
            list(model.branches)[4].weight.data[0] += 1.0
        with probe.capture(model, tmp_path / f"{name}.h5"):
            model(Tensor(sample((5, 4), 0))).sum().backward()
            probe.step(loss=1.0)
    path = tmp_path / "report.html"
    path.write_text(as_html(probe.compare(tmp_path / "a.h5", tmp_path / "b.h5")), encoding="utf-8")
    page = graph(path, opened)
    canvas = page.locator(".graph-canvas").bounding_box()
    for side in "ab":
        chosen = page.locator(f".side-{side} .node.chosen").bounding_box()
        assert canvas["x"] <= chosen["x"] and chosen["x"] + chosen["width"] <= canvas["x"] + canvas["width"], side


def test_which_way_it_runs_is_said(report: Path, opened: Show) -> None:
    page = graph(report, opened)
    assert "data runs down" in page.locator(".graph-legend").inner_text()
    page.get_by_label("Phase of the graph").select_option("backward")
    assert "gradients run up" in page.locator(".graph-legend").inner_text()
    assert any("grad" in text or "float32" in text for text in page.locator(".edge-hit title").all_text_contents())


# ---- The cells of the trees: what was not judged, what a folded row has inside, and how large an inherited error is.


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


# ---- Why a tensor was judged as it was, in the panel: the sentences that --why prints.


class Activated(nn.Linear):
    """Applies the activation itself."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.SiLU()(super().forward(x))


class Nothing(nn.SiLU):
    """Leaves it to the module before."""

    def forward(self, x: Tensor) -> Tensor:
        return x


@pytest.fixture(scope="module")
def report_why(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a model with a wrong eps, and before it an activation that the module before applies itself."""
    folder = tmp_path_factory.mktemp("why")
    record(folder / "a.h5", gpt())
    model = gpt()
    module(model, "layers.1.norm2").eps = 1e-2
    first = module(model, "layers.0.mlp")
    first.gate.__class__, first.act.__class__ = Activated, Nothing
    record(folder / "b.h5", model)
    path = folder / "report.html"
    path.write_text(as_html(probe.compare(folder / "a.h5", folder / "b.h5")), encoding="utf-8")
    return path


def panel_of(page: Any, path: str) -> Any:
    page.evaluate("path => (location.hash = path)", path)
    until(page, "path => document.querySelector('.panel .path').textContent === path", path)
    return page.locator(".panel")


def test_what_is_wrong_names_who_answers_and_why_its_limit(report_why: Path, opened: Show) -> None:
    page = opened(report_why).page
    panel = page.locator(".panel")
    assert f"Who answers: {ANSWERS['module']}" in panel.locator(".finding").inner_text()
    tensor = panel.locator(".tensor.open")
    assert f"Who answers: {ANSWERS['module']}" in tensor.inner_text()
    assert "Why this limit: 16 roundings" in tensor.inner_text()
    sources = tensor.locator("dt", has_text="sources")
    assert sources.get_attribute("title").startswith("The largest error among what it was computed from")


def test_what_heals_says_why(report_why: Path, opened: Show) -> None:
    panel = panel_of(opened(report_why).page, "layers.0.mlp.gate")
    said = f"healed: {LEFT['moved-border']}"
    assert f"output 0: {said}" in panel.locator(".exempt").inner_text()
    panel.get_by_role("button", name="output 0").first.click()
    assert said in panel.locator(".tensor.open").inner_text()


def test_what_inherits_shows_how_far_its_sources_are_off(report_why: Path, opened: Show) -> None:
    page = opened(report_why).page
    panel = panel_of(page, "layers.2.mlp")
    panel.get_by_role("button", name="output 0").first.click()
    metrics = dict(zip(*(panel.locator(f".metrics {name}").all_inner_texts() for name in ("dt", "dd")), strict=True))
    assert float(metrics["sources"]) > 1e-4
    assert panel.locator(".exempt").count() == 0 and "Who answers" not in panel.inner_text()
