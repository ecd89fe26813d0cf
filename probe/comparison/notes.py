"""Notes: what a comparison has to say, as a code and the facts behind it. Its English is made where it is read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any


@dataclass(frozen=True)
class Note:
    """One thing to say.

    Nothing is decided by the text of a note: the code says which it is, and the facts what of.
    """

    code: str
    """its key in the tables of `probe.report.words`, such as ``"gradients-of-another-split"``"""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """numbers, texts, tuples of them, and notes inside of this one, by the names that its words use"""

    def __hash__(self) -> int:
        return hash(self.code)

    def __str__(self) -> str:
        from probe.report.words import text

        return text(self)


def note(code: str, **facts: Any) -> Note:
    """Return a note of a code and its facts."""
    return Note(code, facts)


def in_words(notes: Iterable[Note]) -> tuple[str, ...]:
    """Return the texts of notes, each once, with the steps that gave it."""
    from probe.report.words import texts

    return texts(notes)


def as_json(said: Note) -> dict[str, Any]:
    """Return a note for JSON: its code, its facts and its words."""
    return {"code": said.code, "facts": {name: _plain(value) for name, value in said.facts.items()}, "text": str(said)}


def within(said: Any) -> Iterator[Any]:
    """Yield a note, or several, with all that are inside, and the facts that are neither notes nor tuples."""
    yield said
    values = said.facts.values() if isinstance(said, Note) else said if isinstance(said, tuple) else ()
    for value in values:
        yield from within(value)


def _plain(value: Any) -> Any:
    if isinstance(value, Note):
        return as_json(value)
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value) if math.isfinite(value) else None
    return str(value)
