"""What a hint is, the kinds of tensors that hints are for, and what the test of one answers."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field

from probe.diagnosis.evidence import Evidence
from probe.notes import Note, note
from probe.records import Role

ACTIVATIONS = (Role.INPUT, Role.OUTPUT, Role.VALUE)
WEIGHTS = (Role.PARAM,)
GRADIENTS = (Role.GRAD_OUTPUT, Role.GRAD_INPUT, Role.GRAD_TOTAL, Role.PARAM_GRAD)
LOSSES = (Role.OUTPUT, Role.VALUE)


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


def graded(is_verified: bool, said: Note, **numbers: object) -> Found:
    """Return what computed values confirm, or what the form of the error alone says."""
    return Found(said, Grade.VERIFIED if is_verified else Grade.STRONG, numbers)


def strong(said: Note, **numbers: object) -> Found:
    """Return what the form of the error says."""
    return Found(said, Grade.STRONG, numbers)


def weak(said: Note, **numbers: object) -> Found:
    """Return what statistics alone say."""
    return Found(said, Grade.WEAK, numbers)


@dataclass(frozen=True, slots=True)
class Hint:
    """One sort of mistake."""

    name: str
    roles: tuple[Role, ...]
    """what kinds of tensors it is for"""
    test: Callable[[Evidence], Found | None]
    looks_like: str
    """how the error shows itself"""
    unless: Callable[[Evidence], bool] = lambda evidence: False
    """what it is not for"""

    @property
    def check(self) -> str:
        """What to look at: it goes behind “look at”."""
        return str(note("check", name=self.name))
