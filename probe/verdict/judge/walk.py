"""A step, judged phase by phase in the order of cause."""

from __future__ import annotations

from probe.comparison.notes import note
from probe.records import Phase, Role
from probe.verdict.judge.backward import judge_backward
from probe.verdict.judge.behind import judge_behind
from probe.verdict.judge.forward import judge_forward
from probe.verdict.judge.gradients import drop_unseen, judge_gradients
from probe.verdict.judge.judging import Judging, Weights
from probe.verdict.judge.loss import judge_loss
from probe.verdict.judge.updates import judge_updates
from probe.verdict.judge.verdicts import Verdicts
from probe.verdict.judge.weights import judge_buffers, judge_weights, weights_of
from probe.verdict.noise.rung import StepNoise
from probe.verdict.steps.graph import Graph
from probe.verdict.steps.step import Step


def judge(step: Step, before: Weights | None, noise: StepNoise) -> Verdicts:
    """Give every event of a step its verdict.

    Parameters
    ----------
    before
        the weights that the step before left, what its optimizer kept, and buffers; None in the first one
    noise
        the rung that judges
    """
    weights = [each for each in before or () if each[0].role is Role.PARAM] or weights_of(step)
    kept = {
        event.place: (error.size, error.size if excess is None else excess)
        for event, error, excess in before or ()
        if event.role is not Role.PARAM
    }
    judging = Judging(step, Graph(step), Verdicts(), before is None, noise, weights, kept)
    judge_weights(judging)
    factor = 1.0
    if step.batches.are_same:
        judge_forward(judging)
        judge_loss(judging)
        factor = judge_backward(judging)
    else:
        _find_other_batch(judging)
    gradients = judge_gradients(judging, factor)
    drop_unseen(judging)
    judge_buffers(judging)
    judge_behind(judging)
    judge_updates(judging, gradients, factor)
    return judging.verdicts


def _find_other_batch(judging: Judging) -> None:
    """Find that the micro-batches of the two sides, which cannot be joined, are not the same data."""
    step = judging.step
    counts = [len({call.micro for call in half.calls if call.micro >= 0}) for half in (step.a, step.b)]
    if step.batches.differing and all(counts) and any(node.parent is None for node in step.nodes):
        told = note("micro-batches-of-other-data", input=step.batches.differing, a=counts[0], b=counts[1])
        judging.finds(Phase.FORWARD, ("",), None, 0.0, "model-input", facts=(told,))
