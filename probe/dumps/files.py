"""The files of a dump, read within bounds: how many, how large, how deep, and never outside of its folder."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from probe.damage import parsed, reading
from probe.errors import FormatError, StoreError

MOST_FILES = 500_000
MOST_PARTS = 1_000_000
"""of one dump"""
MOST_TEXT = 256 << 20
"""bytes of a JSON or CSV file"""


def files_in(source: Path, most: int | None = None) -> list[str]:
    """Return the files of a folder by their relative paths, sorted; of a file, its own name.

    Raises StoreError where there is none, there are more than ``most``, default 500,000, or one is a link that leads out of the folder.
    """
    most = MOST_FILES if most is None else most
    if source.is_file():
        return [source.name]
    if not source.is_dir():
        raise StoreError(f"there is no {source}")
    found, folders = list[str](), [""]
    while folders:
        folder = folders.pop()
        with reading(source / folder), os.scandir(source / folder) as entries:
            for entry in entries:
                name = f"{folder}{entry.name}"
                if entry.is_symlink():
                    inside(source, name)
                if entry.is_dir(follow_symlinks=False):
                    folders.append(f"{name}/")
                elif entry.is_file():
                    found.append(name)
                if len(found) + len(folders) > most:
                    raise StoreError(f"{source} has more than {most:,} files: import a part of it, such as one step")
    return sorted(found, key=natural)


def natural(name: str) -> list[str | int]:
    """Return a key that sorts numbers in names by their size."""
    return [int(part) if at % 2 else part for at, part in enumerate(re.split(r"(\d{1,18})", name))]


def inside(folder: Path, name: str) -> Path:
    """Return the path of a file that a dump names. Raises StoreError where it leads out of the dump's folder."""
    path = folder / name
    if "\0" in name or not path.resolve().is_relative_to(folder.resolve()):
        raise StoreError(f"{folder} names the file {name[:200]!r}, which lies outside of it: probe does not read it")
    return path


def text_of(path: Path) -> bytes:
    """Return what a text file holds. Raises FormatError where it is too large."""
    with reading(path), path.open("rb") as file:
        text = file.read(MOST_TEXT + 1)
    if len(text) > MOST_TEXT:
        raise FormatError(f"{path} has more than {MOST_TEXT >> 20} MiB: import a part of the dump, such as one step")
    return text


def json_of(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file. Raises FormatError where it holds none, or is too large or nested too deeply."""
    with reading(path):
        found = parsed(text_of(path))
    if not isinstance(found, dict):
        raise FormatError(f"{path} holds no JSON object")
    return found


def leaves(
    found: Any, is_leaf: Callable[[Any], bool], slot: str = "", seen: Counter[str] | None = None
) -> Iterator[tuple[str, Any]]:
    """Yield what is a leaf of nested lists and mappings, by its slot: ``0``, ``0.1``, ``hidden_states``."""
    seen = Counter() if seen is None else seen
    seen["parts"] += 1
    if seen["parts"] > MOST_PARTS:
        raise FormatError(f"a list of the dump has more than {MOST_PARTS:,} parts, counted wherever they stand")
    if is_leaf(found):
        yield slot or "0", found
    elif isinstance(found, (Mapping, list, tuple)):
        for name, each in found.items() if isinstance(found, Mapping) else enumerate(found):
            yield from leaves(each, is_leaf, f"{slot}.{name}" if slot else str(name), seen)
