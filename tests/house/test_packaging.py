"""What an installed probe consists of: setup.cfg and setup.py against the folders. `scripts/try-wheel` builds and installs it."""

from __future__ import annotations

import configparser
import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "probe"
SOURCES = {".py", ".pyc", ".c", ".h", ".so", ".pyd"}
"""modules, and what the compiled loop is built from"""
PAGE_SOURCES = PACKAGE / "report" / "html" / "app"
"""what page.html is built from: not installed"""


def setup() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    return parser


def package_data() -> set[Path]:
    """Return the files that setup.cfg names as data."""
    folders = {"probe.layer_mappings": ROOT / "layer_mappings"}
    found: set[Path] = set()
    for package, patterns in setup()["options.package_data"].items():
        folder = folders.get(package, ROOT / package.replace(".", "/"))
        for pattern in filter(None, (part.strip() for part in patterns.replace(",", "\n").splitlines())):
            files = set(folder.glob(pattern))
            assert files, f"{package} has no {pattern}"
            found |= files
    return found


@pytest.mark.parametrize("folder", sorted({path.parent for path in PACKAGE.rglob("*.py") if path.is_file()}))
def test_every_folder_with_modules_is_a_package(folder: Path) -> None:
    """`find_packages` passes over a folder without it, and over everything below."""
    for each in [folder, *folder.parents]:
        assert (each / "__init__.py").is_file(), f"{each.relative_to(ROOT)} is not installed: it lacks __init__.py"
        if each == PACKAGE:
            break


def test_packages_are_found_and_not_listed_by_hand() -> None:
    assert not setup().has_option("options", "packages")
    assert "find_packages(" in (ROOT / "setup.py").read_text(encoding="utf-8")


def test_every_other_file_is_installed_as_data() -> None:
    data = package_data()
    others = {
        path
        for path in [*PACKAGE.rglob("*"), *(ROOT / "layer_mappings").rglob("*")]
        if path.is_file() and path.suffix not in SOURCES and PAGE_SOURCES not in path.parents
    }
    assert others - data == set()


def test_the_description_links_to_nothing_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package index has the text of README.md, and no file beside it."""
    given: dict[str, Any] = {}
    monkeypatch.setattr("setuptools.setup", given.update)
    runpy.run_path(str(ROOT / "setup.py"))
    text = given["long_description"]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "](" in readme and "](" not in text and "docs/images" not in text
    assert len(text.split()) > 0.9 * len(readme.split())
    assert not {"url", "project_urls"} & set(setup()["metadata"]), "say where it is when it is somewhere"


def test_pythons_that_are_named_are_tried() -> None:
    named = [each.split()[-1] for each in setup()["metadata"]["classifiers"].splitlines() if ":: Python :: 3." in each]
    script = (ROOT / "scripts" / "try-wheel").read_text(encoding="utf-8")
    assert named == ["3.11", "3.12", "3.13"] and all(version in script for version in named)
