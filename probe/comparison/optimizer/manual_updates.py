"""Updates of weights that a program writes to by itself: averages (EMA, teachers), steps by hand from gradients that nobody saw.

What they are made of is not recorded: neither a gradient nor an optimizer tells how large their errors may be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from probe.comparison.notes import note
from probe.comparison.optimizer.derived_updates import Derived
from probe.comparison.steps.events import StepPairs
from probe.comparison.steps.step_half import Event, StepHalf
from probe.records import Phase, Role

if TYPE_CHECKING:
    from probe.comparison.ledger.known import State

LOOK = note("writes-behind-step")
_UPDATE, _USED = f"{Phase.UPDATE.label}:", f"{Phase.FORWARD.label}:"


def is_own(half: StepHalf, event: Event) -> bool:
    """Tell whether one side's update came without an optimizer that was seen, and without a gradient that was."""
    if not isinstance(half.side.combined.get(half.row(event)), Derived):
        return False
    slot = half.slot(event)
    gradients = half.rows.get((0, half.modules[event.pair], 0), Role.PARAM_GRAD)
    return not any(label.partition(":")[2] == slot for label in gradients)


def error_of_sources(
    pairs: StepPairs, state: State, event: Event, updates: Iterable[Event], known: Callable[[Event], float]
) -> float:
    """Return how large the relative error may be of what an own update was made from.

    An average may be made of any weight of its shape: it has the error of the worst of their gradients. Where no gradient of that
    shape is known, what the two sides' updates do not have in common tells it, of vectors: the gradient of a bias before what takes
    it away again is rounding. What a weight had of errors before goes into an average of it, too.

    Parameters
    ----------
    updates
        of all weights, as far as both sides have them
    known
        the error of the sources of an update whose gradient was compared
    """
    shape, metrics = pairs.a.shapes[event.row_a], event.metrics
    alike = [each for each in updates if pairs.a.shapes[each.row_a] == shape]
    errors = [known(each) for each in alike if (each.pair, each.slot_a) in state.gradients]
    if not errors and len(shape) < 2:
        errors = [1 - each.metrics.cosine**2 for each in alike if each.metrics is not None and each.metrics.is_known]
    weights = [state.parameters[each.pair].error for each in alike if each.pair in state.parameters]
    length = max(metrics.norm_a, metrics.norm_b) if metrics is not None and metrics.is_known else 0.0
    rows = pairs.rows_a.get((0, pairs.matching.pairs[event.pair].a, 0), Role.PARAM).get(_UPDATE + event.slot_a)
    inherited = max(weights, default=0.0) * pairs.a.norm(rows[-1]) / length if rows and length else 0.0
    found = max([*errors, inherited], default=0.0)
    return found if math.isfinite(found) else 1.0


def is_seen_by_calls(pairs: StepPairs, lacking: StepHalf, event: Event) -> bool:
    """Tell whether calls show what becomes of a weight that one side alone leaves written to: there it is judged."""
    rows = lacking.rows.get((0, lacking.modules[event.pair], 0), Role.PARAM)
    name = pairs.canonical(event)
    is_found = any(
        label.startswith(_USED) and lacking.side.canonical(lacking.modules[event.pair], label.partition(":")[2]) == name
        for label in rows
    )
    return is_found or any(node.pair == event.pair for node in pairs.nodes.values())
