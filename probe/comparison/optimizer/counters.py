"""How many steps an optimizer says that it has made of a parameter: Adam and its kin divide by what depends on it."""

from __future__ import annotations

import math
from collections.abc import Mapping

from probe.comparison.steps.side import Side
from probe.comparison.steps.step_half import StepHalf
from probe.records import Phase, Role

_COUNTS = ("step", "global_step", "state_step")
"""states that count steps: those of torch and of MindSpore"""
_OWN = "state_step"
"""that of MindSpore's newer optimizers, of which each begins at a number of its own"""
_POWERS = {"beta1_pow_acc": (0, -1), "beta2_pow_acc": (1, -1), "beta2_power": (1, 0)}
"""states that are powers of a beta, of Paddle and of MindSpore: which beta; what has to be added (Paddle's is that of the next step)"""
_LEAST = 1e-30
"""below it a power of beta in float32 has lost its digits"""
_WHOLE = 0.2
"""how far what is made of a power, which rounds at each step, may be from a whole number"""


def is_counter(side: Side, row: int, state: str) -> bool:
    """Tell whether a state tells how often its parameter was updated, and is no moment of it."""
    return (state in _COUNTS or state in _POWERS) and math.prod(side.shapes[row]) == 1


def steps_counted(half: StepHalf, module: int, slot: str, hyper: Mapping[str, object]) -> tuple[int, str] | None:
    """Return how many steps the optimizer counts for a parameter behind its update, and from where; None where it does not say.

    What begins at a number of its own, as the name behind it says, tells nothing beside another counter.

    Parameters
    ----------
    half
        a side of a step
    module, slot
        the parameter's
    hyper
        what it is trained with
    """
    prefix, side = f"{Phase.UPDATE.label}:{slot}.", half.side
    for name, found in half.rows.get((0, module, 0), Role.STATE).items():
        state = name.removeprefix(prefix)
        if name.startswith(prefix) and is_counter(side, found[-1], state):
            count = _count(state, side.columns["mean"][found[-1]], hyper.get("betas"))
            if count is not None:
                return count, state if state == _OWN else ""
    return None


def _count(state: str, value: float, betas: object) -> int | None:
    if not math.isfinite(value):
        return None
    if state in _COUNTS:
        return round(value)
    which, more = _POWERS[state]
    beta = betas[which] if isinstance(betas, (list, tuple)) and len(betas) > which else None
    if not isinstance(beta, float) or not 0 < beta < 1 or not _LEAST < value <= 1:
        return None
    steps = math.log(value) / math.log(beta)
    return round(steps) + more if abs(steps - round(steps)) < _WHOLE else None
