"""axe-core, which checks pages by the rules of WCAG, finds nothing in any tab."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import probe
from probe.report.html import as_html
from tests.report.reading import MAPPING, recorded

AXE = Path(probe.__file__).parent / "report" / "html" / "app" / "node_modules" / "axe-core" / "axe.min.js"
RUN = """async () => (await axe.run(document, { resultTypes: ["violations"] })).violations
  .flatMap(({ id, impact, nodes }) => nodes.map(({ html, failureSummary }) => `${impact} ${id}: ${html} ${failureSummary}`))"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of one fault, from values, with unmatched modules, curves and several steps."""
    folder = tmp_path_factory.mktemp("axe")
    mapping = {**MAPPING, "TopLayer": {**MAPPING["TopLayer"], "embed": "nowhere"}}
    path = folder / "report.html"
    runs = recorded(folder, task="tensor", steps=2)
    path.write_text(as_html(probe.compare(*runs, mapping=mapping, min_confidence=1)), encoding="utf-8")
    return path


@pytest.mark.skipif(
    not AXE.exists(), reason="needs axe-core: npm ci in probe/report/html/app (scripts/build-report does it)"
)
@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 1280), ("light", 390)])
def test_axe_finds_nothing(scheme: str, width: int, report: Path, opened: Callable[..., Any]) -> None:
    size = {"width": width, "height": 800}
    page = opened(report, color_scheme=scheme, viewport=size, bypass_csp=True).page  # axe is no script of the page
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found = {}
    for tab in page.get_by_role("tab").all():
        tab.click()
        found[tab.inner_text()] = page.evaluate(RUN)
    page.get_by_role("tab", name="Modules").click()
    page.evaluate("location.hash = '#nothing'")
    page.wait_for_selector(".news")
    page.get_by_role("row").filter(has_text="embed").get_by_role("button", name="match").first.click()
    found["a module that is picked"] = page.evaluate(RUN)
    page.keyboard.press("?")
    found["keys"] = page.evaluate(RUN)
    assert {place: said for place, said in found.items() if said} == {} and len(found) == 7
