"""Which side is further from what B's code computes in float64, given the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from probe.comparison.distance.metrics import measure_pair
from probe.comparison.notes import Note, note
from probe.comparison.result import Divergence
from probe.comparison.steps.events import StepPairs
from probe.comparison.steps.rows import Key, Rows
from probe.comparison.steps.side import PARAMETER_ROLES, Side
from probe.comparison.steps.step_half import Event


def with_reference(findings: Sequence[Divergence], pairs: StepPairs, wide: Side) -> list[Divergence]:
    """Return findings with how far both sides are from a pass in float64.

    A that is further computes something else, or less precisely, than B's code says; B that is further rounds more than A does.
    """
    rows = Rows.of(wide)
    keys = {(node.micro, node.pair, node.call): pairs.half("B").key(node) for node in pairs.nodes.values()}
    return [_referred(finding, pairs, wide, rows, keys) for finding in findings]


def _referred(
    finding: Divergence, pairs: StepPairs, wide: Side, rows: Rows, keys: dict[tuple[int, int, int], Key]
) -> Divergence:  # fmt: skip
    found = None if finding.event is None else _distances(finding.event, pairs, wide, rows, keys)
    return finding if found is None else replace(finding, facts=(*finding.facts, found))


def _distances(
    event: Event, pairs: StepPairs, wide: Side, rows: Rows, keys: dict[tuple[int, int, int], Key]
) -> Note | None:  # fmt: skip
    is_own = event.role in PARAMETER_ROLES
    key = (0, pairs.matching.pairs[event.pair].b, 0) if is_own else keys.get((event.micro, event.pair, event.call))
    slot = f"{event.phase.label}:{event.slot_b}" if is_own else event.slot_b
    there = [] if key is None else rows.get(key, event.role).get(slot, [])
    if not there or event.is_one_sided:
        return None
    a, b = (measure_pair(side, row, wide, there[-1]) for side, row in ((pairs.a, event.row_a), (pairs.b, event.row_b)))
    return note("replay-reference", a=a.rel_l2, b=b.rel_l2) if a.is_known and b.is_known else None
