"""What every check answers: lines with a state each, and from them one status."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from probe.comparison.notes import Note, as_json


class State(enum.StrEnum):
    """What came of one thing that was looked at."""

    FOUND = "found"
    """something is wrong"""
    UNKNOWN = "not checked"
    """what it needs was not recorded"""
    OK = "ok"


class Status(enum.StrEnum):
    """The answer of a check."""

    FOUND = "found"
    CLEAN = "nothing found"
    UNCHECKED = "not checked"
    """nothing could be looked at"""


EXIT = {Status.CLEAN: 0, Status.FOUND: 1, Status.UNCHECKED: 2}
"""exit status of the commands"""


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that was looked at, and what came of it."""

    topic: str
    """what it is about, in a word or two"""
    state: State
    said: Note
    side: str = ""
    """``A`` or ``B`` where it is about one of two files"""

    def as_json(self) -> dict[str, Any]:
        """Return the fields by their names in JSON."""
        return {"topic": self.topic, "state": self.state.value, "side": self.side, **as_json(self.said)}


def status_of(lines: Sequence[Line]) -> Status:
    """Return the answer that lines add up to."""
    states = {line.state for line in lines}
    if State.FOUND in states:
        return Status.FOUND
    return Status.CLEAN if State.OK in states else Status.UNCHECKED


@dataclass(frozen=True)
class CheckResult:
    """What a check found."""

    files: tuple[str, ...]
    """what was looked at"""
    lines: tuple[Line, ...]

    @property
    def status(self) -> Status:
        """The answer in a word."""
        return status_of(self.lines)

    @property
    def found(self) -> tuple[Note, ...]:
        """What is wrong."""
        return tuple(line.said for line in self.lines if line.state is State.FOUND)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.status.value}, {len(self.found)} of {len(self.lines)} lines>"

    def as_json(self) -> dict[str, Any]:
        """Return the answer by the names that ``--json`` uses."""
        return {
            "status": self.status.value,
            "files": list(self.files),
            "lines": [line.as_json() for line in self.lines],
        }
