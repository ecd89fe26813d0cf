"""What sticks out where nothing exceeds noise: a module that adds much more error than the same module of other layers."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from probe.comparison.ledger.known import Judged
from probe.comparison.notes import Note, note
from probe.comparison.steps.events import StepPairs
from probe.records import Role

_NUMBER = re.compile(r"\d+")
_ROLES = (Role.OUTPUT, Role.GRAD_INPUT, Role.PARAM_GRAD)
_OTHERS = 2
"""other layers that are needed to say what is usual"""
_OUT = 3
"""times what is usual: of 283 right pairs five had such a tensor, and nine of 24 wrong ones whose fault was below the limits"""
_LEAST = 256
"""elements of the smallest tensor whose error says something"""
_ROUNDED = 2
"""unit roundoffs that an error has at least"""


@dataclass(frozen=True, slots=True)
class Conspicuous:
    """The tensor of a step that sticks out most."""

    event: str
    error: float
    growth: float
    """its error as a multiple of what it was computed from is off by, or of the unit roundoff"""
    usual: float
    """the largest growth in other layers"""
    others: int
    """how many those are"""

    @property
    def note(self) -> Note:
        """What it is, and that it need not be a fault."""
        return note(
            "error-sticks-out", event=self.event, error=self.error, growth=self.growth, others=self.others, usual=self.usual,
        )  # fmt: skip


def sticking_out(pairs: StepPairs, events: Iterable[Judged]) -> Conspicuous | None:
    """Return what sticks out most of the tensors of a step, None if nothing does."""
    events = [judged for judged in events if judged.event.role in _ROLES and judged.verdict in ("noise", "equal")]
    if not any(_growth(pairs, judged) > _OUT for judged in events):
        return None
    kinds: defaultdict[tuple[object, ...], dict[tuple[int, int, int], Judged]] = defaultdict(dict)
    for judged in events:  # a gradient is judged again, as the optimizer finds it
        kinds[_kind(pairs, judged)].setdefault((judged.event.pair, judged.event.micro, judged.event.call), judged)
    found = [each for of_kind in kinds.values() for each in _most(pairs, list(of_kind.values()))]
    return max(found, key=lambda each: each.growth / max(1.0, each.usual), default=None)


def _kind(pairs: StepPairs, judged: Judged) -> tuple[object, ...]:
    """Return what a tensor has in common with those of other layers: the path but for its numbers, slot, role and shape."""
    event = judged.event
    path = pairs.half("A").path(pairs.matching.pairs[event.pair].a)
    return event.role, _NUMBER.sub("*", path), event.slot_a, pairs.a.shapes[event.row_a]


def _growth(pairs: StepPairs, judged: Judged) -> float:
    """Return an error as a multiple of what it was computed from is off by, or of the unit roundoff; 0.0 where it says nothing."""
    metrics, u = judged.event.metrics, pairs.a.roundoffs[judged.event.row_a]
    if metrics is None or not u or not metrics.rel_l2 > _ROUNDED * u or not math.isfinite(judged.sources):
        return 0.0
    if math.prod(pairs.a.shapes[judged.event.row_a]) < _LEAST:
        return 0.0
    return metrics.rel_l2 / max(judged.sources, u)


def _most(pairs: StepPairs, of_kind: list[Judged]) -> Iterator[Conspicuous]:
    """Yield the tensor of a kind that has grown most, if it sticks out."""
    growth = [_growth(pairs, judged) for judged in of_kind]
    most = max(range(len(of_kind)), key=growth.__getitem__)
    event = of_kind[most].event
    others = [size for size, judged in zip(growth, of_kind, strict=True) if judged.event.pair != event.pair]
    layers = len({judged.event.pair for judged in of_kind}) - 1
    if layers >= _OTHERS and growth[most] > _OUT * max(1.0, *others) and event.metrics is not None:
        path = pairs.half("A").path(pairs.matching.pairs[event.pair].a) or "the root"
        place = f"{event.phase.label} {event.role.label} {event.slot_a} of {path}"
        yield Conspicuous(place, event.metrics.rel_l2, growth[most], max(others), layers)
