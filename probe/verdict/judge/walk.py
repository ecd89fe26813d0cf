"""A step, judged phase by phase in the order of cause."""

from __future__ import annotations

from dataclasses import replace

from probe.notes import note
from probe.records import Phase, Role
from probe.verdict.judge.backward import judge_backward
from probe.verdict.judge.forward import judge_forward
from probe.verdict.judge.gradients import drop_unseen, judge_gradients
from probe.verdict.judge.judging import Before, Judging
from probe.verdict.judge.loss import judge_loss
from probe.verdict.judge.updates import judge_updates
from probe.verdict.judge.verdicts import Verdicts
from probe.verdict.judge.weights import judge_buffers, judge_weights, known_of
from probe.verdict.judge.written import judge_behind, judge_written
from probe.verdict.noise.rung import StepNoise
from probe.verdict.steps.graph import Graph
from probe.verdict.steps.step import Step


def judge(step: Step, before: Before | None, noise: StepNoise) -> Verdicts:
    """Give every event of a step its verdict, by the rung that judges; ``before`` is None in the first step."""
    known = before or Before()
    known = known if known.weights else replace(known, weights=known_of(step, Role.PARAM))
    judging = Judging(step, Graph(step), Verdicts(), before is None, noise, known)
    judge_weights(judging)
    factor = 1.0
    if step.batches.are_same:
        judge_forward(judging)
        judge_loss(judging)
        if "loss-without-outputs" in judging.verdicts.notes and (step.a.is_in_part or step.b.is_in_part):
            return judging.verdicts  # what comes back shows the same
        factor = judge_backward(judging)
    else:
        _find_other_batch(judging)
    gradients = judge_gradients(judging, factor)
    drop_unseen(judging)
    judge_buffers(judging)
    judge_behind(judging, gradients)
    judge_updates(judging, gradients, factor)
    judge_written(judging, gradients)
    return judging.verdicts


def _find_other_batch(judging: Judging) -> None:
    """Find that the micro-batches of the two sides, which cannot be joined, are not the same data."""
    step = judging.step
    counts = [len({call.micro for call in half.calls if call.micro >= 0}) for half in (step.a, step.b)]
    if step.batches.differing and all(counts) and any(node.parent is None for node in step.nodes):
        told = note("micro-batches-of-other-data", input=step.batches.differing, a=counts[0], b=counts[1])
        judging.finds(Phase.FORWARD, ("",), None, 0.0, "model-input", facts=(told,))
