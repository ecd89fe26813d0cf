"""What a pass says of itself: above all what could not be replayed, and why."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field

from probe.notes import Note, note
from probe.recorder.calls import Call
from probe.records import Role
from probe.verdict.side import Call as RecordedCall

_LONG = 200
"""letters of an error that are kept"""
Place = tuple[int, int, int]
"""a call of A or B: micro, module and number"""


class Why(enum.StrEnum):
    """Why a call of A was not replayed, or not all of it: codes of `probe.report.words.replay`."""

    NOT_CALLED = "replay-not-called"
    """the code of B around it did not call its module"""
    NO_VALUES = "replay-no-values"
    """A recorded no values of what it was given"""
    NO_ARGUMENTS = "replay-no-arguments"
    """its module wants more than the tensors that A recorded"""
    RAISED = "replay-raised"
    """B's module raised an exception"""
    NO_GRADIENT = "replay-no-gradient"
    """A did not record the gradients of what it returned"""
    BACKWARD_RAISED = "replay-backward-raised"
    """differentiating it raised an exception"""
    NO_COUNTERPART = "replay-no-counterpart"
    """its module adds up what A's was given the sum of, and returns that too"""
    MORE_RETURNED = "replay-more-returned"
    """its module returns more than A's does, and gradients come back through that"""


@dataclass(frozen=True)
class Left:
    """A call of A that was not replayed, or only forwards."""

    call: RecordedCall
    why: Why
    error: str = ""
    slots: tuple[str, ...] = ()

    def note(self, path: str) -> Note:
        """Return it as a note, by the path of its module in A."""
        return note(self.why.value, path=path, micro=self.call.micro, call=self.call.number, error=self.error,
                    slots=self.slots)  # fmt: skip


@dataclass
class Passed:
    """What a pass says of itself."""

    left: list[Left] = field(default_factory=list)
    unpulled: set[RecordedCall] = field(default_factory=set)
    """calls of A that nothing was pulled back through"""
    skipped: set[tuple[int, int, int, Role, str]] = field(default_factory=set)
    """what cannot be held against A's, by the call in B, the role and the slot"""
    with_inner: set[tuple[int, int, int, str]] = field(default_factory=set)
    """gradients, by the call in B and the slot of what it returned, of which a part came through code inside of calls"""
    behind: set[RecordedCall] = field(default_factory=set)
    """calls of A that may have read a cache which earlier calls wrote"""
    carried: set[int] = field(default_factory=set)
    """passes in which B was given the cache that its own earlier calls wrote"""
    uncached: set[RecordedCall] = field(default_factory=set)
    """calls of A that are not judged for want of that cache"""
    raised: str = ""
    """what the first of these raised in B, if any did"""

    def leave(self, left: Left) -> None:
        """Note a call that nothing is pulled back through."""
        self.left.append(left)
        self.unpulled.add(left.call)

    def skip(self, call: Call, role: Role, slot: str) -> None:
        """Note a tensor that cannot be held against A's."""
        self.skipped.add((*place_of(call), role, slot))

    def notes(self) -> tuple[Note, ...]:
        """Return what was not replayed as notes."""
        names = {call.path or "the model": None for call in sorted(self.uncached, key=lambda call: call.begin)}
        said = note("replay-needs-cache", names=tuple(names), count=len(self.uncached), error=self.raised)
        return *([said] if names else []), *(each.note(each.call.path) for each in self.outermost())

    def outermost(self) -> list[Left]:
        """Return what was not replayed, without what lies inside of another call that was not, for no reason of its own."""
        not_called = {each.call for each in self.left if each.why is Why.NOT_CALLED}
        return [each for each in self.left if not (each.call in not_called and each.call.caller in not_called)]


def place_of(call: Call | RecordedCall) -> Place:
    """Return what tells a call from the others of its step."""
    return call.micro, call.module, call.number


def by_place(calls: Iterable[RecordedCall]) -> dict[Place, RecordedCall]:
    """Return calls by their places."""
    return {place_of(call): call for call in calls}


def left_by(call: RecordedCall, error: Exception, why: Why = Why.RAISED) -> Left:
    """Return a call that an exception left."""
    text = " ".join(str(error).split())
    return Left(call, why, f"{type(error).__name__}: {text[:_LONG]}{'…' if len(text) > _LONG else ''}")
