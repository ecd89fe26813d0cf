"""Twenty thousand nodes: loading, scrolling and filtering stay quick. Times are printed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import probe
from probe.adapters import numpy_nn as nn
from probe.adapters.numpy_tensor import Tensor
from probe.report.html import as_html

BLOCKS, INSIDE = 2000, 9


class Leaf(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__(weight=nn.Parameter(np.full(2, factor, np.float32)))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


class Block(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        for each in list(vars(self).values()):
            if isinstance(each, Leaf):
                x = each(x)
        return x


class Big(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        total = None
        for block in self.blocks:
            y = block(x)
            total = y if total is None else total + y
        return total


def big(folder: Path, name: str, wrong: int | None = None) -> Path:
    """Record a model of 20,000 modules, of which one may be wrong."""
    blocks = [Block(**{f"leaf{k}": Leaf(1.0 + k / 8) for k in range(INSIDE)}) for _ in range(BLOCKS)]
    if wrong is not None:
        blocks[wrong].leaf4.__class__ = type("Leaf", (Leaf,), {"forward": lambda self, x: x * self.weight * 1.01})
    model = Big(blocks=nn.ModuleList(*blocks))
    optimizer = nn.SGD(model.parameters(), lr=0.1)
    with probe.capture(model, folder / name):
        loss = model(Tensor(np.ones((3, 2), np.float32))).sum()
        loss.backward()
        optimizer.step()
        probe.step(loss=loss)
    return folder / name


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("big")
    comparison = probe.compare(big(folder, "a.h5"), big(folder, "b.h5", wrong=1234))
    path = folder / "report.html"
    path.write_text(as_html(comparison), encoding="utf-8")
    for each in ("a.h5", "b.h5"):
        (folder / each).unlink()
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
    page = opened(report).page
    shown = page.evaluate("performance.getEntriesByName('shown')[0].startTime")
    assert page.locator(".verdict .path").first.inner_text() == "blocks.1234.leaf4"
    page.get_by_role("button", name="unfold").click()
    assert int(page.get_by_role("treegrid").get_attribute("aria-rowcount")) == 2 + BLOCKS * (1 + INSIDE)
    scrolled = page.evaluate(FRAMES, 2600)
    assert page.locator(".row").count() < 100
    filtered = [page.evaluate(TYPED, text) for text in ("leaf4", "1234", "")]
    page.keyboard.press("Escape")
    page.locator("h3").first.click()
    page.keyboard.press("n")
    assert "leaf4" in page.locator(".row.selected").inner_text()
    size = report.stat().st_size / 2**20
    print(
        f"\n20,001 nodes, {size:.1f} MiB: shown after {shown:.0f} ms; a frame while scrolling {scrolled['median']:.0f} ms, "
        f"at worst {scrolled['worst']:.0f} ms; a filter {max(filtered):.0f} ms"
    )
    assert shown < 2000 and scrolled["median"] < 50 and max(filtered) < 500
