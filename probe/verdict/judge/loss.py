"""The loss that the program logged."""

from __future__ import annotations

import math
import sys

import numpy as np

from probe.numbers.statistics import dtype_of, unit_roundoff
from probe.records import Phase, Role
from probe.verdict.distance.error import Error, View
from probe.verdict.judge.judging import Judging
from probe.verdict.judge.verdicts import State
from probe.verdict.noise.model import LOSS, WORST
from probe.verdict.noise.rung import Check
from probe.verdict.steps.events import Event
from probe.verdict.steps.step import Step

_NONE = sys.float_info.min
_AGREES = 2e-6
"""relative error of losses in float32 up to which they show that a difference was taken back"""


def loss_error(step: Step) -> Error | None:
    """Return the largest relative error of the logged losses, with the losses themselves as norms; None without."""
    found = []
    for name, a in step.a.scalars.items():
        b = step.b.scalars.get(name)
        if b is not None and name.startswith("loss"):
            is_known = math.isfinite(a), math.isfinite(b)
            is_other = is_known[0] != is_known[1] or (math.isinf(a) and a == -b)
            if all(is_known):
                found.append(Error(abs(a - b) / max(abs(a), abs(b), _NONE), a, b))
            else:
                found.append(Error(math.inf if is_other else 0.0, a, b, view=View.NON_FINITE))
    return max(found, key=lambda each: each.size) if found else None


def loss_agrees(judging: Judging) -> bool:
    """Return True if a loss was logged that shows no difference; one of 0 shows nothing."""
    found = loss_error(judging.step)
    u = max((out.u for node in judging.step.nodes for out in node.outputs), default=0.0)
    return found is not None and max(abs(found.norm_a), abs(found.norm_b)) > _NONE and found.size < max(_AGREES, u / 4)


def judge_loss(judging: Judging) -> None:
    """Judge the logged loss by what the model returned."""
    step, verdicts = judging.step, judging.verdicts
    found = loss_error(step)
    if found is None:
        return
    roots = [out for node in step.nodes if node.parent is None for out in node.outputs if step.error(out) is not None]
    if any(verdicts.of([out]).is_wrong for out in roots):
        return
    limit = (
        _limit(judging, roots, max(abs(found.norm_a), abs(found.norm_b), _NONE)) if math.isfinite(found.size) else 0.0
    )
    check = judging.noise.loss(found.norm_a, found.norm_b, Check(found.size, limit, found.size > limit))
    if check.code and found.size > limit:
        verdicts.notes.append("loss-not-judged")
    if check.code or check.is_consequence or not check.is_wrong:
        return
    if not roots:
        if not verdicts.findings and step.nodes:
            verdicts.notes.append("loss-without-outputs")
        return
    inputs = [event for node in step.nodes if node.parent is None for event in node.inputs if event.is_paired]
    waiting = [event for event in inputs if verdicts.state(event) is State.OPEN and step.error(event) is not None]
    if waiting:  # what only the loss shows
        judging.finds(Phase.FORWARD, ("",), waiting[0], limit, "model-input", error=step.error(waiting[0]))
    else:
        judging.finds(Phase.LOSS, ("",), None, check.limit, "loss", error=found, check=check)


def _limit(judging: Judging, roots: list[Event], loss: float) -> float:
    """Return the error that roundoff and what the model returned explain.

    A loss moves by its gradient times the errors of what it is made of: near 0 its rounding is that of larger terms.
    """
    sources = judging.verdicts.of(roots)
    u = sources.u or 2**-24
    held = [unit_roundoff(name) for name in ("bfloat16", "float16") if _is_held(loss, name)]
    rounding = max([2**-24, *(each for each in held if each <= u)])
    moves = [_moved_by(out, loss) for out in roots]
    known = [each for each in moves if each is not None]
    floor = max(LOSS.k * rounding / 4, LOSS.k * 2**-24) * max([1.0, *known])
    inherited = LOSS.gain * sources.error
    if known and len(known) == len(moves):
        inherited = min(
            inherited, sum(WORST * judging.verdicts.error(out) * each for out, each in zip(roots, known, strict=True))
        )
    return max(floor, inherited)


def _is_held(loss: float, dtype: str) -> bool:
    return float(np.array(loss).astype(dtype_of(dtype))) == loss


def _moved_by(out: Event, loss: float) -> float | None:
    """Return the relative move of the loss for a relative error of an output, at most; None without its gradient."""
    assert out.node is not None and out.a is not None
    gradient = out.node.a.of(Role.GRAD_OUTPUT).get(out.slot_a)
    moved = gradient.norm * out.a.largest / loss if gradient is not None else math.nan
    return moved if math.isfinite(moved) else None
