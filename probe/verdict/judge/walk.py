"""A step, judged phase by phase in the order of cause."""

from __future__ import annotations

from collections.abc import Sequence

from probe.verdict.distance.error import Error
from probe.verdict.judge.backward import judge_backward
from probe.verdict.judge.forward import judge_forward
from probe.verdict.judge.gradients import drop_unseen, judge_gradients
from probe.verdict.judge.judging import Judging
from probe.verdict.judge.loss import judge_loss
from probe.verdict.judge.updates import judge_updates
from probe.verdict.judge.verdicts import Verdicts
from probe.verdict.judge.weights import judge_buffers, judge_weights
from probe.verdict.noise.rung import StepNoise
from probe.verdict.steps.events import Event
from probe.verdict.steps.graph import Graph
from probe.verdict.steps.step import Step

Weights = Sequence[tuple[Event, Error, float | None]]
"""weights that a step left, with their errors, and what measured noise does not explain of them"""


def judge(step: Step, before: Weights | None, noise: StepNoise) -> Verdicts:
    """Give every event of a step its verdict.

    Parameters
    ----------
    before
        the weights that the step before left; None in the first one
    noise
        the rung that judges
    """
    judging = Judging(step, Graph(step), Verdicts(), before is None, noise)
    judge_weights(judging, before or ())
    factor = 1.0
    if step.batches.are_same:
        judge_forward(judging)
        judge_loss(judging)
        factor = judge_backward(judging)
    else:
        judging.verdicts.notes.append("other micro-batches")
    gradients = judge_gradients(judging, factor)
    drop_unseen(judging)
    judge_buffers(judging)
    judge_updates(judging, gradients, factor)
    return judging.verdicts
