"""Names and messages as text that a terminal, or whoever reads a file in one, only shows."""

from __future__ import annotations

import re
from pathlib import Path

from probe.report.layout import shortened

_CONTROL = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufeff]"
)
"""what a terminal obeys, or what changes the order of what it shows"""
_LONGEST = 200
LONGEST_LIST = 2000
"""characters of what names several things: known differences, origins of inputs"""


def plain(text: str, longest: int = _LONGEST) -> str:
    """Return a name or message fit for a terminal: no control characters, in so many columns at most."""
    return shortened(harmless(text), longest)


def file_names(path_a: str, path_b: str) -> tuple[str, str]:
    """Return what to call two files: their names, with as many folders as tell them apart."""
    parts = Path(path_a).resolve().parts, Path(path_b).resolve().parts
    depth = next((n for n in range(1, max(map(len, parts))) if parts[0][-n:] != parts[1][-n:]), 1)
    a, b = ("/".join(each[-depth:]) for each in parts)
    return a, b


def counted(number: int, noun: str) -> str:
    """Return a number of things in words, as ``1 step`` and ``2 steps``."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


def harmless(text: str) -> str:
    """Return a text with its control characters written out, as ``\\x1b`` and ``\\u202e``."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}" if ord(found[0]) < 256 else _escape(found[0]), text)


def harmless_json(document: str) -> str:
    """Return JSON, over several lines, that says the same without control characters."""
    return _CONTROL.sub(lambda found: found[0] if found[0] == "\n" else _escape(found[0]), document)


def _escape(character: str) -> str:
    return f"\\u{ord(character):04x}"
