"""What is seen at 1280×800 without a touch: the verdict, the picture and the faulty row."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import probe
from probe.report.html import as_html
from tests.report.reading import compared
from tests.view.waiting import until

FAULTS = {
    "qwen2": ("model.layers.2.post_attention_layernorm", "variance_epsilon", 1e4),
    "gpt2": ("transformer.h.2.attn.c_proj", "weight", 1.02),
    "bert": ("bert.encoder.layer.1.output.LayerNorm", "eps", 1e10),
    "t5": ("decoder.block.1.layer.2.layer_norm", "variance_epsilon", 1e4),
    "resnet": ("blocks.1.bn2", "eps", 1e3),
}
"""by model: the module, the attribute that is multiplied, and the factor"""
ON_SCREEN = (".verdict", ".canvas", ".legend", ".row.selected")


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_verdict_picture_and_faulty_row_stand_on_the_first_screen(
    task: str, tmp_path: Path, opened: Callable[..., Any]
) -> None:
    path = tmp_path / "report.html"
    path.write_text(as_html(compared(tmp_path, task=task)), encoding="utf-8")
    page = opened(path).page
    assert "norm2" in page.locator(".row.selected").inner_text()
    is_complete(page)


def is_complete(page: Any) -> None:
    """Hold that the first screen has all that it should."""
    for place in ON_SCREEN:
        box = page.locator(place).bounding_box()
        assert box["y"] >= 0 and box["y"] + box["height"] <= 800, place
    row, rows = page.locator(".row.selected").bounding_box(), page.locator(".rows").bounding_box()
    assert rows["y"] <= row["y"] and row["y"] + row["height"] <= rows["y"] + rows["height"], "nothing covers it"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of each small model, recorded in a process of its own: the browser's has no framework."""
    for name in ("torch", "transformers"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"records models of torch and transformers; there is no {name}")
    folder = tmp_path_factory.mktemp("models")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "tests.view.small_models", str(folder), json.dumps(FAULTS)]
    subprocess.run(command, check=True, env=environment, cwd=Path(__file__).parents[2])
    return folder


PAINTED = """() => {
  const painted = { names: [], diamonds: [] };
  const { fillText, moveTo } = CanvasRenderingContext2D.prototype;
  const style = getComputedStyle(document.documentElement).getPropertyValue("--introduced").trim();
  CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
    if (this.fillStyle === style) painted.names.push({ text, x, y, width: this.measureText(text).width, across: this.canvas.width });
    fillText.call(this, text, x, y);
  };
  CanvasRenderingContext2D.prototype.moveTo = function (x, y) {
    if (this.fillStyle === style) painted.diamonds.push({ x, y });
    moveTo.call(this, x, y);
  };
  globalThis.painted = painted;
  dispatchEvent(new Event("beforeprint")); // paints it anew
}"""
"""what is painted in the colour of what is wrong by itself"""


@pytest.mark.parametrize("name", FAULTS)
def test_real_pairs_fill_the_first_screen(name: str, runs: Path, tmp_path: Path, opened: Callable[..., Any]) -> None:
    path = tmp_path / "report.html"
    path.write_text(as_html(probe.compare(runs / f"{name}-a.h5", runs / f"{name}-b.h5")), encoding="utf-8")
    page = opened(path).page
    page.wait_for_selector("#app[data-state=shown]")
    where = FAULTS[name][0]
    assert where in page.locator(".verdict").inner_text() and page.evaluate("scrollY") == 0
    assert page.locator(".panel .path").first.inner_text() == where
    assert page.locator(".row.selected .cell.introduced").count() >= 1
    is_complete(page)
    page.evaluate(PAINTED)
    until(page, "painted.names.length > 0")
    painted = page.evaluate("painted")
    first = painted["names"][0]
    assert where.endswith(first["text"]) and first["x"] >= 0 and first["x"] + first["width"] <= first["across"]
    assert any(first["x"] - 20 <= at["x"] <= first["x"] + first["width"] + 20 and abs(at["y"] - first["y"]) < 30
               for at in painted["diamonds"]), "it stands at a diamond"  # fmt: skip
