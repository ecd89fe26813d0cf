"""What a test of a hint answers."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from probe.comparison.notes import Note


class Grade(enum.IntEnum):
    """How well the numbers support a hint, the best first."""

    VERIFIED = 0
    """a hypothesis was computed from recorded tensors, and it gives what was recorded"""
    STRONG = 1
    """the error has this form; what made it so is not computed"""
    WEAK = 2
    """sketches or statistics alone say so, or only one of the two sides is explained"""

    @property
    def label(self) -> str:
        """The name in JSON."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Found:
    """A hint that the numbers support."""

    said: Note
    """what was found"""
    grade: Grade
    numbers: dict[str, object] = field(default_factory=dict)
    """the same as data"""
    by: Note | None = None
    """what it was verified from, where that is more than the two tensors"""


def verified(said: Note, by: str = "", **numbers: object) -> Found:
    """Return what computed values confirm; ``by`` is the code of what it was verified from."""
    return Found(said, Grade.VERIFIED, numbers, Note(by) if by else None)


def strong(said: Note, **numbers: object) -> Found:
    """Return what the form of the error says."""
    return Found(said, Grade.STRONG, numbers)


def weak(said: Note, **numbers: object) -> Found:
    """Return what statistics alone say."""
    return Found(said, Grade.WEAK, numbers)
