"""The documents hold together: every link resolves, every page is listed, and what is named in code is there."""

from __future__ import annotations

import datetime
import re
from pathlib import Path

import pytest

import probe
from probe.demo import FOLDER, MAPPING, RECORDINGS

REPO = Path(__file__).parents[2]
DOCS = REPO / "docs"
SHELVES = ("guide", "reference", "evidence")
PAGES = sorted([*REPO.glob("*.md"), *DOCS.rglob("*.md")])
LINK = re.compile(r"\]\(([^()\s]+)\)")
MOST_WORDS = {"README.md": 1000, "docs/architecture.md": 1500, "docs/reference/verdict.md": 2000}
"""pages that are read from top to bottom; what does not fit has a page of its own"""
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"\bdocs/[\w/-]+\.(?:md|py|ipynb)\b")
SOURCES = [
    path
    for folder in ("probe", "tests", "benchmarks", "scripts", "layer_mappings", "docs")
    for path in sorted((REPO / folder).rglob("*"))
    if path.suffix in {".py", ".md", ".yaml", ".json", ".c", ".h", ".js", ""}
    and path.is_file()
    and "node_modules" not in path.parts
]


def anchors(page: Path) -> set[str]:
    """Return the fragments that a page's headings give, as GitHub makes them."""
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in HEADING.findall(text))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in plain}


def links(page: Path) -> list[str]:
    """Return the targets of a page's links to other files and places."""
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    return [target for target in LINK.findall(text) if "://" not in target]


def dangling(page: Path) -> list[str]:
    """Return the links of a page that lead nowhere."""
    found = []
    for link in links(page):
        target, _, fragment = link.partition("#")
        place = (page.parent / target).resolve() if target else page
        if not place.exists() or (fragment and fragment not in anchors(place)):
            found.append(link)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPO)))
def test_every_link_leads_somewhere(page: Path) -> None:
    assert dangling(page) == []


def test_a_link_to_nothing_is_noticed(tmp_path: Path) -> None:
    """The test above would pass if no link were found."""
    page = tmp_path / "page.md"
    page.write_text("# One `two`\n[a](#one-two) [b](page.md#one-two) [c](other.md) [d](#three) [e](https://x.org/y)\n")
    assert dangling(page) == ["other.md", "#three"]
    assert len(links(REPO / "README.md")) > 5


@pytest.mark.parametrize("shelf", SHELVES)
def test_the_index_lists_every_page_of_a_shelf(shelf: str) -> None:
    listed = set(links(DOCS / "README.md"))
    assert {f"{shelf}/{page.name}" for page in (DOCS / shelf).glob("*.md")} - listed == set()


def test_pages_lie_on_a_shelf() -> None:
    assert {page.name for page in DOCS.glob("*.md")} == {"README.md", "SKILL.md", "architecture.md"}


def test_documents_that_code_names_are_there() -> None:
    named = {
        (match, path.relative_to(REPO))
        for path in SOURCES
        for match in NAMED.findall(path.read_text(encoding="utf-8", errors="ignore"))
    }
    assert len(named) > 20
    assert {(name, path) for name, path in named if not (REPO / name).exists()} == set()


@pytest.mark.parametrize(("page", "most"), MOST_WORDS.items())
def test_pages_that_everybody_reads_are_short(page: str, most: int) -> None:
    assert len((REPO / page).read_text(encoding="utf-8").split()) <= most


@pytest.mark.parametrize("page", ["architecture.md", "reference/verdict.md", "reference/recording.md"])
def test_modules_that_the_pages_for_developers_name_are_there(page: str) -> None:
    """Whoever renames a module renames it on these pages too."""
    modules = [f"/{path.relative_to(REPO)}" for top in ("probe", "tests") for path in (REPO / top).rglob("*.py")]
    named = set(re.findall(r"`((?:\w+/)*\w+\.py)`", (DOCS / page).read_text(encoding="utf-8")))
    assert named
    assert {name for name in named if not any(module.endswith(f"/{name}") for module in modules)} == set()


def test_the_keys_of_json_are_explained() -> None:
    text = (DOCS / "reference" / "output.md").read_text(encoding="utf-8")
    section = text.partition("## JSON")[2].partition("\n## ")[0]
    explained = {
        key
        for line in section.splitlines()
        if line.startswith("| `")
        for key in re.findall(r"`(\w+)`", line.split(" | ")[0])
    }
    answer = probe.compare(*(FOLDER / name for name in RECORDINGS), MAPPING)
    assert explained == set(answer.as_json())
    (divergences,) = [line for line in section.splitlines() if line.startswith("| `divergences`")]
    assert answer.first_divergence is not None
    assert set(answer.first_divergence.as_json()) - set(re.findall(r"`(\w+)`", divergences)) == set()


CLAIMS = [
    [cell.strip() for cell in line.strip("| ").split(" | ")]
    for line in (DOCS / "evidence" / "README.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| [")
]


@pytest.mark.parametrize("row", CLAIMS, ids=lambda row: LINK.findall(row[0])[0])
def test_each_claim_says_how_and_when_it_was_measured(row: list[str]) -> None:
    claim, figure, command, commit, date, machine = row
    assert LINK.search(claim) and re.search(r"\d", figure) and machine
    assert re.fullmatch(r"[0-9a-f]{8}", commit)
    assert datetime.date.fromisoformat(date) <= datetime.datetime.now(tz=datetime.UTC).date()
    name = re.fullmatch(r"`(?:python -m ([\w.]+)|(scripts/\w+))[^`]*`", command)
    assert name, command
    place = REPO / (name[2] or name[1].replace(".", "/"))
    assert any(path.exists() for path in (place, place.with_suffix(".py")))


def test_each_page_of_evidence_has_one_claim() -> None:
    linked = [page for row in CLAIMS for page in LINK.findall(row[0]) if not page.startswith("../")]
    assert sorted(linked) == sorted(page.name for page in (DOCS / "evidence").glob("*.md") if page.name != "README.md")
