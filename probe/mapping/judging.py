"""By which tolerance a module's tensors are judged; `probe.mapping.judging_files` reads what is written of it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from probe.defaults import ALLCLOSE, METRICS
from probe.mapping.nearest import did_you_mean
from probe.records import Phase, Role


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far two tensors may be apart."""

    atol: float = 0.0
    rtol: float = 0.0
    metric: str = ALLCLOSE

    def __str__(self) -> str:
        used = METRICS[self.metric]
        parts = [f"{self.metric}"]
        parts += [f"atol {self.atol:g}"] if "a" in used else []
        parts += [f"rtol {self.rtol:g}"] if "r" in used else []
        return " ".join(parts)


@dataclass(frozen=True, slots=True)
class JudgingRule:
    """A tolerance for what fits; None for what is not to be judged."""

    tolerance: Tolerance | None
    path: str = "*"
    """a glob of paths of A or B, or a class"""
    phase: Phase | None = None
    role: Role | None = None
    name: str = ""
    """for messages"""


def tolerance(atol: float | None, rtol: float | None, metric: str | None) -> Tolerance:
    """Return a tolerance from options.

    Raises ValueError, saying what was expected, where they make no sense together.
    """
    chosen = ALLCLOSE if metric is None else metric
    if chosen not in METRICS:
        raise ValueError(
            f"metric {chosen!r} is not known; expected {', '.join(METRICS)}{did_you_mean(chosen, METRICS)}"
        )
    for name, value in (("atol", atol), ("rtol", rtol)):
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if value is not None and not (is_number and math.isfinite(value) and value >= 0):
            raise ValueError(f"{name} {value!r} is no tolerance; expected a number that is not negative")
        if value is not None and name[0] not in METRICS[chosen]:
            other = "rtol" if name == "atol" else "atol"
            raise ValueError(f"metric {chosen} is not held against {name}; expected {other}")
    if atol is None and rtol is None:
        wanted = " or ".join(name for name in ("atol", "rtol") if name[0] in METRICS[chosen])
        raise ValueError(f"metric {chosen} has nothing to be held against; expected {wanted}")
    return Tolerance(float(atol or 0), float(rtol or 0), chosen)
