"""Steps that one side alone skips since its gradients are not finite, as a loss scaler does: the other side's weights are NaN from there on."""

from __future__ import annotations

import math
from collections.abc import Collection

from probe.comparison.distance.combined import is_finite
from probe.comparison.ledger.known import Walk
from probe.comparison.ledger.places import root_refs
from probe.comparison.notes import Note, note
from probe.comparison.result import Divergence, Kind
from probe.comparison.steps.events import StepPairs
from probe.comparison.steps.side import Side
from probe.comparison.steps.step_half import ONE_SIDED, Event, StepHalf
from probe.records import Phase, Role

_SURE = 0.95


def is_change(side: Side, row: int) -> bool:
    """Tell whether an update changes anything; the norm of one that is not finite is that of its finite elements."""
    return bool(side.columns["norm"][row]) or not is_finite(side, row)


def changes_weights(side: Side) -> bool:
    """Tell whether a step changes any weight."""
    return any(role == Role.DELTA and is_change(side, row) for row, role in enumerate(side.columns["role"]))


def skipped_on_one_side(walk: Walk, pairs: StepPairs, updates: Collection[Event]) -> Divergence | None:
    """Return the finding that one side leaves weights as they were and the other updates them, by gradients that neither has finite.

    Parameters
    ----------
    walk
        what was judged of the step so far
    pairs
        the step
    updates
        of weights: those that both sides record, and those that one side alone makes
    """
    for half in pairs.halves:
        alone = [event for event in updates if _changes(half, event) and not _changes(pairs.half(half.other), event)]
        if not alone:
            continue
        gradients = [
            j.event for j in walk.ledger.events if (j.event.phase, j.event.role) == (Phase.GRADIENT, Role.PARAM_GRAD)
        ]
        infinite = {
            (event.pair, pairs.canonical(event))
            for event in gradients
            if not any(is_finite(each.side, each.row(event)) for each in pairs.halves)
        }
        if any((event.pair, pairs.canonical(event)) in infinite for event in alone):
            facts = _facts(half, alone, len(infinite), len(gradients))
            advice = note("skipping-of-steps", side=half.name)
            return Divergence(
                Phase.UPDATE, Role.DELTA, Kind.UPDATE, _SURE, *root_refs(walk), None, math.nan, facts, advice
            )
    return None


def _facts(half: StepHalf, alone: list[Event], infinite: int, judged: int) -> tuple[Note, ...]:
    said = note("step-skipped-on-one-side", infinite=infinite, judged=judged, skipping=half.other, updating=half.name,
                updated=len(alone))  # fmt: skip
    born = [event for event in alone if not is_finite(half.side, half.row(event))]
    if not born:
        return (said,)
    path = half.path(half.modules[born[0].pair]) or "the root"
    return said, note("weights-not-finite", count=len(born), side=half.name, slot=half.slot(born[0]), path=path)


def _changes(half: StepHalf, event: Event) -> bool:
    row = half.row(event)
    return row != ONE_SIDED and is_change(half.side, row)
