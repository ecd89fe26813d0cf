"""Takes the pictures of docs/guide/report.md in Chromium, and draws that of docs/guide/notebook.md; scripts/report-images runs it.

python -m tests.view.pictures A.h5 B.h5 FOLDER
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

import probe
from probe.mapping import library
from probe.report.html import as_html
from probe.report.serving import Server, Session
from tests.view.conftest import CHROMIUM

MAPPING = "megatron-core/qwen2"
LACKING = ("pre_mlp_layernorm: post", "output_layer: lm_head")
"""lines that a mapping lacks in the pictures of matching by mouse"""


def main(a: Path, b: Path, folder: Path) -> None:
    """Take all pictures."""
    report = a.with_name("report.html")
    answer = probe.compare(a, b, MAPPING)
    report.write_text(as_html(answer), encoding="utf-8")
    answer.plot("graph").figure.savefig(folder / "graph.png", dpi=80)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        shoot = _camera(browser, folder)
        with shoot("report-light-1280", report.as_uri(), "light", (1280, 800)):
            pass
        with shoot("report-dark-1920", report.as_uri(), "dark", (1920, 1080)) as page:
            page.locator(".canvas").hover(position={"x": 410, "y": 88})
        run = a.with_name("run.html")
        with probe.open(a) as recording:
            recording.save(run)
        with shoot("report-run", f"{run.as_uri()}#model.layers.3.mlp.act_fn", "light", (1280, 800)) as page:
            page.get_by_label("Step", exact=True).select_option("11")
        with shoot("report-light-1920", report.as_uri(), "light", (1920, 1080)) as page:
            _show_the_work(page)
        with shoot("report-dark-1280", report.as_uri(), "dark", (1280, 800)) as page:
            _show_the_work(page)
        mapping = a.with_name("map.yaml")
        lines = library()[MAPPING].read_text(encoding="utf-8").splitlines(keepends=True)
        mapping.write_text("".join(line for line in lines if not line.lstrip().startswith(LACKING)), encoding="utf-8")
        with _served(a, b, mapping) as address:
            with shoot("report-match", address, "light", (1280, 1180)) as page:
                _pick(page, "lm_head", "output_layer")
                page.get_by_role("button", name="Add this pair").click()
                page.keyboard.press("m")
                page.wait_for_selector(".suggestion")
            with shoot("report-serve", address, "light", (1280, 800)) as page:
                _pick(page, "post_attention_layernorm", "pre_mlp_layernorm")
                page.get_by_role("button", name="Add this pair").click()
                page.get_by_role("button", name="See and save").click()
                page.get_by_role("button", name="Save in map.yaml and compare again").click()
                page.wait_for_selector(".news", timeout=300_000)
        browser.close()


def _camera(browser: Browser, folder: Path) -> Callable[..., Any]:
    @contextmanager
    def shoot(name: str, address: str, scheme: Any, size: tuple[int, int]) -> Iterator[Page]:
        context = browser.new_context(viewport={"width": size[0], "height": size[1]}, color_scheme=scheme)
        page = context.new_page()
        page.goto(address)
        page.wait_for_selector("#app[data-state=shown]")
        yield page
        page.wait_for_timeout(300)
        page.screenshot(path=folder / f"{name}.png")
        context.close()

    return shoot


@contextmanager
def _served(a: Path, b: Path, mapping: Path) -> Iterator[str]:
    with Server(Session(lambda chosen: probe.compare(a, b, chosen, min_confidence=1), str(mapping), None)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.url
        server.shutdown()


def _show_the_work(page: Page) -> None:
    """Show the trees, and of the panel the heat map."""
    page.locator(".work").evaluate("work => work.scrollIntoView()")
    page.locator(".panel").evaluate(
        "panel => panel.scrollTop = panel.querySelector('.tensor.open').offsetTop - panel.offsetTop - 60"
    )


def _pick(page: Page, *names: str) -> None:
    page.get_by_label("Verdict", exact=True).select_option("unmatched")
    for name in names:
        page.get_by_role("row").filter(has_text=name).get_by_role("button", name="match").last.click()


if __name__ == "__main__":
    main(*(Path(each).resolve() for each in sys.argv[1:]))
