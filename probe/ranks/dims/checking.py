"""What a user says of dims and nothing is: paths without a module, parameters without that name, groups that no run has."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping

from probe.comparison.notes import Note, note
from probe.ranks.dims.language import parsed
from probe.ranks.layout.groups import ORDER
from probe.ranks.layout.places import Layout
from probe.records import Role
from probe.store.reading.reader import Reader


def unused_dims(sides: Iterable[tuple[Reader, Layout]], layouts: Mapping[str, str]) -> list[Note]:
    """Return what says nothing of any side.

    Parameters
    ----------
    sides
        recordings of many ranks, with their groups
    layouts
        dims by globs of module paths, and role and slot behind them
    """
    known = list(sides)
    if not known:
        return []
    found = []
    names = {name for _, layout in known for name in (*layout.groups, *layout.alone)} | {*ORDER, "sp", "embd"}
    for key, text in layouts.items():
        path, _, what = key.partition(" ")
        role, _, slot = what.partition(" ")
        places = [
            (k, reader) for reader, _ in known for k, module in enumerate(reader.modules) if _fits(module.path, path)
        ]
        unknown = [name for name in parsed(text).groups if name not in names]
        if not places:
            found.append(note("dims-match-nothing", key=key, what="no module has that path"))
        elif role == Role.PARAM.label and slot and not any(
            info.module == k and info.slot == slot for k, reader in places for info in reader.parameters
        ):  # fmt: skip
            found.append(note("dims-match-nothing", key=key, what="no such module has a parameter of that name"))
        elif unknown:
            found.append(note("dims-match-nothing", key=key, what=f"no run has a group {unknown[0]!r}"))
    return found


def _fits(path: str, pattern: str) -> bool:
    return path == pattern or fnmatch.fnmatchcase(path, pattern)
