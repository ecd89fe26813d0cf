"""What somebody may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_MOST = 2_000
"""names among which the nearest is looked for: comparing two takes some 10 µs"""
_ALIKE = 0.85


def nearest(word: str, known: Iterable[str], count: int = 1) -> list[str]:
    """Return those of the known names that are most like a word; names that only begin or end alike count too."""
    names = list(dict.fromkeys(known))[:_MOST]
    close = difflib.get_close_matches(word, names, count)
    inside = [name for name in names if word and (word in name.split(".") or name in word.split("."))]
    return list(dict.fromkeys(close + inside))[:count]


def alike(word: str, other: str) -> bool:
    """Return True if two names are so much alike that one may be the other with a letter or two wrong."""
    return difflib.SequenceMatcher(None, word, other).ratio() >= _ALIKE


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ``; did you mean x?``, or nothing."""
    found = nearest(word, known)
    return f"; did you mean {found[0]}?" if found else ""
