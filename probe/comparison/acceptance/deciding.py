"""The answer of an acceptance table, and where it disagrees with the verdict, and why."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from probe.comparison.acceptance.result import Acceptance, Decision, ItemResult, Outcome
from probe.comparison.acceptance.tally import Tally
from probe.comparison.noise.tolerated import bound_of
from probe.comparison.notes import Note, note
from probe.comparison.result import Divergence, Verdict

_MOSTLY = 0.5
"""share of a row's tensors from which on it is said that zeros would pass too"""


def decided(
    tally: Tally, verdict: Verdict, findings: Sequence[Divergence], reasons: Sequence[Note]
) -> Acceptance:  # fmt: skip
    """Return what a table says of a comparison.

    Nothing is accepted that could not be compared: a verdict that is undecided leaves the table undecided, unless something is
    beyond its bound.
    """
    items = tally.results()
    outcomes = {each.outcome for each in items}
    if Outcome.FAIL in outcomes:
        decision = Decision.NOT_ACCEPTED
    elif outcomes == {Outcome.PASS} and verdict is not Verdict.UNDECIDED:
        decision = Decision.ACCEPTED
    else:
        decision = Decision.UNDECIDED
    notes = (
        *_disagreement(tally, items, decision, verdict, findings, reasons),
        *_lacking(items),
        *_caveats(tally, items),
    )
    return Acceptance(tally.preset, decision, items, tuple(tally.steps), notes)


def _disagreement(
    tally: Tally, items: Sequence[ItemResult], decision: Decision, verdict: Verdict, findings: Sequence[Divergence],
    reasons: Sequence[Note],
) -> Iterator[Note]:  # fmt: skip
    """Say where the table and the verdict disagree, and why."""
    if decision is Decision.ACCEPTED and findings:
        yield _smaller_fault(tally, findings[0])
    elif decision is Decision.NOT_ACCEPTED and verdict is Verdict.ALIGNED:
        failed = next(each for each in items if each.outcome is Outcome.FAIL)
        yield _larger_rounding(failed)
    elif verdict is Verdict.UNDECIDED and {each.outcome for each in items} == {Outcome.PASS}:
        yield note("accepted-but-undecided", why=reasons[0] if reasons else None)


def _smaller_fault(tally: Tally, first: Divergence) -> Note:
    """Say why a fault was accepted: it is smaller than the bound, or stands where the table does not look."""
    where = {"path": first.path, "phase": first.phase.label, "kind": first.kind.value}
    found = None if first.event is None else tally.of_findings.get(id(first.event))
    if found is None:
        return note("fault-outside-of-table", **where)
    item, measure = found
    return note("fault-below-bound", **where, item=item.scope.value, metric=item.tolerance.metric,
                figure=measure.figure, relation=measure.relation.value, bound=bound_of(item.tolerance))  # fmt: skip


def _larger_rounding(failed: ItemResult) -> Note:
    """Say why what is noise was refused: the bound does not know how large the numbers are."""
    facts = {"item": failed.item.scope.value, "metric": failed.item.tolerance.metric, "figure": failed.measure.figure,
             "bound": failed.bound}  # fmt: skip
    where = failed.where
    if where is None or not math.isfinite(where.rel_l2):
        return note("rounding-beyond-bound", **facts, path=None, rel=math.nan, limit=math.nan, largest=math.nan)
    return note("rounding-beyond-bound", **facts, path=where.path_a, rel=where.rel_l2, limit=where.limit, largest=where.largest)  # fmt: skip


def _lacking(items: Sequence[ItemResult]) -> Iterator[Note]:
    """Say what to record for the rows that could not be judged."""
    needy = [each for each in items if each.outcome is Outcome.NEEDS_VALUES]
    if needy:
        yield note("acceptance-needs-values", items=tuple(each.item.scope.value for each in needy), count=sum(each.open for each in needy))  # fmt: skip
    absent = tuple(each.item.scope.value for each in items if each.outcome is Outcome.NOT_RECORDED)
    if absent:
        yield note("acceptance-not-recorded", items=absent)


def _caveats(tally: Tally, items: Sequence[ItemResult]) -> Iterator[Note]:
    """Say what the figures do not tell."""
    for each in items:
        if each.outcome is Outcome.PASS and each.wide > _MOSTLY * each.judged:
            yield note("zeros-would-be-accepted", item=each.item.scope.value, count=each.wide, total=each.judged)
    if tally.sixteen:
        yield note("preset-made-for-float32", count=tally.sixteen, total=tally.total)
    excused, uncompared = max(each.excused for each in items), max(each.uncompared for each in items)
    if excused or uncompared:
        yield note("acceptance-leaves-out", excused=excused, uncompared=uncompared)
