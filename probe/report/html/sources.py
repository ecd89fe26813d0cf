"""A few lines of source around the places that are looked at first, as the files have them where the page is made."""

from __future__ import annotations

import os
import re
import tokenize
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from textwrap import dedent

from probe.records import ModuleInfo
from probe.report.html.columns import Words
from probe.report.html.rows import ABSENT, Row
from probe.report.layout import place_of_code
from probe.store.reading.reader import Reader

MOST, MOST_LETTERS = 200, 200_000
"""excerpts of a page, and the letters of them all"""
_AROUND, _BODY, _HEAD = 3, 10, 40
"""lines on each side of a call, of the beginning of a function's body, and of its head at most"""
_LONGEST = 200
"""letters of a line"""
_LARGEST = 4 << 20
"""bytes of a file that is read"""
_LINE = re.compile(r"[0-9]{1,9}")
Excerpt = dict[str, object]


def sources(
    rows: Sequence[Row], found: Sequence[int], readers: tuple[Reader, Reader], words: Words
) -> dict[str, object] | None:
    """Return the excerpts of source of the rows with findings, the first of them first, and of those around it; None without findings.

    ``a`` and ``b`` name for each module where its ``forward`` stands and where it is ``called``, both by their places in ``excerpts``.
    """
    if not found:
        return None
    known: dict[tuple[str, str, int, str], int] = {}
    excerpts: list[Excerpt] = []
    places: dict[str, dict[str, dict[str, int]]] = {"a": {}, "b": {}}
    letters = 0
    for at in _nearest_first(rows, found):
        for name, reader in zip("ab", readers, strict=True):
            module = getattr(rows[at], name)
            for what, file, line in () if module == ABSENT else _places(reader.modules[module]):
                key = what, file, line, reader.info.created
                if key not in known:
                    made, size = _excerpt(*key, words)
                    if made not in excerpts:
                        if len(excerpts) >= MOST or letters + size > MOST_LETTERS:
                            return {**places, "excerpts": excerpts}
                        excerpts.append(made)
                        letters += size
                    known[key] = excerpts.index(made)
                places[name].setdefault(str(module), {})[what] = known[key]
    return {**places, "excerpts": excerpts}


def _nearest_first(rows: Sequence[Row], found: Sequence[int]) -> Iterator[int]:
    """Yield rows by their numbers: the first finding, what is around it, the other findings, then all by how near they stand."""
    first, *others = found
    depth, above = rows[first].depth, []
    for at in range(first, -1, -1):
        if rows[at].depth < depth:
            depth = rows[at].depth
            above.append(at)
    yield from dict.fromkeys((first, *above, *others, *sorted(range(len(rows)), key=lambda at: abs(at - first))))


def _places(module: ModuleInfo) -> Iterator[tuple[str, str, int]]:
    """Yield what stands in which file and line of a module or an operation; nothing of a framework's own files."""
    caller, _, line = module.called_from.rpartition(":")
    own = "called" if module.is_operation else "forward", module.file, module.line
    for what, file, number in (own, ("called", caller, int(line) if _LINE.fullmatch(line) else 0)):
        if number > 0 and place_of_code(file, number):
            yield what, file, number


def _excerpt(what: str, file: str, line: int, created: str, words: Words) -> tuple[Excerpt, int]:
    """Return lines of a file around one, or why there are none, and how many letters they have."""
    said: Excerpt = {"file": words.number(file), "line": line}
    lines = _lines(file)
    if line > len(lines):
        there = f"This file has {len(lines)} lines" if lines else "There is no such file to be read"
        return {**said, "why_not": f"{there} where the page was made."}, 0
    depth = _indent(lines[line - 1])
    if what == "forward":
        first = _head(lines, line)
        last = _end(lines, first, _BODY, depth)
    else:
        first, last = max(1, line - _AROUND), _end(lines, line, _AROUND, min(depth, 1) - 1)
    text = dedent("\n".join(each.rstrip().expandtabs()[:_LONGEST] for each in lines[first - 1 : last])).rstrip()
    return {**said, "first": first, "text": words.number(text), "is_newer": _is_newer(file, created)}, len(text)


def _head(lines: Sequence[str], line: int) -> int:
    """Return where the head of a function ends that begins in a line: what follows it tells what is computed."""
    texts = enumerate(lines[line - 1 : line + _HEAD], line)
    return next((at for at, text in texts if text.partition("#")[0].rstrip().endswith(":")), line)


def _end(lines: Sequence[str], start: int, most: int, depth: int) -> int:
    """Return the last line of at most so many behind one, in front of the first that is indented no further than a depth."""
    behind = enumerate(lines[start : start + most], start)
    return next((at for at, text in behind if text.strip() and _indent(text) <= depth), start + most)


def _indent(text: str) -> int:
    return len(text) - len(text.lstrip())


def _lines(file: str) -> list[str]:
    """Return the lines of a file of Python, none where there is no such file: a recording may come from anybody, and name any."""
    path = Path(file)
    try:
        if path.suffix == ".py" and path.is_absolute() and path.is_file() and path.stat().st_size <= _LARGEST:
            with tokenize.open(path) as stream:
                return stream.readlines()
    except (OSError, ValueError, SyntaxError, LookupError):  # of bytes that are no text, too
        pass
    return []


def _is_newer(file: str, created: str) -> bool:
    """Return True if a file was written after a recording began, so that other lines may have run."""
    try:
        return os.path.getmtime(file) > datetime.fromisoformat(created).timestamp() + 1
    except (OSError, ValueError):
        return False
