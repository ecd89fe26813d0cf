"""What mkdocs cannot know of these pages: their order, the pages that lie outside of docs/, links to files that the site lacks."""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

REPO = Path(__file__).resolve().parents[2]
DOCS = REPO / "docs"
OUTSIDE = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""pages beside docs/, and what they are in the site"""
API = "reference/api.md"
VERBATIM_OR_LINK = re.compile(
    r"^```.*?^```$|`[^`\n]+`(?!\])|\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^()\s]+)\)", re.M | re.S
)
PUBLIC = re.compile(r"^\| `(probe\.[\w.]+)`", re.M)


def on_config(config: Any) -> Any:
    """Take the navigation from the tables of docs/README.md."""
    shelves: list[Any] = [{"Home": ["index.md", "README.md"]}]
    for part in (DOCS / "README.md").read_text(encoding="utf-8").split("\n## ")[1:]:
        shelf = part.partition("\n")[0]
        pages = re.findall(r"\]\((\w+/[\w-]+\.md)\)", part)
        shelves.append({shelf: list(dict.fromkeys(pages))})
    config.nav = [*shelves, {"Project": ["SKILL.md", "architecture.md", "contributing.md", "changelog.md"]}]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that lie beside docs/; the README of the project is the home page."""
    from mkdocs.structure.files import File

    files.get_file_from_path("README.md").dest_uri = "pages.html"
    for source, page in OUTSIDE.items():
        files.append(File.generated(config, page, content=(REPO / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Point links at pages of the site, and make text of those to files that it lacks."""
    uri = page.file.src_uri
    source = {name: outside for outside, name in OUTSIDE.items()}.get(uri, f"docs/{uri}")

    def linked(match: re.Match[str]) -> str:
        text, target = match["text"], match["target"]
        if text is None or "://" in target or target.startswith("#"):
            return match[0]
        path, _, fragment = target.partition("#")
        place = os.path.normpath(PurePosixPath(source).parent / path)
        if place.startswith(("/", "..")) or not (REPO / place).exists():
            return match[0]  # mkdocs says that it leads nowhere
        inside = OUTSIDE.get(place, place.removeprefix("docs/"))
        if files.get_file_from_path(inside) is None or inside.endswith(".ipynb"):
            return f"`{place}`" if text.strip("`") == place else f"{text} (`{place}`)"
        if text == PurePosixPath(path).name:
            text = title(REPO / place)
        there = os.path.relpath(inside, PurePosixPath(uri).parent)
        return f"[{text}]({there}{'#' if fragment else ''}{fragment})"

    markdown = VERBATIM_OR_LINK.sub(linked, markdown)
    return with_docstrings(markdown) if uri == API else markdown


def title(page: Path) -> str:
    """Return the first heading of a page."""
    return re.search(r"^# (.*)$", page.read_text(encoding="utf-8"), re.M)[1] if page.suffix == ".md" else page.name


def with_docstrings(markdown: str) -> str:
    """Put the docstrings of the names in each section's table behind it."""
    sections = markdown.split("\n## ")
    for number, section in enumerate(sections):
        names = PUBLIC.findall(section)
        links = PUBLIC.sub(r"| [`\1`][\1]", section)
        sections[number] = "\n\n".join([links.rstrip("\n"), *map(expanded, names)]) + "\n"
    return "\n## ".join(sections)


def expanded(name: str) -> str:
    """Ask mkdocstrings for a docstring; of a class, each field and method on a line with its types."""
    options = "\n    options: {separate_signature: false, show_signature_annotations: true}"
    return f"::: {name}{options if name.rpartition('.')[2][0].isupper() else ''}"
