"""The graph of the page: the error from where it is made to what it reaches, on both sides, by mouse and by keys."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import probe
from probe.adapters.numpy import nn
from probe.adapters.numpy.tensor import Tensor
from probe.report.html import as_html
from probe.testing import sample
from tests.report.reading import MAPPING, Port, compared
from tests.toys import gpt, module, record

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
