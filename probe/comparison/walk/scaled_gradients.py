"""Judging gradients that are a multiple of the other side's: a loss scale, an average, a count of accumulated batches."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from probe.comparison.ledger.places import roundoff
from probe.comparison.noise import tolerance
from probe.comparison.notes import Note, note
from probe.comparison.result import Divergence
from probe.comparison.steps.step_half import Event
from probe.comparison.walk.scaling import AVERAGED, are_several, factor_of, scaling_note, several_note
from probe.comparison.walk.update_findings import Fault, Updating, report
from probe.records import Phase, Role

_AS_MUCH = 0.05
"""relative difference up to which gradients carry a factor"""
USED = "gradients-used"
"""what faults of the gradients that the optimizer used are reported as"""


def is_scaled(updating: Updating, used: list[Fault]) -> bool:
    """Tell whether B's gradients are a multiple of A's that the optimizer did not undo; say so if it did."""
    if updating.walk.backward.scaling is None:
        return False
    factor, finding = updating.walk.backward.scaling
    judged = [
        j.event for j in updating.walk.ledger.events if (j.event.phase, j.event.role) == (Phase.UPDATE, Role.PARAM_GRAD)
    ]
    if are_several(updating.walk.backward.factors):
        _report_averaged(updating, finding, judged)
        return True
    ratio = _median_ratio(judged)
    if used and not abs(ratio / abs(factor) - 1) < _AS_MUCH:
        _report_used_otherwise(updating, used, factor, ratio, finding.advice)
        return True
    is_used = bool(used) or carry_factor(judged, factor)
    if judged and not is_used:
        updating.walk.ledger.notes.append(note("factor-not-used", scaling=scaling_note(factor), advice=finding.advice))
        return False
    use = note("used-so") if is_used else note("use-not-recorded")
    updating.walk.ledger.findings.append(replace(finding, facts=(*finding.facts, use)))
    limit = max((fault.limit for fault in used), default=0.0)
    if used and factor_of(updating.pairs, [fault.event for fault in used], limit) == 1:
        report(updating, used, USED, Role.PARAM_GRAD)
    return True


def _report_averaged(updating: Updating, finding: Divergence, judged: list[Event]) -> None:
    """Report that each micro-batch has a factor of its own, with the loss's number if that differs too."""
    said = several_note(updating.walk.backward.factors)
    limit = max((tolerance.GRADIENT.limit(roundoff(updating.walk, event), 0.0) for event in judged), default=0.0)
    if judged and all(event.metrics is not None and event.metrics.rel_l2 <= limit for event in judged):
        updating.walk.ledger.notes.append(note("factors-not-used", scaling=said))
        return
    for place, other in enumerate(updating.walk.ledger.findings):
        if (other.phase, other.role) == (Phase.LOSS, Role.VALUE):
            updating.walk.ledger.findings[place] = replace(other, facts=(*other.facts, said), advice=AVERAGED)
            return
    updating.walk.ledger.findings.append(replace(finding, facts=(note("outputs-agree"), said), advice=AVERAGED))


def _report_used_otherwise(
    updating: Updating, used: list[Fault], factor: float, ratio: float, meaning: Note | None
) -> None:
    """Report gradients that the optimizer used neither as A's nor with the factor that backward left."""
    is_clipped_scaled = math.isclose(ratio * abs(factor), 1, rel_tol=_AS_MUCH)
    said = note("scaled-and-used-otherwise", left=factor, meaning=meaning, used=ratio, is_clipped=is_clipped_scaled)
    before = len(updating.walk.ledger.findings)
    report(updating, used, USED, Role.PARAM_GRAD)
    for place in range(before, len(updating.walk.ledger.findings)):
        found = updating.walk.ledger.findings[place]
        side, by = ("B", factor) if abs(factor) > 1 else ("A", 1 / factor)
        advice = note("clips-scaled-gradients", side=side, factor=by) if is_clipped_scaled else found.advice
        updating.walk.ledger.findings[place] = replace(
            found, facts=(*found.facts[:1], said, *found.facts[1:]), advice=advice
        )


def _ratios(events: list[Event]) -> list[float]:
    return [e.metrics.norm_ratio for e in events if e.metrics is not None and math.isfinite(e.metrics.norm_ratio)]


def _median_ratio(events: list[Event]) -> float:
    ratios = _ratios(events)
    return float(np.median(ratios)) if ratios else math.nan


def carry_factor(events: list[Event], factor: float) -> bool:
    """Tell whether B's tensors are nearer to the factor times A's than to A's, though noise could hide it in each."""
    ratios = _ratios(events)
    apart = [abs(ratio - 1) for ratio in ratios], [abs(ratio / abs(factor) - 1) for ratio in ratios]
    return bool(ratios) and float(np.median(apart[1])) < float(np.median(apart[0]))
