"""What a hint is, and the kinds of tensors that hints are for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from probe.comparison.notes import note
from probe.diagnosis.evidence import Evidence
from probe.diagnosis.grades import Found
from probe.records import Role

ACTIVATIONS = (Role.INPUT, Role.OUTPUT, Role.VALUE)
WEIGHTS = (Role.PARAM,)
GRADIENTS = (Role.GRAD_OUTPUT, Role.GRAD_INPUT, Role.GRAD_TOTAL, Role.PARAM_GRAD)
LOSSES = (Role.OUTPUT, Role.VALUE)


@dataclass(frozen=True, slots=True)
class Hint:
    """One sort of mistake."""

    name: str
    roles: tuple[Role, ...]
    """what kinds of tensors it is for"""
    test: Callable[[Evidence], Found | None]

    @property
    def looks_like(self) -> str:
        """How the error shows itself: the first line of the test's docstring."""
        said = str(getattr(self.test, "func", self.test).__doc__).partition("\n")[0].rstrip(".")
        return said[0].lower() + said[1:]

    @property
    def check(self) -> str:
        """What to look at: it goes behind “look at”."""
        return str(note("check", name=self.name))
