"""Notes on a vocabulary that one side has padded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from probe.comparison.ledger.known import Judged
from probe.comparison.notes import Note, note
from probe.comparison.steps.events import StepPairs
from probe.comparison.steps.step_half import Event
from probe.records import Role


def notes(pairs: StepPairs, judged: Iterable[Judged]) -> Iterator[Note]:
    """Yield, of a step that was judged, which weights were compared without their padding, and what was not compared."""
    if not pairs.vocabulary.sizes:
        return
    padded = [each.event for each in judged if each.event.metrics is not None and pairs.is_padded(each.event)]
    weights = [event for event in padded if event.role is Role.PARAM and event.metrics.is_known]
    for side, larger in (("A", 0), ("B", 1)):
        found = {_named(pairs, event): _sizes(pairs, event) for event in weights}
        found = {path: sizes for path, sizes in found.items() if sizes[larger] == max(sizes)}
        if found:
            a, b = next(iter(found.values()))
            in_part = any(event.metrics.is_lower_bound for event in weights)
            yield note("vocabulary-padded", names=tuple(found), side=side, a=a, b=b, by_statistics_alone=in_part)
    left = [event for event in padded if not event.metrics.is_known]
    if left:
        a, b = _sizes(pairs, left[0])
        first = f"{left[0].role.label} {_named(pairs, left[0])}"
        yield note("padded-vocabulary-not-compared", count=len(left), first=first, a=a, b=b)


def _named(pairs: StepPairs, event: Event) -> str:
    path = pairs.halves[0].path(pairs.matching.pairs[event.pair].a)
    return f"{event.slot_a} of {path or 'the model'}"


def _sizes(pairs: StepPairs, event: Event) -> tuple[int, int]:
    sizes = pairs.vocabulary.sizes_of(pairs.a, event.row_a, pairs.b, event.row_b)
    assert sizes is not None
    return sizes
