"""The files of a dump, read within bounds: how many, how large, how deep, and never outside of its folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from probe.damage import parsed, reading
from probe.errors import FormatError, StoreError

MOST_FILES = 500_000
"""of one dump"""
MOST_JSON = 256 << 20
"""bytes of a JSON or CSV file"""
_DEEPEST = 32
"""lists and objects inside one another"""


def files_in(source: Path, most: int = MOST_FILES) -> list[str]:
    """Return the files of a folder by their relative paths, sorted; of a file, its own name.

    Raises
    ------
    StoreError
        there is no such file, there are more than ``most``, or one is a link that leads out of the folder
    """
    if source.is_file():
        return [source.name]
    if not source.is_dir():
        raise StoreError(f"there is no {source}")
    found: list[str] = []
    for folder, folders, names in os.walk(source, onerror=_raise):
        folders[:] = sorted(name for name in folders if not os.path.islink(os.path.join(folder, name)))
        for name in names:
            path = Path(folder, name)
            found.append(path.relative_to(source).as_posix())
            if path.is_symlink():
                inside(source, found[-1])
        if len(found) > most:
            raise StoreError(
                f"{source} has more than {most:,} files: import a part of it, such as one step or one rank"
            )
    return sorted(found, key=natural)


def _raise(error: OSError) -> None:
    raise StoreError(f"cannot read {error.filename}: {error.strerror}")


def natural(name: str) -> list[tuple[int, int, str]]:
    """Return a key that sorts numbers in names by their size."""
    parts, found = name, []
    while parts:
        text = parts[: len(parts) - len(parts.lstrip("0123456789"))]
        if text:
            found.append((0, int(text[:18]), text))
        else:
            text = parts[: next((at for at, letter in enumerate(parts) if letter in "0123456789"), len(parts))]
            found.append((1, 0, text))
        parts = parts[len(text) :]
    return found


def inside(folder: Path, name: str) -> Path:
    """Return the path of a file that a dump names. Raises StoreError where it leads out of the dump's folder."""
    path = folder / name
    if "\0" in name or not path.resolve().is_relative_to(folder.resolve()):
        raise StoreError(f"{folder} names the file {name[:200]!r}, which lies outside of it: probe does not read it")
    return path


def json_of(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises
    ------
    FormatError
        it holds none, or is too large or nested too deeply
    """
    with reading(path):
        found = parsed(text_of(path))
    if not isinstance(found, dict):
        raise FormatError(f"{path} holds no JSON object")
    return found


def text_of(path: Path) -> bytes:
    """Return the bytes of a text file. Raises FormatError where it is too large."""
    with reading(path), path.open("rb") as file:
        text = file.read(MOST_JSON + 1)
    if len(text) > MOST_JSON:
        raise FormatError(f"{path} has more than {MOST_JSON >> 20} MiB: import a part of the dump, such as one step")
    return text


def leaves(
    found: Any, is_leaf: Callable[[Any], bool], where: str, slot: str = "", depth: int = 0
) -> Iterator[tuple[str, Any]]:
    """Yield what is a leaf of nested lists and mappings, by its slot: ``0``, ``0.1``, ``hidden_states``.

    Raises
    ------
    FormatError
        they are nested too deeply
    """
    if depth > _DEEPEST:
        raise FormatError(f"{where}: more than {_DEEPEST} lists and objects lie inside one another")
    if is_leaf(found):
        yield slot or "0", found
    elif isinstance(found, (Mapping, list, tuple)):
        for name, each in found.items() if isinstance(found, Mapping) else enumerate(found):
            yield from leaves(each, is_leaf, where, f"{slot}.{name}" if slot else str(name), depth + 1)
