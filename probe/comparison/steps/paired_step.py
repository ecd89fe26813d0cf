"""One step of two recordings, paired: what the comparison walks, and what a report reads again."""

from __future__ import annotations

from collections.abc import Sequence

from probe.comparison.distance.tables import join_tables
from probe.comparison.fusion.absorbed_norm import give_their_inputs
from probe.comparison.fusion.bundles import join_parts
from probe.comparison.fusion.joined_calls import evaluations_of, join_calls, micros_of
from probe.comparison.fusion.returned_biases import add_returned_biases
from probe.comparison.fusion.summed_passes import sum_passes
from probe.comparison.optimizer.derived_updates import derive_updates
from probe.comparison.steps.events import StepPairs
from probe.comparison.steps.side import Side, begins
from probe.comparison.steps.tied_homes import homes_of
from probe.matching import Matching
from probe.matching.changes import Change
from probe.ranks.other_side import see_each_other
from probe.store.reading.reader import Reader


def paired_step(
    a: Reader, b: Reader, step_a: int, step_b: int, matching: Matching, changes: Sequence[Change] = ()
) -> StepPairs:
    """Return a step's calls and records in pairs; rows have the same numbers however often it is read."""
    see_each_other(a, b, ((pair.a, pair.b) for pair in matching.pairs), dict(matching.dims))
    begins_a, begins_b = begins(a, step_a), begins(b, step_b)
    homes_a = homes_of(a, {pair.a for pair in matching.pairs})
    homes_b = homes_of(b, {pair.b for pair in matching.pairs})
    side_a = Side(a, step_a, matching.views_a, homes=homes_a, continues=begins_b and not begins_a)
    side_b = Side(b, step_b, matching.views_b, homes=homes_b, continues=begins_a and not begins_b)
    add_returned_biases(side_a, side_b, matching)
    for side, name in ((side_a, "A"), (side_b, "B")):
        derive_updates(side)
        give_their_inputs(side, name, matching)
        join_parts(side, name, matching)
    join_tables(side_a, side_b, matching)
    ran = len(micros_of(side_a)), len(micros_of(side_b))
    joined, evaluations = (join_calls(side_a, side_b, matching, passes) for passes in (micros_of, evaluations_of))
    pairs = StepPairs(side_a, side_b, matching, changes)
    pairs.joined, pairs.ran, pairs.joined_evaluations = joined, ran, evaluations
    sum_passes(pairs)
    return pairs
