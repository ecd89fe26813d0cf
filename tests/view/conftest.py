"""A browser for the HTML report: Chromium as Debian has it, driven by Playwright."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.limits import SHOWS

WAITS = 1000 * SHOWS
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@dataclass
class Opened:
    """A report in the browser, and all that it should not have done."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    """console messages and errors"""
    requests: list[str] = field(default_factory=list)
    clock: Any = None
    address: str = ""

    def worked(self) -> float:
        """Return for how many milliseconds the page has computed, whatever else the machine does."""
        found = self.clock.send("Performance.getMetrics")["metrics"]
        return 1000 * next(each["value"] for each in found if each["name"] == "TaskDuration")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Start the browser once."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright (pip install playwright)")
    if CHROMIUM is None:
        pytest.skip("needs Chromium (apt-get install chromium)")
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def opened(browser: Any) -> Iterator[Callable[..., Opened]]:
    """Open a report, from disk or by its address; afterwards it must have complained of nothing, and asked for nothing elsewhere.

    One from disk has asked for nothing but itself.
    """
    contexts, reports = [], []

    def show(path: Path | str, **options: Any) -> Opened:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
        contexts.append(context)
        report = Opened(context.new_page())
        report.page.set_default_timeout(WAITS)
        reports.append(report)
        report.page.on("console", lambda message: report.complaints.append(message.text))
        report.page.on("pageerror", lambda error: report.complaints.append(str(error)))
        report.page.on("request", lambda request: report.requests.append(request.url))
        report.clock = context.new_cdp_session(report.page)
        report.clock.send("Performance.enable", {"timeDomain": "threadTicks"})
        report.address = path if isinstance(path, str) else path.as_uri()
        report.page.goto(report.address)
        report.page.wait_for_selector(".verdict")
        return report

    yield show
    for report in reports:
        own = ("blob:", report.address) if report.address.startswith("http:") else ("blob:",)
        asked = [url for url in report.requests[1:] if not url.startswith(own)]
        assert (report.complaints, asked) == ([], [])
    for context in contexts:
        context.close()
