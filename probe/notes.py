"""Notes: what a comparison has to say, as a code and the facts behind it. Its English is made where it is read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, is_dataclass
from enum import Enum
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


def sides(is_a: bool) -> dict[str, str]:
    """Return the facts of a note on what one side does, and the other does not."""
    return {"side": "A", "other": "B"} if is_a else {"side": "B", "other": "A"}


def in_words(notes: Iterable[Note]) -> tuple[str, ...]:
    """Return the texts of notes, each once, with the steps that gave it."""
    from probe.report.words import texts

    return texts(notes)


def as_json(said: Note) -> dict[str, Any]:
    """Return a note for JSON: its code, its facts and its words."""
    return {"code": said.code, "facts": {name: plain(value) for name, value in said.facts.items()}, "text": str(said)}


def named(of: Any, *names: str) -> dict[str, Any]:
    """Return some attributes of an object for JSON, by their names."""
    return {name: plain(getattr(of, name)) for name in names}


def fields_of(of: Any) -> dict[str, Any]:
    """Return the fields of a dataclass for JSON, by their names."""
    return named(of, *of.__dataclass_fields__)


class Fields:
    """A dataclass of which JSON has all fields, by their names."""

    def as_json(self) -> dict[str, Any]:
        """Return the fields by their names in JSON."""
        return fields_of(self)


def within(said: Any) -> Iterator[Any]:
    """Yield a note, or several, with all that are inside, and the facts that are neither notes nor tuples."""
    yield said
    values = said.facts.values() if isinstance(said, Note) else said if isinstance(said, tuple) else ()
    for value in values:
        yield from within(value)


def plain(value: Any) -> Any:
    """Return a value as JSON has it: lists, numbers that are finite, notes with their words, the labels of enums."""
    if isinstance(value, Note):
        return as_json(value)
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if hasattr(value, "as_json"):
        return value.as_json()
    if isinstance(value, Enum):
        return getattr(value, "label", value.value)
    if is_dataclass(value):
        return fields_of(value)
    if value is None or isinstance(value, (bool, str, dict)):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value) if math.isfinite(value) else None
    return str(value)
