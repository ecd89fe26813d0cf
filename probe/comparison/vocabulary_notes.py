"""What is said of a vocabulary that one side has padded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from probe.comparison.events import StepPairs
from probe.comparison.ledger import Judged
from probe.comparison.step_half import Event
from probe.records import Role

_MOST_NAMED = 4
_IN_PART = (
    ", by norm, mean and extremes alone: rows that stand in another order are not seen (task='tensor' compares them)"
)


def notes(pairs: StepPairs, judged: Iterable[Judged]) -> Iterator[str]:
    """Yield, of a step that was judged, which weights were compared without their padding, and what was not compared."""
    if not pairs.vocabulary.sizes:
        return
    padded = [each.event for each in judged if each.event.metrics is not None and pairs.is_padded(each.event)]
    weights = [event for event in padded if event.role is Role.PARAM and event.metrics.is_known]
    for name, larger in (("A", 0), ("B", 1)):
        found = {_named(pairs, event): _sizes(pairs, event) for event in weights}
        found = {path: sizes for path, sizes in found.items() if sizes[larger] == max(sizes)}
        if found:
            sizes = next(iter(found.values()))
            more = abs(sizes[0] - sizes[1])
            listed = ", ".join([*found][:_MOST_NAMED]) + (" …" if len(found) > _MOST_NAMED else "")
            by = _IN_PART if any(event.metrics.is_lower_bound for event in weights) else ""
            yield (
                f"{listed}: {name} has {more} {'row' if more == 1 else 'rows'} more ({sizes[0]} in A, {sizes[1]} in B), as padding of a "
                f"vocabulary makes them: the rows that both have are compared{by}"
            )
    left = [event for event in padded if not event.metrics.is_known]
    if left:
        first, count = left[0], "1 tensor" if len(left) == 1 else f"{len(left)} tensors"
        sizes = _sizes(pairs, first)
        yield (
            f"the vocabulary has {sizes[0]} entries in A and {sizes[1]} in B: {count} with padding which is not zeros, and without values, "
            f"{'is' if len(left) == 1 else 'are'} not compared, first {first.role.label} {_named(pairs, first)} (task='tensor' records values)"
        )


def _named(pairs: StepPairs, event: Event) -> str:
    path = pairs.halves[0].path(pairs.matching.pairs[event.pair].a)
    return f"{event.slot_a} of {path or 'the model'}"


def _sizes(pairs: StepPairs, event: Event) -> tuple[int, int]:
    sizes = pairs.vocabulary.sizes_of(pairs.a, event.row_a, pairs.b, event.row_b)
    assert sizes is not None
    return sizes
