"""The site of the documentation: its hook, without mkdocs. `scripts/docs` builds it and checks its links, anchors and docstrings."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

import probe

REPO = Path(__file__).parents[2]
DOCS = REPO / "docs"
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
PAGES = sorted([*REPO.glob("*.md"), *DOCS.rglob("*.md")])


def hook() -> Any:
    spec = importlib.util.spec_from_file_location("hook", DOCS / "site" / "hook.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


HOOK = hook()
URIS = [*(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*") if path.is_file()), *HOOK.OUTSIDE.values()]
FILES = SimpleNamespace(get_file_from_path=lambda uri: uri if uri in URIS else None)


def shown(text: str, uri: str) -> str:
    """Return a page's text as the site shows it."""
    return HOOK.on_page_markdown(text, SimpleNamespace(file=SimpleNamespace(src_uri=uri)), None, FILES)


def test_the_navigation_has_every_page_once_under_the_shelves_of_the_index() -> None:
    navigation = HOOK.on_config(SimpleNamespace()).nav
    assert [name for part in navigation for name in part] == ["Home", "Guide", "Reference", "Evidence", "Project"]
    listed = [page for part in navigation for pages in part.values() for page in pages]
    there = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")} | set(HOOK.OUTSIDE.values())
    assert sorted(listed) == sorted(there)


def test_no_two_pages_of_a_shelf_have_one_title() -> None:
    for shelf in ("guide", "reference", "evidence"):
        titles = [HOOK.title(page) for page in (DOCS / shelf).glob("*.md")]
        assert len(titles) == len(set(titles)), shelf


@pytest.mark.parametrize(
    ("uri", "text", "expected"),
    [
        ("index.md", "[a](docs/guide/noise.md#figures)", "[a](guide/noise.md#figures)"),
        ("guide/answer.md", "[a](../../README.md#try-it)", "[a](../index.md#try-it)"),
        ("guide/answer.md", "[noise.md](noise.md)", "[How much error is noise](noise.md)"),
        ("guide/answer.md", "[a](../images/report-serve.png)", "[a](../images/report-serve.png)"),
        ("guide/answer.md", "[schema](../../layer_mappings/schema.json)", "schema (`layer_mappings/schema.json`)"),
        ("guide/answer.md", "[probe/errors.py](../../probe/errors.py)", "`probe/errors.py`"),
        ("guide/answer.md", "[gone](gone.md) [a](/x.md)", "[gone](gone.md) [a](/x.md)"),
        ("guide/answer.md", "[here](#there) [x](https://x.org)", "[here](#there) [x](https://x.org)"),
        ("guide/answer.md", "`[a](b)`\n\n```\n[a](b)\n```\n", "`[a](b)`\n\n```\n[a](b)\n```\n"),
    ],
)
def test_links_lead_to_pages_of_the_site_or_become_text(uri: str, text: str, expected: str) -> None:
    assert shown(text, uri) == expected


def test_every_public_name_is_expanded() -> None:
    text = shown((DOCS / HOOK.API).read_text(encoding="utf-8"), HOOK.API)
    expanded = set(re.findall(r"^::: (.*)$", text, re.MULTILINE))
    assert {f"probe.{name}" for name in probe.__all__ if name != "__version__"} <= expanded
    assert "probe.answer.comparison.Comparison" in expanded


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPO)))
def test_what_is_inside_a_list_is_so_for_the_site_too(page: Path) -> None:
    """Two columns are enough for GitHub; the site takes what has fewer than four for the end of the item."""
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    assert re.findall(r"\n\n {1,3}\S.*|\n {1,3}(?:[-*]|\d+\.) .*", text) == []


def test_the_site_fetches_nothing() -> None:
    """It is read from disk: no font, script or style of another host."""
    text = (DOCS / "site" / "mkdocs.yml").read_text(encoding="utf-8")
    assert "font: false" in text and "- offline" in text
    for path in (DOCS / "site").iterdir():
        if path.is_file() and path.suffix != ".svg":
            assert "http" not in path.read_text(encoding="utf-8"), path.name
    assert yaml.safe_load(text.replace("!!python/object/apply:pymdownx.slugs.slugify ", ""))["validation"] == {
        kind: "warn" for kind in ("omitted_files", "absolute_links", "unrecognized_links", "anchors")
    }
