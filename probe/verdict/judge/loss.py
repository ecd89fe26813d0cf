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
from probe.verdict.noise.terms import alignment_limit, near_zero, peaks_of
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
    nodes = [] if step.a.is_in_part or step.b.is_in_part else step.nodes
    roots = [out for node in nodes if node.parent is None for out in node.outputs if step.error(out) is not None]
    if any(verdicts.of([out]).is_wrong for out in roots):
        return
    largest = max(abs(found.norm_a), abs(found.norm_b), _NONE)
    limit = _limit(judging, roots, largest) if math.isfinite(found.size) else 0.0
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
    moves = [_moved_by(judging, out) for out in roots]
    most = [each / loss for each, _ in moves]
    floor = max(LOSS.k * rounding / 4, LOSS.k * 2**-24) * max([1.0, *(each for each in most if math.isfinite(each))])
    inherited = WORST * sum(judging.verdicts.error(out) * each for out, each in zip(roots, most, strict=True))
    inherited = min(LOSS.gain * sources.error, inherited if roots and math.isfinite(inherited) else math.inf)
    by_chance = sum(each for _, each in moves) / loss
    return max(floor, inherited, by_chance, *(noise_of_loss(judging, out)[0] for out in roots))


def noise_of_loss(judging: Judging, out: Event) -> tuple[float, float, float]:
    """Return the error that an output explains of a loss, of the gradient that comes back to it, and of its norm."""
    found, gradients = loss_error(judging.step), judging.step.gradients_of(out)
    if found is None or gradients is None or out.a is None:
        return 0.0, 0.0, 0.0
    loss, sides = min(found.norm_a, found.norm_b), (judging.step.a, judging.step.b)
    own, moved = near_zero(loss, out.a, gradients[0], judging.verdicts.error(out))
    is_of_alignments = any("ctc" in name.casefold() for each in sides for name in each.reader.listed("loss_functions"))
    known = alignment_limit(loss, gradients[0]) if is_of_alignments else 0.0
    return own, max(moved, known), known


def _moved_by(judging: Judging, out: Event) -> tuple[float, float]:
    """Return by how much an output moves the loss: at most, if all of it is wrong, and by its error, by chance.

    A gradient of few elements averages little. An error that is healed or ignored moves nothing.
    """
    assert out.node is not None and out.a is not None
    gradient, error = out.node.a.of(Role.GRAD_OUTPUT).get(out.slot_a), judging.step.error(out)
    if gradient is None or not math.isfinite(gradient.norm * out.a.largest):
        return math.nan, 0.0
    if error is None or error.is_bound or not math.isfinite(error.size):
        return gradient.norm * out.a.largest, 0.0
    apart = min(error.size, judging.verdicts.error(out)) * max(error.norm_a, error.norm_b)
    by_chance = gradient.norm * apart * min(1.0, WORST / math.sqrt(max(peaks_of(gradient), 1)))
    return gradient.norm * out.a.largest, by_chance


def _is_held(loss: float, dtype: str) -> bool:
    return float(np.array(loss).astype(dtype_of(dtype))) == loss
