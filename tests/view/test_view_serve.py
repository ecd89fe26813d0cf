"""Picking pairs in a page from a server: they are saved, and the new answer stands there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import probe
from probe.report.serving import Server, Session
from tests.report.reading import recorded
from tests.report.test_serving import PARTIAL
from tests.view.waiting import until

Show = Callable[..., Any]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    mapping = tmp_path / "map.yaml"
    mapping.write_text(PARTIAL, encoding="utf-8")
    runs = recorded(tmp_path, task="tensor")
    found = Server(Session(lambda chosen: probe.compare(*runs, mapping=chosen, min_confidence=1), str(mapping), None))
    threading.Thread(target=found.serve_forever, args=(0.01,), daemon=True).start()
    yield found
    found.shutdown()
    found.server_close()


def pick(page: Any, *names: str) -> None:
    for name in names:
        page.get_by_role("row").filter(has_text=name).get_by_role("button", name="match").first.click()
    page.get_by_role("button", name="Add this pair").click()
    page.get_by_role("button", name="See and save").click()


def test_pick_save_and_see(server: Server, opened: Show) -> None:
    page = opened(server.url).page
    assert "norm2 ⟷ decoder.1.ln2" not in page.locator("h2").first.inner_text()
    page.get_by_label("Verdict", exact=True).select_option("unmatched")
    pick(page, "norm2", "ln2")
    assert page.locator("textarea").input_value() == "Block:\n  norm2: ln2\n"
    page.keyboard.press("n")
    until(page, "location.hash !== ''")
    page.get_by_role("tab", name="Match by hand").click()
    page.get_by_role("button", name="Save in map.yaml and compare again").click()
    page.wait_for_selector(".news")
    assert server.session.file.read_text(encoding="utf-8") == PARTIAL + "  norm2: ln2\n"
    assert "Saved 1 line in map.yaml and compared again" in page.locator(".news").inner_text()
    assert page.evaluate("scrollY") == 0, "what was picked stands further down"
    assert page.locator("h2").first.inner_text().startswith("First divergence: layers.1.norm2 ⟷ decoder.1.ln2")
    assert page.evaluate("location.hash") == "" and "norm2" in page.locator(".row.selected").inner_text()
    assert "Unmatched\nnone" in page.locator(".facts").inner_text()


def test_what_cannot_be_saved_is_said(server: Server, opened: Show) -> None:
    report = opened(server.url)
    page = report.page
    page.get_by_label("Verdict", exact=True).select_option("unmatched")
    pick(page, "norm2", "ln2")
    server.session.file.write_text(PARTIAL + "  norm2: other\n", encoding="utf-8")  # meanwhile, in an editor
    button = page.get_by_role("button", name="Save in map.yaml and compare again")
    button.click()
    said = page.locator(".lines [role=status]").first
    said.filter(has_text="Not saved").wait_for()
    assert said.inner_text() == "Not saved: map.yaml, line 12: norm2 stands here a second time; the first is on line 11"
    assert button.is_enabled()
    report.complaints.clear()  # Chromium notes the refused request by itself
