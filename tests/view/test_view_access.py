"""The page by keyboard, for a screen reader, for eyes that need contrast, and on paper."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import probe
from probe.report.html import as_html
from tests.report.reading import MAPPING, Port, compared, recorded
from tests.toys import record
from tests.view.test_view_names import recorded as recorded_with_name
from tests.view.waiting import until

# ---- The page by keyboard, for a screen reader, for eyes that need contrast, and on paper.

Show = Callable[..., Any]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of one fault, from values, with unmatched modules: all that a page can have on it."""
    folder = tmp_path_factory.mktemp("access")
    mapping = {**MAPPING, "TopLayer": {**MAPPING["TopLayer"], "embed": "nowhere"}}
    path = folder / "report.html"
    path.write_text(
        as_html(probe.compare(*recorded(folder, task="tensor", steps=2), mapping=mapping, min_confidence=1)),
        encoding="utf-8",
    )
    return path


CONTRAST = """() => {
  const luminance = (rgb) => rgb.map((c) => (c /= 255, c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, k) => sum + c * [0.2126, 0.7152, 0.0722][k], 0);
  const rgba = (text) => { // mixed colours are color(srgb 0.9 0.8 0.5)
    const n = text.match(/[\\d.]+/g).map((each, k) => Number(each) * (text.startsWith("color(srgb") && k < 3 ? 255 : 1));
    return n.length > 3 ? n : [...n, 1];
  };
  const behind = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const color = rgba(getComputedStyle(e).backgroundColor);
      if (color[3] > 0.99) return color.slice(0, 3);
    }
    return [255, 255, 255];
  };
  const found = {};
  for (const e of document.querySelectorAll("body *")) {
    const text = [...e.childNodes].filter((n) => n.nodeType === 3).map((n) => n.data).join("").trim();
    const style = getComputedStyle(e);
    const hidden = e.closest(".hidden") || !e.getClientRects().length || style.visibility === "hidden" || e.disabled;
    if (!text || hidden || e.tagName === "SCRIPT") continue;
    let opacity = 1;
    for (let at = e; at; at = at.parentElement) opacity *= Number(getComputedStyle(at).opacity);
    if (opacity === 0) continue;
    const back = behind(e);
    const fore = rgba(style.color).slice(0, 3).map((c, k) => c * opacity + back[k] * (1 - opacity));
    const [low, high] = [luminance(fore), luminance(back)].sort((x, y) => x - y);
    const ratio = (high + 0.05) / (low + 0.05);
    const isLarge = parseFloat(style.fontSize) >= 24 || parseFloat(style.fontSize) >= 18.66 && Number(style.fontWeight) >= 700;
    if (ratio < (isLarge ? 3 : 4.5)) found[`${e.tagName}.${e.className}`] = `${ratio.toFixed(2)} ${text.slice(0, 30)}`;
  }
  return found;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_can_be_read(scheme: str, report: Path, opened: Show) -> None:
    """WCAG's 4.5 to 1, 3 to 1 for what is large."""
    page = opened(report, color_scheme=scheme).page
    page.evaluate("document.querySelectorAll('details').forEach((each) => (each.open = true))")
    assert page.evaluate(CONTRAST) == {}
    for name in ("embed", "words"):
        row = page.get_by_role("row").filter(has=page.get_by_text(name, exact=True))
        row.get_by_role("button", name="match").click()
    page.get_by_label("Verdict", exact=True).select_option("introduced")
    assert page.locator(".bar").is_visible() and page.evaluate(CONTRAST) == {}


@pytest.mark.parametrize("verdict", ["aligned", "undecided"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_other_answers_can_be_read(verdict: str, scheme: str, tmp_path: Path, opened: Show) -> None:
    found = compared(tmp_path, fault=False)
    if verdict == "undecided":
        other = record(tmp_path / "c.h5", Port())
        found = probe.compare(tmp_path / "a.h5", other, min_confidence=1, min_coverage=1)
    assert found.verdict.value == verdict
    path = tmp_path / "report.html"
    path.write_text(as_html(found), encoding="utf-8")
    assert opened(path, color_scheme=scheme).page.evaluate(CONTRAST) == {}


FOCUSED = """() => {
  const e = document.activeElement;
  const style = getComputedStyle(e);
  const box = e.getBoundingClientRect();
  return {
    name: e.getAttribute("aria-label") ?? e.innerText ?? "", tag: e.tagName,
    isRinged: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2,
    isOnScreen: box.bottom > 0 && box.top < innerHeight,
  };
}"""


def test_everything_is_reached_by_tab_and_seen_to_be(report: Path, opened: Show) -> None:
    page = opened(report).page
    met = []
    for _ in range(120):
        page.keyboard.press("Tab")
        at = page.evaluate(FOCUSED)
        if at["tag"] == "BODY":
            break
        assert at["isRinged"] and at["isOnScreen"], at
        met.append(at["name"].split("\n")[0])
    assert (
        met.index("Dark")
        < met.index("Search path or class")
        < met.index("Modules of A and B, with the error in each phase")
    )
    for name in ("GPT ⟷ Port", "Phase", "Verdict", "Reason of the match", "What to jump to", "↑ p", "↓ n", "unfold", "fold",
                 "Which axes"):  # fmt: skip
        assert name in met, name
    assert any(name.startswith("output 0") for name in met), "the tensors of the panel"


def test_a_pair_is_matched_by_keyboard_alone(report: Path, opened: Show) -> None:
    page = opened(report).page
    page.get_by_label("What to jump to").select_option("unmatched")
    page.locator("h1").click()
    for side in "ab":
        page.keyboard.press("n")
        button = page.locator(".panel").get_by_role("button", name="a match")
        for _ in range(8):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.innerText").startswith("choose as"):
                break
        assert button.inner_text() in ("choose as A of a match", "choose as B of a match"), side
        page.keyboard.press("Enter")
        assert button.inner_text() == "no longer chosen for a match"
    page.get_by_role("button", name="Add this pair").focus()
    page.keyboard.press("Enter")
    assert page.locator(".lines textarea").input_value().count("embed: words") == 1


def test_rows_tell_what_they_are(report: Path, opened: Show) -> None:
    page = opened(report).page
    tree = page.get_by_role("treegrid")
    heads = [
        head.get_attribute("aria-label") or head.inner_text().strip() for head in tree.get_by_role("columnheader").all()
    ]
    assert heads == ["A", "init", "forward", "backward", "gradient", "update", "B", "introduced inside"]
    root = page.locator("#row-0")
    assert {name: root.get_attribute(f"aria-{name}") for name in ("level", "expanded", "rowindex", "selected")} == {
        "level": "1", "expanded": "true", "rowindex": "2", "selected": "false",
    }  # fmt: skip
    chosen = page.locator(f"#{tree.get_attribute('aria-activedescendant')}")
    assert "norm2" in chosen.inner_text() and chosen.get_attribute("aria-selected") == "true"
    assert chosen.get_attribute("aria-level") == "4" and chosen.get_attribute("aria-expanded") is None
    page.set_viewport_size({"width": 1280, "height": 500})
    page.get_by_role("button", name="unfold").click()
    page.locator(".rows").evaluate("rows => (rows.scrollTop = 1e6)")
    page.wait_for_selector(".row.selected", state="detached")
    assert tree.get_attribute("aria-activedescendant") is None, "a row that is not in the page cannot be named"


def test_on_paper(report: Path, opened: Show, tmp_path: Path) -> None:
    """Rows are not cut off, what has no use there is left out, and paper is white."""
    page = opened(report, color_scheme="dark", viewport={"width": 1280, "height": 600}).page
    page.get_by_role("button", name="unfold").click()
    before = page.locator(".row").count()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    rows = int(page.get_by_role("treegrid").get_attribute("aria-rowcount")) - 1
    assert page.locator(".row").count() == rows > before
    last = page.locator(".row").last.bounding_box()
    panel = page.locator(".panel").bounding_box()
    assert last["y"] + last["height"] <= panel["y"], "the panel stands behind the rows, not on them"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    for part in (".toolbar", ".matching", ".top button"):
        assert not page.locator(part).first.is_visible(), part
    page.set_viewport_size({"width": 760, "height": 600})
    canvas = page.locator(".canvas canvas").bounding_box()
    assert canvas["x"] + canvas["width"] <= 760
    page.emulate_media(media="screen")
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 27)"
    assert page.locator(".row").count() < rows


# ---- The keys of the page, the table of them, and the path that is copied.

PASTED = "navigator.clipboard.readText()"


@pytest.fixture(scope="module")
def report_keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of one fault, with modules that B alone has."""
    path = tmp_path_factory.mktemp("keys") / "report.html"
    path.write_text(as_html(compared(path.parent)), encoding="utf-8")
    return path


def allowed(page: Any) -> Any:
    """Return the page, which may use the clipboard."""
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    return page


def test_the_path_of_either_side_is_copied(report_keys: Path, opened: Show) -> None:
    page = allowed(opened(report_keys).page)
    for side, path in (("B", "decoder.1.ln2"), ("A", "layers.1.norm2")):
        page.get_by_role("button", name=f"copy the path of {side}").click()
        until(page, "document.querySelector('.modules').innerText.includes('copied')")
        assert page.evaluate(PASTED) == path
    page.locator("#row-0").click()
    assert page.locator(".copy").count() == 0, "the path of the model is empty"
    assert "copied" not in page.locator(".panel").inner_text()


def test_c_copies_the_path_of_a_or_what_there_is(report_keys: Path, opened: Show) -> None:
    page = allowed(opened(report_keys).page)
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
def test_without_a_clipboard_the_path_is_marked(clipboard: str, report_keys: Path, opened: Show) -> None:
    page = opened(report_keys).page
    page.evaluate(f"Object.defineProperty(navigator, 'clipboard', {{ value: {clipboard} }})")
    page.keyboard.press("c")
    page.wait_for_selector("text=marked: Ctrl+C copies it")
    assert page.evaluate("getSelection().toString()") == "layers.1.norm2"


def test_the_keys_are_shown_and_closed(report_keys: Path, opened: Show) -> None:
    page = opened(report_keys).page
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


def test_the_guide_names_every_key(report_keys: Path, opened: Show) -> None:
    page = opened(report_keys).page
    page.keyboard.press("?")
    found = page.locator("dialog kbd").all_inner_texts()
    guide = (Path(__file__).parents[2] / "docs" / "guide" / "report.md").read_text(encoding="utf-8")
    letters = [key for key in found if len(key) == 1 and key.isascii()]
    assert letters == ["n", "p", "/", "c", "m", "?", "f", "+", "-", "0"]
    assert [key for key in letters if f"`{key}`" not in guide] == []
