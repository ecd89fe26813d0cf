"""Twenty thousand nodes: loading, scrolling and filtering stay quick. Times are printed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import probe
from probe.report.html import as_html
from probe.report.html.columns import Words, numbers
from probe.report.html.document import document
from probe.report.html.page import page
from tests.report.reading import compared
from tests.toys import gpt, module, record

BLOCKS, INSIDE = 2000, 9
NODES = 2 + BLOCKS * (1 + INSIDE)
EACH = [("init", "param"), ("forward", "input"), ("forward", "output"), ("backward", "grad_output"),
        ("backward", "grad_input"), ("gradient", "param_grad"), ("update", "param"), ("update", "delta")]  # fmt: skip
"""phase and role of the tensors of a node"""
LOADED, FRAME, FILTER = 2000, 25, 200
"""milliseconds that the page may compute until it is shown, for a frame of scrolling, and for a filter"""
WRONG = 12_345


def big(document: dict[str, Any]) -> dict[str, Any]:
    """Return a document with 20,000 nodes of eight tensors each, other numbers in all of them, in place of a small one's."""
    rng = np.random.default_rng(0)
    words = Words()
    paths, parents, depth = ["", "blocks"], [-1, 0], [0, 1]
    for k in range(BLOCKS):
        parent = len(paths)
        paths += [f"blocks.{k}", *(f"blocks.{k}.leaf{n}" for n in range(INSIDE))]
        parents += [1, *[parent] * INSIDE]
        depth += [2, *[3] * INSIDE]
    nodes = list(range(NODES))
    module = {"path": paths, "class": [words.number(f"Class{d}") for d in depth], "file": [words.number("/src/net.py")] * NODES,
              "line": nodes, "called": [words.number("")] * NODES, "parameters": [2] * NODES}  # fmt: skip
    count = NODES * len(EACH)
    phase = [(name, role, node) for name, role in EACH for node in nodes]
    verdicts = [
        "introduced" if (name, role, node) == ("forward", "output", WRONG) else "noise" for name, role, node in phase
    ]

    def digits(low: float) -> list[object]:
        return numbers((10 ** rng.uniform(low, low + 2, count)).tolist())

    def column(name: str) -> list[object]:
        return [words.number(name)] * count

    tensors = {
        "step": [0] * count, "micro": [0] * count, "call": [0] * count, "pair": [node for _, _, node in phase],
        "phase": [words.number(name) for name, _, _ in phase], "role": [words.number(role) for _, role, _ in phase],
        "verdict": list(map(words.number, verdicts)), "status": column("compared"), "estimated": [1] * count, "is_bound": [0] * count,
        **{name: column("0") for name in ("slot_a", "slot_b")}, **{name: column("float32") for name in ("dtype_a", "dtype_b")},
        **{name: column("[8, 512]") for name in ("shape_a", "shape_b")}, "is_fixed": [0] * count, "nonfinite": [],
        **{name: column("") for name in ("why_not", "max_abs_at", "measure", "exemption", "blame", "why_limit")},
        "limit": digits(-5), "sources": digits(-6), **{name: digits(-7) for name in ("error", "rel_l2", "cosine", "coherence", "norm_ratio")},
        **{name: [None] * count for name in ("max_abs", "max_rel", "mean_abs")},
        **{f"statistics_{side}": {name: [0] * count if name in ("nan", "posinf", "neginf", "zeros") else digits(0)
                                  for name in document["tensors"]["statistics_a"]} for side in "ab"},
    }  # fmt: skip
    calls = {name: [0] * NODES for name in document["calls"]} | {"pair": nodes}
    first = {**document["findings"][0], "row": WRONG, "tensor": 2 * NODES + WRONG}
    chain = {
        "kind": [0] * NODES, "parent": parents, "module": nodes, "call": [0] * NODES, "text": [words.number("")] * NODES,
        "tensor": [-1] * NODES, "source": nodes[:-1], "target": nodes[1:], "of": [2 * NODES + node for node in nodes[:-1]],
        **{name: [value] * (NODES - 1) for name, value in (("is_known", 1), ("learns", 1), ("is_around", 0))},
    }  # fmt: skip
    return {
        **document, "flow": {"step": 0, "micro": 0, "twin": nodes, "a": chain, "b": chain}, "sides": {name: {**side, "modules": module} for name, side in document["sides"].items()},
        "pairs": {"a": nodes, "b": nodes, "reason": ["same path"] * NODES, "confidence": [1.0] * NODES},
        "tree": {"a": nodes, "b": nodes, "pair": nodes, "state": ["paired"] * NODES, "depth": depth},
        "calls": calls, "tensors": tensors, "findings": [first], "loose": {"a": {}, "b": {}}, "sources": None, "words": words.all,
    }  # fmt: skip


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("big")
    path = folder / "report.html"
    path.write_text(page(big(document(compared(folder))), "big"), encoding="utf-8")
    return path


FRAMES = """async (distance) => {
  const rows = document.querySelector(".rows");
  const times = [];
  let last = performance.now();
  for (let k = 1; k <= 60; k++) {
    rows.scrollTop = k * distance;
    await new Promise(requestAnimationFrame);
    await new Promise((done) => setTimeout(done, 0));
    const now = performance.now();
    times.push(now - last);
    last = now;
  }
  times.sort((x, y) => x - y);
  return {median: times[30], worst: times[59]};
}"""
TYPED = """async (text) => {
  const search = document.getElementById("search");
  const start = performance.now();
  search.value = text;
  search.dispatchEvent(new Event("input", {bubbles: true}));
  await new Promise(requestAnimationFrame);
  await new Promise((done) => setTimeout(done, 0));
  return performance.now() - start;
}"""


def test_twenty_thousand_nodes(report: Path, opened: Callable[..., Any]) -> None:
    """What is held against the limits is the time that the page computes; the other is what it took on this machine."""
    for _ in range(3):  # as below, the best counts
        view = opened(report)
        page = view.page
        page.wait_for_selector("#app[data-state=shown]")
        loaded, shown = view.worked(), page.evaluate("performance.getEntriesByName('shown')[0].startTime")
        if loaded < LOADED:
            break
    page.get_by_role("button", name="unfold").click()
    assert int(page.get_by_role("treegrid").get_attribute("aria-rowcount")) == NODES + 1, "and the heads"
    frames: list[float] = []
    while (
        len(frames) < 8 and min(frames, default=FRAME) >= FRAME
    ):  # a shared core is slower for a while: the best counts
        before = view.worked()
        scrolled = page.evaluate(FRAMES, 520)
        frames.append((view.worked() - before) / 60)
    frame, before = min(frames), view.worked()
    assert page.locator(".row").count() < 100
    filtered = [page.evaluate(TYPED, text) for text in ("leaf4", "1234", "")]
    filters = (view.worked() - before) / 3
    page.locator("h1").first.click()
    page.keyboard.press("n")
    assert page.locator(".row.selected").get_attribute("id") == f"row-{WRONG}"
    size = report.stat().st_size / 2**20
    print(
        f"\n{NODES:,} nodes, {NODES * len(EACH):,} pairs of tensors, {size:.1f} MiB: loaded in {loaded:.0f} ms (shown after {shown:.0f}), "
        f"{frame:.1f} ms a frame while scrolling ({scrolled['median']:.0f}, at worst {scrolled['worst']:.0f}), {filters:.0f} ms a filter ({max(filtered):.0f})"
    )
    assert loaded < LOADED and frame < FRAME and filters < FILTER


def test_the_page_of_48_layers(tmp_path: Path) -> None:
    """It can be sent by mail."""
    wrong = gpt(layers=48)
    module(wrong, "layers.3.norm2").eps = 1e-2
    found = probe.compare(record(tmp_path / "a.h5", gpt(layers=48)), record(tmp_path / "b.h5", wrong))
    size = len(as_html(found).encode())
    print(f"\n48 layers, {len(found.slots):,} pairs of tensors: {size:,} bytes")
    assert len(found.slots) > 5000 and size < 1_000_000


def test_the_graph_of_twenty_thousand_nodes(report: Path, opened: Callable[..., Any]) -> None:
    view = opened(report)
    page = view.page
    page.wait_for_selector("#app[data-state=shown]")

    def worked(act: Callable[[], object]) -> float:
        before = view.worked()
        act()
        page.evaluate("new Promise(requestAnimationFrame)")
        return view.worked() - before

    shown = worked(lambda: page.get_by_role("tab", name="Graph").click())
    assert "introduced" in page.locator(".side-a .node.chosen").get_attribute("class")
    assert page.locator(".side-a .node").count() < 60, "runs of calls are folded"
    zoomed = worked(lambda: page.get_by_role("button", name="fit").click())
    run = page.locator(".side-a .node.run").first
    unfolded = worked(run.click)
    opener = page.locator(".side-a .opener").first
    opens = worked(opener.click)
    print(
        f"\ngraph: shown in {shown:.0f} ms, a run unfolded in {unfolded:.0f}, a call opened in {opens:.0f}, fitted in {zoomed:.0f}"
    )
    assert shown < 1500 and max(unfolded, opens) < 600 and zoomed < 200
