"""What a hint is, and the kinds of tensors that hints are for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from probe.comparison.hints.evidence import Evidence
from probe.comparison.hints.grades import Found
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
    looks_like: str
    """how the error shows itself"""
    check: str
    """what to look at: it goes behind “look at”"""
    test: Callable[[Evidence], Found | None]
