"""What could not be replayed, and why."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from probe.comparison.notes import Note, note
from probe.comparison.steps.step_half import Call as RecordedCall

_LONG = 200
"""letters of an error that are kept"""


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


def left_by(call: RecordedCall, error: Exception, why: Why = Why.RAISED) -> Left:
    """Return a call that an exception left."""
    text = " ".join(str(error).split())
    return Left(call, why, f"{type(error).__name__}: {text[:_LONG]}{'…' if len(text) > _LONG else ''}")
