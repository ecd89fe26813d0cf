"""The keys of the page, the table of them, and the path that is copied."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import probe
from probe.report.html import as_html
from tests.report.reading import compared
from tests.view.test_view_names import recorded as recorded_with_name
from tests.view.waiting import until

Show = Callable[..., Any]
PASTED = "navigator.clipboard.readText()"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of one fault, with modules that B alone has."""
    path = tmp_path_factory.mktemp("keys") / "report.html"
    path.write_text(as_html(compared(path.parent)), encoding="utf-8")
    return path


def allowed(page: Any) -> Any:
    """Return the page, which may use the clipboard."""
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    return page


def test_the_path_of_either_side_is_copied(report: Path, opened: Show) -> None:
    page = allowed(opened(report).page)
    for side, path in (("B", "decoder.1.ln2"), ("A", "layers.1.norm2")):
        page.get_by_role("button", name=f"copy the path of {side}").click()
        until(page, "document.querySelector('.modules').innerText.includes('copied')")
        assert page.evaluate(PASTED) == path
    page.locator("#row-0").click()
    assert page.locator(".copy").count() == 0, "the path of the model is empty"
    assert "copied" not in page.locator(".panel").inner_text()


def test_c_copies_the_path_of_a_or_what_there_is(report: Path, opened: Show) -> None:
    page = allowed(opened(report).page)
    for name, path in (("norm2", "layers.0.norm2"), ("residual", "decoder.0.residual")):
        page.get_by_role("button", name="unfold").click()
        page.get_by_role("row").filter(has_text=name).first.click()
        page.keyboard.press("c")
        until(page, f"{PASTED}.then((text) => text === '{path}')")
    page.locator("#search").fill("")
    page.locator("#search").press("c")
    assert page.locator("#search").input_value() == "c", "in a field it is a letter"


def test_a_name_is_copied_as_it_is(tmp_path: Path, opened: Show) -> None:
    name = "a\nb\u202ec</script>"
    runs = [recorded_with_name(tmp_path / f"{side}.h5", name, factor) for side, factor in (("a", 2.0), ("b", 3.0))]
    path = tmp_path / "report.html"
    path.write_text(as_html(probe.compare(*runs)), encoding="utf-8")
    page = allowed(opened(path).page)
    page.keyboard.press("c")
    page.wait_for_selector("text=copied")
    assert page.evaluate(PASTED) == name and "\\u202e" in page.locator(".panel .path").first.inner_text()


@pytest.mark.parametrize("clipboard", ["undefined", "{ writeText: () => Promise.reject(new Error('no')) }"])
def test_without_a_clipboard_the_path_is_marked(clipboard: str, report: Path, opened: Show) -> None:
    page = opened(report).page
    page.evaluate(f"Object.defineProperty(navigator, 'clipboard', {{ value: {clipboard} }})")
    page.keyboard.press("c")
    page.wait_for_selector("text=marked: Ctrl+C copies it")
    assert page.evaluate("getSelection().toString()") == "layers.1.norm2"


def test_the_keys_are_shown_and_closed(report: Path, opened: Show) -> None:
    page = opened(report).page
    keys = page.get_by_role("dialog", name="Keys")
    page.locator(".grid").focus()
    page.keyboard.press("?")
    keys.wait_for()
    before = page.locator(".panel .path").first.inner_text()
    page.keyboard.press("n")
    page.keyboard.press("/")
    assert page.locator(".panel .path").first.inner_text() == before and keys.is_visible()
    for _ in range(4):
        page.keyboard.press("Tab")
        assert page.evaluate(
            "document.activeElement === document.body || Boolean(document.activeElement.closest('dialog'))"
        )
    page.keyboard.press("Escape")
    keys.wait_for(state="hidden")
    assert page.evaluate("document.activeElement.className") == "grid", "the focus is where it was"
    button = page.get_by_role("button", name="Keys")
    for close in (lambda: keys.get_by_role("button", name="Close").click(), lambda: page.mouse.click(5, 400)):
        button.click()
        keys.wait_for()
        close()
        keys.wait_for(state="hidden")
    button.focus()
    page.keyboard.press("Enter")
    keys.wait_for()
    page.keyboard.press("Escape")
    keys.wait_for(state="hidden")
    assert page.evaluate("document.activeElement.innerText") == "Keys"


def test_the_guide_names_every_key(report: Path, opened: Show) -> None:
    page = opened(report).page
    page.keyboard.press("?")
    found = page.locator("dialog kbd").all_inner_texts()
    guide = (Path(__file__).parents[2] / "docs" / "guide" / "report.md").read_text(encoding="utf-8")
    letters = [key for key in found if len(key) == 1 and key.isascii()]
    assert letters == ["n", "p", "/", "c", "m", "?", "f", "+", "-", "0"]
    assert [key for key in letters if f"`{key}`" not in guide] == []
