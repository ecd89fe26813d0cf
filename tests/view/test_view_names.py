"""Names that no one expects are shown as text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import probe
from probe.report.html import as_html
from probe.testing import sample
from tests.toy import nn
from tests.toy.tensor import Tensor

NAMES = {
    "markup": "<img src=x onerror=alert(1)>", "end of script": "</script><script>alert(1)</script>", "quotes": "'\"`\\",
    "newline": "a\nb", "long": "x" * 10_000, "right to left": "\u202eabc", "emoji": "🔥", "surrogate": "a\ud800b",
    "template": "${alert(1)} {{7*7}}", "proto": "__proto__x", "slash": "a/b",
}  # fmt: skip


def recorded(path: Path, name: str, factor: float) -> Path:
    class Inner(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            probe.log(name, x)
            return x * factor

    Inner.__name__ = Inner.__qualname__ = name.encode("utf-8", "backslashreplace").decode()

    class Outer(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return getattr(self, name)(x)

    model = Outer(**{name: Inner(), f"{name}-{factor}": Inner()})
    with probe.capture(model, path, task="tensor"):
        model(Tensor(sample((5, 4), 0)))
        probe.step(loss=1.0, **{name: factor})
    return path


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_a_name_everywhere(name: str, tmp_path: Path, opened: Callable[..., Any]) -> None:
    a, b = recorded(tmp_path / "a.h5", name, 2.0), recorded(tmp_path / "b.h5", name, 3.0)
    path = tmp_path / "report.html"
    path.write_text(as_html(probe.compare(a, b)), encoding="utf-8")
    page = opened(path).page
    page.on("dialog", lambda _: pytest.fail("a name was run"))
    stored = name.encode("utf-8", "backslashreplace").decode()
    visible = stored.replace("\n", "\\x0a").replace("\u202e", "\\u202e")
    for place in (".verdict .path", ".row .own", ".panel .path", ".chain"):
        assert any(visible in text for text in page.locator(place).all_text_contents()), place
    assert page.locator("img").count() == 0 and page.locator("script").count() == 3
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing is wider than the window"
    row = page.locator(".row.selected").bounding_box()
    assert row["height"] < 40


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_a_name_in_the_page_of_one_recording(name: str, tmp_path: Path, opened: Callable[..., Any]) -> None:
    with probe.open(recorded(tmp_path / "a.h5", name, 2.0)) as run:
        page = opened(run.save(tmp_path / "run.html")).page
    page.on("dialog", lambda _: pytest.fail("a name was run"))
    stored = name.encode("utf-8", "backslashreplace").decode()
    visible = stored.replace("\n", "\\x0a").replace("\u202e", "\\u202e")
    assert any(visible in text for text in page.locator(".row .own").all_text_contents())
    for tab in page.get_by_role("tab").all():
        tab.click()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), tab.inner_text()
    assert page.locator("img").count() == 0 and page.locator("script").count() == 3
