"""Fitting text into the columns of a terminal: wrapped between words, shortened in the middle; never cut without a sign."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.cells import cell_len, get_character_cell_size

WIDTH = 120
"""columns of a sentence, on the widest terminal too"""
PLAIN_WIDTH = 80
"""columns of a sentence that goes to no terminal"""
_HEAD = 0.35
"""share of a shortened name that is its beginning: modules are told apart by how their paths end"""
_TOGETHER = "\u00a0"


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
