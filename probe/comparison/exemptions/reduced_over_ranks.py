"""Gradients that one side has whole when backward ends, as DDP and one process do, and the other adds up over ranks behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from probe.comparison.optimizer.clipping import multiples
from probe.comparison.steps.events import StepPairs
from probe.comparison.steps.step_half import Event
from probe.records import Phase, Role


def reduced_within_backward(pairs: StepPairs, differing: Sequence[Event], limit: Callable[[Event], float]) -> str:
    """Return the side whose gradients, as backward left them, are those of all ranks already; empty where that is not so.

    There they are a multiple of those that the optimizer used; on the other side something was added to them first, and then
    they agree. With sequence parallelism that is what ranks do with gradients of weights that each of them holds whole.

    Parameters
    ----------
    pairs
        the step
    differing
        gradients, as backward left them, that differ
    limit
        the largest error of one that would be noise
    """
    ranks = {half.name: half.side.reader.info.world_size for half in pairs.halves}
    if max(ranks.values()) < 2:
        return ""
    used = {
        (event.pair, event.slot_a): event
        for event in pairs.parameter_events(Phase.UPDATE, Role.PARAM_GRAD)
        if not event.is_one_sided
    }
    of_differing = [used.get((event.pair, event.slot_a)) for event in differing]
    for event in of_differing:
        if event is None or event.metrics is None or not event.metrics.is_known or event.metrics.rel_l2 > limit(event):
            return ""
    known = [event for event in of_differing if event is not None]
    are = [multiples(half, known) for half in pairs.halves]
    sides = [half.name for half, (exact, others) in zip(pairs.halves, are, strict=True) if exact and not others]
    alone = len(sides) == 1 and ranks["B" if sides[0] == "A" else "A"] > 1  # one process has nobody to add up with
    return sides[0] if alone else ""
