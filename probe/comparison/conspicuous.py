"""What sticks out where nothing exceeds noise: a module that adds much more error than the same module of other layers."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from probe.comparison.events import StepPairs
from probe.comparison.ledger import Judged
from probe.records import Role
from probe.statistics import unit_roundoff

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
    def text(self) -> str:
        """Say what it is, and that it need not be a fault."""
        return (
            f"nothing exceeds noise, but the {self.event} sticks out: it is off by {self.error:.1e}, {self.growth:.1f} times what it is "
            f"made from, and the same in {self.others} other layers by at most {self.usual:.1f} times: if the runs part, look there first"
        )


def sticking_out(pairs: StepPairs, events: Iterable[Judged]) -> Conspicuous | None:
    """Return what sticks out most of the tensors of a step, None if nothing does."""
    kinds: defaultdict[tuple[object, ...], dict[tuple[int, int, int], tuple[float, Judged]]] = defaultdict(dict)
    names: dict[int, str] = {}
    for judged in events:
        event = judged.event
        if event.role not in _ROLES or judged.verdict not in ("noise", "equal") or not math.isfinite(judged.sources):
            continue
        shape, u = pairs.a.shapes[event.row_a], unit_roundoff(pairs.a.dtypes[event.row_a])
        if math.prod(shape) < _LEAST or not u:
            continue
        if event.pair not in names:
            names[event.pair] = _NUMBER.sub("*", pairs.half("A").path(pairs.matching.pairs[event.pair].a))
        error = event.metrics.rel_l2 if event.metrics is not None else 0.0
        growth = error / max(judged.sources, u) if error > _ROUNDED * u else 0.0
        kind = (event.role, names[event.pair], event.slot_a, shape)
        kinds[kind].setdefault((event.pair, event.micro, event.call), (growth, judged))
    found = [each for of_kind in kinds.values() for each in _most(pairs, of_kind)]
    return max(found, key=lambda each: each.growth / max(1.0, each.usual), default=None)


def _most(pairs: StepPairs, of_kind: dict[tuple[int, int, int], tuple[float, Judged]]) -> Iterable[Conspicuous]:
    """Yield the tensor of a kind that has grown most, if it sticks out."""
    growth, judged = max(of_kind.values(), key=lambda each: each[0])
    event = judged.event
    others = [each for (pair, _, _), (each, _) in of_kind.items() if pair != event.pair]
    layers = len({pair for pair, _, _ in of_kind}) - 1
    if layers >= _OTHERS and growth > _OUT * max(1.0, *others):
        path = pairs.half("A").path(pairs.matching.pairs[event.pair].a) or "the root"
        assert event.metrics is not None
        yield Conspicuous(
            f"{event.phase.label} {event.role.label} {event.slot_a} of {path}",
            event.metrics.rel_l2,
            growth,
            max(others),
            layers,
        )
