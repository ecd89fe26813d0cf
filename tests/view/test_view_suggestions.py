"""Matching by keyboard: the next module without a counterpart, its best candidates, and Enter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import probe
from probe.report.html import as_html
from tests.fusing import apart, together
from tests.report.reading import MAPPING, Port, recorded
from tests.toy import nn
from tests.toys import gpt, module, record
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
    form = page.get_by_role("form", name="Suggested pairs")
    assert "It does not fit: weight is [19, 16] in A, " in form.get_by_role("status").inner_text()
    assert page.locator(".lines li").count() == 0, "it asks once more"
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


# What does not fit


def written(answer: Any, folder: Path) -> Path:
    path = folder / "report.html"
    path.write_text(as_html(answer), encoding="utf-8")
    return path


def press_enter(page: Any, times: int) -> None:
    page.keyboard.press("m")
    page.get_by_role("form", name="Suggested pairs").wait_for()
    page.wait_for_timeout(100)
    for _ in range(times):
        page.keyboard.press("Enter")
        page.wait_for_timeout(60)


def other(port: nn.Module, what: str) -> nn.Module:
    """Make what A's norms could be paired with another thing."""
    for number in range(3):
        norm = module(port, f"decoder.{number}.ln2")
        if what == "weights":
            norm.weight.data *= 3.0
        if what == "shapes":
            norm.extra = nn.Parameter(np.ones(4, np.float32))
    if what == "inputs":
        module(port, "words").weight.data *= 5.0
    return port


@pytest.mark.parametrize("what", ["weights", "shapes", "inputs"])
def test_what_does_not_fit_is_not_chosen_by_enter(what: str, tmp_path: Path, opened: Show) -> None:
    """Pressing Enter again and again leaves the answer as it was."""
    runs = record(tmp_path / "a.h5"), record(tmp_path / "b.h5", other(Port(), what))
    mapping = {"TopLayer": MAPPING["TopLayer"], "Block": {"norm1": "ln1", "attn": "attention", "norm2": "nowhere"}}
    page = opened(written(probe.compare(*runs, mapping=mapping, min_confidence=1), tmp_path)).page
    press_enter(page, 6)
    form = page.get_by_role("form", name="Suggested pairs")
    assert page.locator(".lines li").count() == 0 and form.locator("input:checked").count() == 0
    assert asked(page)[0] == "layers.0.norm2" and asked(page)[1][0] == "decoder.0.ln2"
    assert "Nothing fits by itself" in form.get_by_role("status").inner_text()
    assert form.locator(".preview").count() == 0
    form.get_by_role("button", name="Skip").click()
    assert asked(page)[0] == "layers.1.norm2" and asked(page)[1][0] == "decoder.1.ln2"


def test_what_is_inside_the_partner_comes_first(tmp_path: Path, opened: Show) -> None:
    """Of layer 1's norm the only one left there, though its like stands in another layer."""
    model, port = gpt(), Port()
    for number in range(3):
        module(port, f"decoder.{number}.ln2").weight.data[...] = module(
            model, f"layers.{(number + 1) % 3}.norm2"
        ).weight.data
    mapping = {"TopLayer": MAPPING["TopLayer"], "Block": {"norm1": "ln1", "attn": "attention", "norm2": "nowhere"}}
    runs = record(tmp_path / "a.h5", model), record(tmp_path / "b.h5", port)
    page = opened(written(probe.compare(*runs, mapping=mapping, min_confidence=1), tmp_path)).page
    press_enter(page, 1)
    assert asked(page)[1][0] == "decoder.0.ln2" and page.locator(".suggestion input:checked").count() == 0


def test_a_pair_by_mouse_that_does_not_fit_is_asked_for_once_more(report: Path, opened: Show) -> None:
    page = opened(report).page
    page.get_by_label("Verdict", exact=True).select_option("unmatched")
    for name in ("embed", "ln2"):
        row = page.get_by_role("row").filter(has=page.get_by_text(name, exact=True)).first
        row.get_by_role("button", name="match").click()
    page.get_by_role("button", name="Add this pair").click()
    assert "does not fit: weight is [19, 16] in A, [16] in B" in page.locator(".bar").inner_text()
    page.get_by_role("button", name="Add it all the same").click()
    assert "1 pair collected" in page.locator(".bar").inner_text()


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("whole", ["a", "b"])
def test_several_for_one(whole: str, groups: int, tmp_path: Path, opened: Show) -> None:
    """Enter alone pairs q, k and v with the one that holds them, whichever side that is on and however they lie in it."""
    models = (together(groups), apart()) if whole == "a" else (apart(), together(groups))
    runs = [record(tmp_path / f"{name}.h5", model) for name, model in zip("ab", models, strict=True)]
    page = opened(written(probe.compare(*runs, min_confidence=1), tmp_path)).page
    press_enter(page, 2)
    assert page.get_by_role("form", name="Suggested pairs").count() == 0
    lines = page.locator(".lines textarea").input_value()
    assert "[q, k, v]" in lines and "[gate, up]" in lines
    mapping = tmp_path / "map.yaml"
    mapping.write_text(lines, encoding="utf-8")
    after = probe.compare(*runs, mapping=mapping, min_confidence=1)
    assert (after.verdict.value, after.only_a, after.only_b, after.left_out) == ("aligned", (), (), ())


def test_several_for_one_by_mouse(tmp_path: Path, opened: Show) -> None:
    runs = record(tmp_path / "a.h5", apart()), record(tmp_path / "b.h5", together())
    page = opened(written(probe.compare(*runs, min_confidence=1), tmp_path)).page
    page.get_by_label("Search path or class").fill("layers.0.attn")
    for name in ("q", "k", "v", "qkv"):
        row = page.get_by_role("row").filter(has=page.get_by_text(name, exact=True))
        row.get_by_role("button", name="match").click()
    said = " ".join(page.locator(".bar-pair").inner_text().split())
    assert said == "A layers.0.attn.q + layers.0.attn.k + layers.0.attn.v ⟷ B layers.0.attn.qkv"
    page.get_by_role("button", name="Add this pair").click()
    page.get_by_role("button", name="See and export").click()
    assert "qkv: {from: [q, k, v]" in page.locator(".lines textarea").input_value()
