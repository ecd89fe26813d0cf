"""What every check answers: lines with a state each, and from them one status."""

from __future__ import annotations

import enum
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from probe.notes import Note, as_json, note, plain


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


def fault(topic: str, code: str, of: str = "", /, **facts: Any) -> Line:
    """Return a line on what is wrong, on side ``of`` where it is one of two."""
    return Line(topic, State.FOUND, note(code, **facts), of)


def fine(topic: str, code: str, of: str = "", /, **facts: Any) -> Line:
    """Return a line on what is right."""
    return Line(topic, State.OK, note(code, **facts), of)


def unchecked(topic: str, code: str, of: str = "", /, **facts: Any) -> Line:
    """Return a line on what could not be looked at."""
    return Line(topic, State.UNKNOWN, note(code, **facts), of)


@dataclass(frozen=True)
class CheckResult:
    """What a check found."""

    check: ClassVar[str] = ""
    """what the check is called, and the module of `probe.report.checks` that shows it"""
    files: tuple[str, ...]
    """what was looked at"""
    lines: tuple[Line, ...]

    @property
    def status(self) -> Status:
        """The answer in a word."""
        states = {line.state for line in self.lines}
        if State.FOUND in states:
            return Status.FOUND
        return Status.CLEAN if State.OK in states else Status.UNCHECKED

    @property
    def found(self) -> tuple[Note, ...]:
        """What is wrong."""
        return tuple(line.said for line in self.lines if line.state is State.FOUND)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.status.value}, {len(self.found)} of {len(self.lines)} lines>"

    def __str__(self) -> str:
        from probe.report.checks import render

        return render(self).plain

    def as_json(self) -> dict[str, Any]:
        """Return the answer by the names that ``--json`` uses."""
        own = {
            each.name: plain(getattr(self, each.name)) for each in fields(self) if each.name not in ("files", "lines")
        }
        return {"status": self.status.value, "files": plain(self.files), "lines": plain(self.lines), **own}
