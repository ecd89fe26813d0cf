"""What a test of a hint answers."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field


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

    text: str
    """what was found"""
    grade: Grade
    numbers: dict[str, object] = field(default_factory=dict)
    """the same as data"""
    by: str = ""
    """what it was verified from, where that is more than the two tensors"""


def verified(text: str, by: str = "", **numbers: object) -> Found:
    """Return what computed values confirm."""
    return Found(text, Grade.VERIFIED, numbers, by)


def strong(text: str, **numbers: object) -> Found:
    """Return what the form of the error says."""
    return Found(text, Grade.STRONG, numbers)


def weak(text: str, **numbers: object) -> Found:
    """Return what statistics alone say."""
    return Found(text, Grade.WEAK, numbers)
