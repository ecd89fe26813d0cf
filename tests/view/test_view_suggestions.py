"""Matching by keyboard: the next module without a counterpart, its best candidates, and Enter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import probe
from probe.report.html import as_html
from tests.report.reading import MAPPING, recorded
from tests.toys import record
from tests.view.waiting import until

Show = Callable[..., Any]
BEFORE = {"TopLayer": {**MAPPING["TopLayer"], "embed": "nowhere"}, "Block": {"norm1": "ln1", "attn": "nowhere"}}
PAIRS = {"embed": "words", "layers.0.attn": "decoder.0.attention", "layers.0.norm2": "decoder.0.ln2"}
"""those that the mapping lacks, and the order in which they are asked"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Both runs of one fault."""
    return recorded(tmp_path_factory.mktemp("suggestions"))


@pytest.fixture
def report(runs: tuple[Path, Path], tmp_path: Path) -> Path:
    """The report of a comparison in which the embedding, the attention and the second norm of each layer have no counterpart."""
    path = tmp_path / "report.html"
    path.write_text(as_html(probe.compare(*runs, mapping=BEFORE, min_confidence=1)), encoding="utf-8")
    return path


def asked(page: Any) -> tuple[str, list[str]]:
    """Return the module that is asked for, and its candidates."""
    form = page.get_by_role("form", name="Suggested pairs")
    return form.locator("button.link bdi").first.inner_text(), form.locator("label .path").all_inner_texts()


def merged(lines: str) -> dict[str, dict[str, str]]:
    """Return the mapping with lines of the page, which are of sections and names."""
    found = {section: dict(names) for section, names in BEFORE.items()}
    section = ""
    for line in lines.splitlines():
        key, _, target = (part.strip() for part in line.partition(":"))
        if key and not target:
            section = key
        elif key:
            found.setdefault(section, {})[key] = target
    return found


def test_enter_pairs_the_best_and_shows_the_next(report: Path, runs: tuple[Path, Path], opened: Show) -> None:
    page = opened(report).page
    page.keyboard.press("m")
    for number, (path, best) in enumerate(PAIRS.items(), 1):
        until(page, "document.activeElement.type === 'radio'")
        assert (asked(page)[0], asked(page)[1][0]) == (path, best)
        page.keyboard.press("Enter")
        until(page, "n => document.querySelectorAll('.lines li').length === n", number)
    assert page.get_by_role("form", name="Suggested pairs").count() == 0, (
        "the lines are of every layer, and of what is inside"
    )
    after = probe.compare(*runs, mapping=merged(page.locator(".lines textarea").input_value()), min_confidence=1)
    assert (after.only_a, after.only_b) == ((), ()) and after.first_divergence.path == "layers.1.norm2"


def test_another_candidate_and_none(report: Path, opened: Show) -> None:
    page = opened(report).page
    page.keyboard.press("m")
    until(page, "document.activeElement.type === 'radio'")
    _, (best, second, *_) = asked(page)
    assert best == "words" and "bit-equal" in page.locator(".preview").inner_text()
    page.keyboard.press("ArrowDown")
    until(page, "document.querySelector('.suggestion label:has(:checked) .path').textContent !== 'words'")
    assert "other shapes" in page.locator(".preview").inner_text()
    page.keyboard.press("?")
    page.get_by_role("dialog").wait_for()
    page.keyboard.press("Escape")
    page.keyboard.press("Enter")
    page.wait_for_selector(".lines li")
    assert page.locator(".lines li").inner_text().startswith(f"embed ⟷ {second}")
    page.get_by_role("button", name="remove").click()
    assert asked(page)[0] == "embed", "what is in no pair is asked again"
    page.get_by_role("button", name="Skip").click()
    assert asked(page)[0] == "layers.0.attn" and page.locator(".lines li").count() == 0
    while page.get_by_role("button", name="Skip").count():
        page.get_by_role("button", name="Skip").click()
    page.get_by_role("button", name="Begin again").click()
    assert asked(page)[0] == "embed"


def test_who_picks_by_hand_is_not_asked(report: Path, opened: Show) -> None:
    page = opened(report).page
    page.get_by_label("Verdict", exact=True).select_option("unmatched")
    page.get_by_role("row").filter(has_text="embed").get_by_role("button", name="match").first.click()
    page.get_by_role("tab", name="Match by hand").click()
    assert page.get_by_role("form", name="Suggested pairs").count() == 0
    page.get_by_role("button", name="Cancel").click()
    assert asked(page)[0] == "embed"


def test_without_what_could_be_matched_the_key_does_nothing(tmp_path: Path, opened: Show) -> None:
    path = tmp_path / "report.html"
    path.write_text(as_html(probe.compare(*[record(tmp_path / f"{side}.h5") for side in "ab"])), encoding="utf-8")
    page = opened(path).page
    page.keyboard.press("m")
    assert page.get_by_role("tab", name="Modules").get_attribute("aria-selected") == "true"
