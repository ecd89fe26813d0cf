"""The headline of every kind of page: the verdict, what it says nothing of, and where its reason leads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import probe
from probe.report.html import as_html
from tests.report.reading import MAPPING, compared, recorded
from tests.toys import gpt, module, record, rounding_otherwise

Show = Callable[..., Any]
WITHIN = "Nothing that was compared differs by more than rounding explains."


def both(folder: Path, change: Callable[[Any], Any] = rounding_otherwise, **options: Any) -> Any:
    """Compare the clean model with a changed one."""
    return probe.compare(record(folder / "a.h5", **options), record(folder / "b.h5", change(gpt()), **options))


def with_nan(folder: Path) -> Any:
    """Compare two models of which both have NaN in one weight."""
    models = gpt(), gpt()
    for model in models:
        module(model, "layers.1.norm2").weight.data[:] = np.nan
    return probe.compare(*(record(folder / f"{name}.h5", model) for name, model in zip("ab", models, strict=True)))


def ignoring(folder: Path) -> Any:
    """Compare what a mapping ignores a part of and leads to nothing in another, and what was recorded in part."""
    _, b = recorded(folder, fault=False, steps=2, phases=["init", "forward"])
    table = {**MAPPING["TopLayer"], "embed": "nowhere"}
    mapping = {**MAPPING, "TopLayer": table, "ignore": ["*.mlp"]}
    return probe.compare(record(folder / "c.h5"), b, mapping=mapping, min_confidence=1)


def one(folder: Path) -> Any:
    return record(folder / "a.h5")


PAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "aligned": (both, f"Aligned {WITHIN}"),
    "aligned but for phases": (
        lambda folder: both(folder, phases=["forward"]),
        "Aligned but for init, backward, gradient, update (not recorded)",
    ),
    "aligned but for more": (
        ignoring,
        "Aligned but for backward, gradient, update (not recorded in B), step 1 (not recorded in A), "
        "weight embed.weight (only in A) and 2 more",
    ),
    "diverged": (compared, "Diverged First divergence: layers.1.norm2 ⟷ decoder.1.ln2 step 0 · forward · introduced"),
    "undecided": (with_nan, "Undecided It could not be told whether the runs agree."),
    "undecided, of no module": (
        lambda folder: probe.compare(folder / "a.h5", record(folder / "a.h5")),
        "Undecided It could not be told whether the runs agree.",
    ),
    "one recording": (one, "Recorded GPT numpy"),
}


def written(made: Any, folder: Path) -> Path:
    path = folder / "report.html"
    if isinstance(made, Path):
        with probe.open(made) as run:
            return run.save(path)
    path.write_text(as_html(made), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", PAGES)
def test_the_headline(name: str, tmp_path: Path, opened: Show) -> None:
    make, expected = PAGES[name]
    made = make(tmp_path)
    page = opened(written(made, tmp_path)).page
    said = " ".join(page.locator(".headline").inner_text().split())
    assert said.startswith(expected) if isinstance(made, Path) else said == expected
    text = page.locator("body").inner_text()
    assert "[object" not in text and "undefined" not in text
    if not isinstance(made, Path) and "but for" in expected:
        assert WITHIN in page.locator(".verdict").inner_text()
        assert page.title().startswith(expected.replace("Aligned", "aligned")), "nor does the title drop it"
        assert expected.removeprefix("Aligned ") in repr(made), "nor what Python prints"


def test_all_that_was_not_compared_is_said(tmp_path: Path, opened: Show) -> None:
    page = opened(written(ignoring(tmp_path), tmp_path)).page
    said = page.locator(".answer p", has_text="Not compared: ").inner_text()
    for part in (
        "backward, gradient, update (not recorded in B)",
        "words.weight (only in B)",
        "36 weights (ignored by the mapping)",
    ):
        assert part in said


def test_why_it_could_not_be_told_leads_to_the_module(tmp_path: Path, opened: Show) -> None:
    page = opened(written(with_nan(tmp_path), tmp_path)).page
    path = page.locator(".panel .path").first
    assert path.inner_text() == "layers.1.norm2", "it is looked at first"
    page.locator("#row-0").click()
    assert path.inner_text() == "(the whole model)"
    doubt = page.locator(".doubts li").first
    assert doubt.inner_text().startswith("step 0: init param weight of layers.1.norm2 has NaN on both sides")
    doubt.get_by_role("button", name="layers.1.norm2").click()
    assert path.inner_text() == "layers.1.norm2" and "norm2" in page.locator(".row.selected").inner_text()
    assert "NaN/Inf" in page.locator(".row.selected").inner_text(), "and that it is equal is not all that is said"
