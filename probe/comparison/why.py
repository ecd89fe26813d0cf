"""Why a module was judged as it was: what the walk saw of it, tensor by tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from probe.comparison.blame.gradients import GRADIENT
from probe.comparison.blame.table import INPUT, OUTPUT
from probe.comparison.exemptions.table import EXEMPTIONS, REFITS
from probe.comparison.result import SlotResult

_ANSWERS = {row.code: row.text for row in (*INPUT, *OUTPUT, *GRADIENT)}


@dataclass(frozen=True)
class Why:
    """What was compared of a module, in the order of cause, and how each tensor was judged.

    Its text says of each tensor: the error, the largest error among what it was computed from, the limit up to which it
    would have been noise, the verdict, which exemptions were tried or applied, and who answers where it is wrong.
    """

    path: str
    """as it was asked for"""
    slots: Sequence[SlotResult]

    @property
    def codes(self) -> tuple[str, ...]:
        """Codes of the rows that were tried or applied, in order: exemptions, and who answers."""
        return tuple(
            dict.fromkeys(code for slot in self.slots for code in (*slot.tried, slot.exemption, slot.blame) if code)
        )

    def as_json(self) -> dict[str, Any]:
        """Return it for JSON: a row for each tensor, and what each code means."""
        return {
            "path": self.path,
            "tensors": [_row(slot) for slot in self.slots],
            "rules": {code: explained(code) for code in self.codes},
        }

    def __str__(self) -> str:
        from probe.report.why import render

        return render(self)


def explained(code: str) -> str:
    """Return the sentence of a row of the tables."""
    return EXEMPTIONS.get(code) or REFITS.get(code) or _ANSWERS[code]


def _row(slot: SlotResult) -> dict[str, Any]:
    return {
        "step": slot.step,
        "micro": slot.micro,
        "call": slot.call,
        "phase": slot.phase.label,
        "role": slot.role.label,
        "path_a": slot.path_a,
        "slot_a": slot.slot_a,
        "path_b": slot.path_b,
        "slot_b": slot.slot_b,
        "error": _finite(slot.error),
        "measure": slot.measure,
        "sources": _finite(slot.sources),
        "limit": _finite(slot.limit),
        "verdict": slot.verdict,
        "exemption": slot.exemption,
        "tried": list(slot.tried),
        "blame": slot.blame,
        "reason": slot.metrics.reason,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
