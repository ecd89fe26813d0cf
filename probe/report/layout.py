"""Texts for a terminal: nothing in them that it obeys, in its columns, wrapped between words, shortened in the middle and never cut without a sign."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from rich.cells import cell_len, get_character_cell_size
from rich.text import Text

WIDTH = 120
"""columns of a sentence, on the widest terminal too"""
PLAIN_WIDTH = 80
"""columns of a sentence that goes to no terminal"""
_HEAD = 0.35
"""share of a shortened name that is its beginning: modules are told apart by how their paths end"""
_FRAMEWORKS = ("torch/", "paddle/", "mindspore/")
_TOGETHER = "\u00a0"
_CONTROL = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufeff]"
)
"""what a terminal obeys, or what changes the order of what it shows"""
_LONGEST = 200
LONGEST_LIST = 2000
"""characters of what names several things: known differences, origins of inputs"""


def shortened(text: str, room: int) -> str:
    """Return a text that takes at most so many columns: what is too much is left out in the middle."""
    if cell_len(text) <= room:
        return text
    head = int((room - 1) * _HEAD)
    end = _taken(text[::-1], room - 1 - head)[::-1]
    while end and not get_character_cell_size(end[0]):  # a mark of a letter that is left out
        end = end[1:]
    return f"{_taken(text, head)}…{end}"


def _taken(text: str, room: int) -> str:
    """Return as much of a text's beginning as there is room for."""
    used = 0
    for at, character in enumerate(text):
        used += get_character_cell_size(character)
        if used > room:
            return text[:at]
    return text


def padded(text: str, columns: int) -> str:
    """Return a text with blanks behind it, so that it takes so many columns."""
    return text + " " * max(columns - cell_len(text), 0)


def wrapped(text: str, width: int, lead: str = "", indent: str = "", *, whole: bool = False) -> str:
    """Return a sentence over as many lines as it takes.

    Parameters
    ----------
    text
        words, with blanks between them
    width
        columns
    lead, indent
        what stands in front of the first line, and of the others
    whole
        words that are wider than a line stay as they are, and are not shortened
    """
    return "\n".join(_lines(text.split(" "), width, lead, indent, whole))


def packed(parts: Iterable[str], width: int, lead: str = "", indent: str = "") -> str:
    """Return parts with two blanks between them, over as many lines as they take; what fits into a line is not broken."""
    room = width - cell_len(indent)
    kept = (part.replace(" ", _TOGETHER) if cell_len(part) <= room else part for part in parts)
    return wrapped("  ".join(kept), width, lead, indent).replace(_TOGETHER, " ")


class Page:
    """A text under way, of sentences in the columns of a terminal; on none, names stay whole.

    Parameters
    ----------
    columns
        None for what goes to no terminal
    """

    def __init__(self, columns: int | None) -> None:
        self.out, self.columns = Text(), columns
        self.width = PLAIN_WIDTH if columns is None else min(columns, WIDTH)
        """of sentences"""

    def say(self, text: str, lead: str = "", indent: str = "  ", style: str = "") -> None:
        """Add a sentence, on lines of its own."""
        self.out.append(f"{wrapped(text, self.width, lead, indent, whole=self.columns is None)}\n", style=style)


def _lines(words: Iterable[str], width: int, lead: str, indent: str, whole: bool) -> Iterator[str]:
    line, is_begun = lead, False
    for word in words:
        if is_begun and cell_len(line) + 1 + cell_len(word) > width:
            yield line.rstrip()
            line, is_begun = indent, False
        if is_begun:
            line += f" {word}"
        elif word:
            line += word if whole else shortened(word, max(width - cell_len(line), 1))
            is_begun = True
    yield line.rstrip()


def plain(text: str, longest: int = _LONGEST) -> str:
    """Return a name or message fit for a terminal: no control characters, in so many columns at most."""
    return shortened(harmless(text), longest)


def file_names(path_a: str, path_b: str) -> tuple[str, str]:
    """Return what to call two files: their names, with as many folders as tell them apart."""
    parts = Path(path_a).resolve().parts, Path(path_b).resolve().parts
    depth = next((n for n in range(1, max(map(len, parts))) if parts[0][-n:] != parts[1][-n:]), 1)
    a, b = ("/".join(each[-depth:]) for each in parts)
    return a, b


def place_of_code(file: str, line: int) -> str:
    """Return where code is: its file below the installed packages, or with its folder, and line; empty for a framework's own."""
    path = file.replace("\\", "/")
    _, is_installed, inside = path.rpartition("-packages/")
    if not path or inside.startswith(_FRAMEWORKS):
        return ""
    where = inside if is_installed else "/".join(path.split("/")[-2:])
    return f"{where}:{line}" if line else where  # of a class that has no forward of its own


def harmless(text: str) -> str:
    """Return a text with its control characters written out, as ``\\x1b`` and ``\\u202e``."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}" if ord(found[0]) < 256 else _escape(found[0]), text)


def harmless_json(document: str) -> str:
    """Return JSON, over several lines, that says the same without control characters."""
    return _CONTROL.sub(lambda found: found[0] if found[0] == "\n" else _escape(found[0]), document)


def _escape(character: str) -> str:
    return f"\\u{ord(character):04x}"
