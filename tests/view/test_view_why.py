"""Why a tensor was judged as it was, in the panel: the sentences that --why prints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import probe
from probe.adapters.numpy import nn
from probe.comparison.blame.table import OUTPUT
from probe.comparison.exemptions.table import EXEMPTIONS, REFITS
from probe.report.html import as_html
from tests.toys import gpt, module, record
from tests.view.waiting import until

Show = Callable[..., Any]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a model with a wrong eps, and with a buffer that nothing uses and that is another one."""
    folder = tmp_path_factory.mktemp("why")
    for name, scale in (("a", 1), ("b", 2)):
        model = gpt()
        model.table = nn.Buffer(model.embed.weight.data * scale)
        if name == "b":
            module(model, "layers.1.norm2").eps = 1e-2
        record(folder / f"{name}.h5", model)
    path = folder / "report.html"
    path.write_text(as_html(probe.compare(folder / "a.h5", folder / "b.h5")), encoding="utf-8")
    return path


def panel_of(page: Any, path: str) -> Any:
    page.evaluate("path => (location.hash = path)", path)
    until(page, "path => document.querySelector('.panel .path').textContent === path", path)
    return page.locator(".panel")


def test_what_is_wrong_names_who_answers_and_what_was_tried(report: Path, opened: Show) -> None:
    page = opened(report).page
    (module,) = (row.text for row in OUTPUT if row.code == "module")
    panel = page.locator(".panel")
    assert f"Who answers: {module}" in panel.locator(".finding").inner_text()
    tensor = panel.locator(".tensor.open")
    assert f"Who answers: {module}" in tensor.inner_text()
    sources = tensor.locator("dt", has_text="sources")
    assert sources.get_attribute("title").startswith("The largest error among what it was computed from")
    tensor.get_by_text("5 rules were tried, because it differs").click()
    assert tensor.locator("details li").all_inner_texts() == list(REFITS.values())


def test_what_was_not_judged_says_why(report: Path, opened: Show) -> None:
    page = opened(report).page
    page.locator("#row-0").click()
    panel = page.locator(".panel")
    said = f"not judged: {EXEMPTIONS['other-buffer']}"
    assert f"buffer table: {said}" in panel.locator(".exempt").inner_text()
    panel.get_by_role("button", name="buffer table").first.click()
    assert said in panel.locator(".tensor.open").inner_text()


def test_what_inherits_shows_how_far_its_sources_are_off(report: Path, opened: Show) -> None:
    page = opened(report).page
    panel = panel_of(page, "layers.2.mlp")
    panel.get_by_role("button", name="output 0").first.click()
    metrics = dict(zip(*(panel.locator(f".metrics {name}").all_inner_texts() for name in ("dt", "dd")), strict=True))
    assert float(metrics["sources"]) > 1e-4
    assert panel.locator(".exempt").count() == 0 and "Who answers" not in panel.inner_text()
