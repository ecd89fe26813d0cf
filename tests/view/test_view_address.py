"""The address names the chosen module: a link to it can be sent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import probe
from probe.report.html import as_html
from tests.report.reading import MAPPING, compared, recorded
from tests.view.test_view_names import NAMES
from tests.view.test_view_names import recorded as recorded_with_name
from tests.view.waiting import until

Show = Callable[..., Any]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of one fault, with modules that B alone has."""
    path = tmp_path_factory.mktemp("address") / "report.html"
    path.write_text(as_html(compared(path.parent)), encoding="utf-8")
    return path


def go(page: Any, fragment: str) -> None:
    """Change the address, as a person who types one."""
    page.evaluate("fragment => (location.hash = fragment)", fragment)


def chosen(page: Any) -> list[str]:
    return page.locator(".panel .path").all_text_contents()


def has_fragment(page: Any, fragment: str) -> None:
    until(page, "fragment => location.hash === fragment", fragment)


LINKS = {
    "a pair": ("layers.2.mlp", ["layers.2.mlp", "decoder.2.mlp"]),
    "of B alone": ("b:decoder.2.residual", ["decoder.2.residual"]),
    "of B": ("b:decoder.2.mlp", ["layers.2.mlp", "decoder.2.mlp"]),
    "of B, without a word": ("decoder.2.mlp", ["layers.2.mlp", "decoder.2.mlp"]),
    "the model": (".", ["(the whole model)", "(the whole model)"]),
}  # fmt: skip


@pytest.mark.parametrize(("link", "paths"), LINKS.values(), ids=LINKS)
def test_a_link_shows_its_module(link: str, paths: list[str], report: Path, opened: Show) -> None:
    page = opened(f"{report.as_uri()}#{link}").page
    until(page, "path => document.querySelector('.panel .path').textContent === path", paths[0])
    assert chosen(page) == paths and page.locator(".news").count() == 0
    row, rows = page.locator(".row.selected").bounding_box(), page.locator(".rows").bounding_box()
    assert rows["y"] <= row["y"] and row["y"] + row["height"] <= rows["y"] + rows["height"]
    go(page, "#head")
    until(page, "document.querySelector('.panel .path').textContent === 'head'")
    page.get_by_role("tab", name="What this rests on").click()
    go(page, f"#{link}")
    until(page, "path => document.querySelector('.panel .path').textContent === path", paths[0])
    assert page.locator(".row.selected").is_visible(), "the tab with the tree is shown"


def test_the_address_follows_what_is_chosen(report: Path, opened: Show) -> None:
    page = opened(report).page
    assert page.evaluate("location.hash") == "" and "norm2" in chosen(page)[0], "nothing was chosen by hand"
    before = page.evaluate("history.length")
    page.keyboard.press("n")
    has_fragment(page, "#layers.1.norm2")
    page.locator("#row-0").click()
    has_fragment(page, "#.")
    page.get_by_role("button", name="unfold").click()
    page.get_by_role("row").filter(has_text="residual").first.click()
    has_fragment(page, "#b:decoder.0.residual")
    assert page.evaluate("history.length") == before, "the way back leads out of the page"
    copied = opened(page.url).page
    until(copied, "document.querySelector('.panel .path').textContent === 'decoder.0.residual'")


UNKNOWN = {
    "no module": ("layers.99", "layers.99"), "no module of B": ("b:nothing", "nothing"), "no path": ("%E0%zz", "%E0%zz"),
    "markup": (quote("<img src=x onerror=alert(1)>"), "<img src=x onerror=alert(1)>"), "of an object": ("__proto__", "__proto__"),
    "right to left": (quote("\u202eabc"), "\\u202eabc"), "long": ("x" * 5_000, "x" * 5_000),
}  # fmt: skip


@pytest.mark.parametrize(("link", "said"), UNKNOWN.values(), ids=UNKNOWN)
def test_a_link_to_nothing_says_so(link: str, said: str, report: Path, opened: Show) -> None:
    page = opened(f"{report.as_uri()}#{link}").page
    page.on("dialog", lambda _: pytest.fail("an address was run"))
    note = page.locator(".news")
    assert note.text_content().startswith(f"The address names {said}: no module of A or B has this path.")
    assert "norm2" in chosen(page)[0], "what is chosen without a link"
    assert page.locator("img").count() == 0 and note.bounding_box()["height"] < 60
    assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
    page.keyboard.press("n")
    assert note.count() == 0


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_a_link_to_any_name(name: str, tmp_path: Path, opened: Show) -> None:
    """The address of a row leads back to it, whatever it is called."""
    runs = [recorded_with_name(tmp_path / f"{side}.h5", name, factor) for side, factor in (("a", 2.0), ("b", 3.0))]
    path = tmp_path / "report.html"
    path.write_text(as_html(probe.compare(*runs)), encoding="utf-8")
    page = opened(path).page
    page.on("dialog", lambda _: pytest.fail("a name was run"))
    page.get_by_role("button", name="unfold", exact=True).click()
    rows = page.locator(".row").count()
    found = []
    for row in range(rows):
        page.locator(f"#row-{row}").click()
        until(page, "before => ![...before, ''].includes(location.hash)", found)
        found.append(page.evaluate("location.hash"))
        page.locator("#row-0" if row else f"#row-{rows - 1}").click()
        until(page, "before => location.hash !== before", found[-1])
        go(page, found[-1])
        until(page, "row => document.querySelector('.row.selected').id === row", f"row-{row}")
    assert len(set(found)) == rows and page.locator(".news").count() == 0


def test_a_module_without_a_counterpart_is_found(tmp_path: Path, opened: Show) -> None:
    mapping = {**MAPPING, "Block": {"norm1": "ln1", "attn": "attention"}}
    path = tmp_path / "report.html"
    path.write_text(as_html(probe.compare(*recorded(tmp_path), mapping=mapping, min_confidence=1)), encoding="utf-8")
    page = opened(f"{path.as_uri()}#layers.2.norm2").page
    until(page, "document.querySelector('.panel .path').textContent === 'layers.2.norm2'")
    go(page, "#b:decoder.2.ln2")
    until(page, "document.querySelector('.panel .path').textContent === 'decoder.2.ln2'")
