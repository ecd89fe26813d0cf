"""What one side did with its gradients between backward and the optimizer: clipped, divided, as they are."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from probe.comparison.notes import Note, note
from probe.comparison.optimizer.settings import groups_of
from probe.comparison.steps.events import StepPairs
from probe.comparison.steps.side import Side
from probe.comparison.steps.step_half import Event, StepHalf
from probe.records import Phase, Role

_SAME = 2e-3
"""relative difference up to which factors, norms and bounds are one"""
_EXACT = 1e-3
"""share of a gradient that may stay unexplained where it is said to be a multiple"""
_POWER = 1e-4
"""relative difference up to which a factor is a power of two: dividing by one is exact, and a norm that clipping gave may be near one"""
_ADDED = 8
"""unit roundoffs of a gradient's dtype that are left over where more than rounding was added to it"""
_FEW = 2
SUMMED_IN = 2.0**-24
"""unit roundoff of float32, in which norms of gradients are taken"""
_MOST_APART = 1e-2
"""what two norms may be apart at most, however many elements were summed: more is a sum that is wrong by itself"""


@dataclass(frozen=True, slots=True)
class _Used:
    """One parameter's gradient as backward left it, and as it was used."""

    event: Event
    factor: float
    rest: float
    """share of the used one that is no multiple of the other"""
    norm: float
    """as backward left it"""
    bound: float
    """largest element of the used one"""
    was_bound: float
    u: float
    """unit roundoff of the coarser of the two"""


def treatments(pairs: StepPairs, events: Iterable[Event]) -> list[Note]:
    """Return what both sides made of their gradients, where that is not the same and the numbers tell.

    Parameters
    ----------
    pairs
        the step
    events
        gradients as the optimizers used them, of both sides
    """
    used = list(events)
    a, b = (_treated(_Treatment(pairs, half, used)) for half in pairs.halves)
    return [] if a is None or b is None or a == b else [note("gradients-treated-otherwise", a=a, b=b)]


def apart_by_summing(pairs: StepPairs, events: Iterable[Event]) -> float:
    """Return by how much B's used gradients are longer or shorter, all of them, where rounding of the norm explains it; else 0.

    Clipping divides by a norm. Summed one after another in float32, n squares have a relative error of up to n unit roundoffs,
    the root of the sum half of that: what is added is lost where the sum is much larger. A kernel that sums in pairs errs less.

    Parameters
    ----------
    pairs
        the step
    events
        gradients as the optimizers used them, of both sides
    """
    used = list(events)
    for half in pairs.halves:
        first = next(_used(half, used), None)
        if first is None or not 0 < first.factor < 1 - _SAME:  # nothing is clipped: that is seen at one gradient
            return 0.0
    ratios = [e.metrics.norm_ratio for e in used if e.metrics is not None and 0 < e.metrics.norm_ratio < math.inf]
    for half in pairs.halves:
        found = list(_used(half, used))
        factors = [each.factor for each in found]
        if min(len(ratios), len(found)) < _FEW or any(each.rest >= _EXACT for each in found) or not _alike(factors):
            return 0.0
    largest = max(math.prod(pairs.a.shapes[event.row_a]) for event in used)
    apart = abs(float(np.median(ratios)) - 1)
    return apart if apart <= min(largest * SUMMED_IN / 2, _MOST_APART) else 0.0


def multiples(half: StepHalf, events: list[Event]) -> tuple[int, int]:
    """Return of how many used gradients of a side it is known that they are a multiple of what backward left, and that they are none."""
    found = list(_used(half, events))
    exact = sum(each.rest < _EXACT for each in found)
    return exact, len(found) - exact


def _total(side: Side) -> float:
    """Return the norm of all gradients as backward left them: each parameter's own, whatever it was paired or joined with."""
    columns = side.columns
    last: dict[tuple[int, str], float] = {}
    rows = zip(columns["phase"], columns["role"], columns["module"], side.slots, columns["norm"], strict=True)
    for row, (phase, role, module, slot, norm) in enumerate(rows):
        if phase == Phase.GRADIENT and role == Role.PARAM_GRAD and row not in side.combined:
            last[module, slot] = norm
    return math.hypot(*last.values())


def _used(half: StepHalf, events: list[Event]) -> Iterator[_Used]:
    side = half.side
    for event in events:
        module, slot, row = half.modules[event.pair], half.slot(event), half.row(event)
        left = half.rows.get((0, module, 0), Role.PARAM_GRAD).get(f"{Phase.GRADIENT.label}:{slot}")
        if not left:
            continue
        before, after = side.sketch(left[-1]), side.sketch(row)
        length = 0.0 if before is None else float(np.linalg.norm(before))
        if before is None or after is None or not length or not np.isfinite(after).all():
            continue
        factor = float(after @ before) / length**2
        rest = float(np.linalg.norm(after - factor * before)) / (float(np.linalg.norm(after)) or 1.0)
        columns = side.columns
        bounds = [max(abs(columns["min"][each]), abs(columns["max"][each])) for each in (row, left[-1])]
        u = max(side.roundoffs[each] for each in (row, left[-1]))
        yield _Used(event, factor, rest, columns["norm"][left[-1]], *bounds, u)


class _Treatment:
    """What one side made of its gradients."""

    def __init__(self, pairs: StepPairs, half: StepHalf, events: list[Event]) -> None:
        self.pairs, self.half = pairs, half
        self.found, self.total = list(_used(half, events)), _total(half.side)
        self.is_whole = len(self.found) == len(events)

    def by_group(self) -> Note | None:
        """Say so when the gradients of each parameter group were clipped by themselves."""
        groups, by_group = groups_of(self.pairs, self.half.name), dict[tuple[int, int], list[_Used]]()
        for each in self.found:
            place = groups.get((each.event.pair, self.pairs.canonical(each.event)))
            by_group.setdefault(place or (-1, -1), []).append(each)
        if (
            len(by_group) < _FEW
            or not self.is_whole
            or not all(_alike([e.factor for e in of]) for of in by_group.values())
        ):
            return None
        norms = {number: of[0].factor * math.hypot(*(each.norm for each in of)) for number, of in by_group.items()}
        clipped = [norms[number] for number, of in by_group.items() if 0 < of[0].factor < 1 - _SAME]
        shorter = [number for number, of in by_group.items() if math.isclose(of[0].factor, 1, abs_tol=_SAME)]
        if not clipped or len(clipped) + len(shorter) < len(by_group) or not _alike(clipped):
            return None
        if any(norms[number] > clipped[0] * (1 + _SAME) for number in shorter):
            return None
        had_less = tuple(group for _, group in shorter)
        return note("clips-each-group", groups=len(by_group), norm=_number(clipped[0]), had_less=had_less)

    def added_to(self) -> Note | None:
        """Say to which gradients something was added that backward did not leave there, and what was done to the others."""
        exact = [each for each in self.found if each.rest < _EXACT]
        added = [each for each in self.found if each.rest >= _EXACT]
        if any(each.rest < _ADDED * each.u for each in added):
            return None  # rounding may do that
        over_ranks = self.half.side.reader.info.world_size > 1
        if not exact:
            return note("adds-to-each-gradient", over_ranks=over_ranks)
        factors = [each.factor for each in exact]
        if not _alike(factors):
            return None
        names = tuple(self._name(each) for each in added)
        factor = 1.0 if math.isclose(factors[0], 1, abs_tol=_SAME) else _number(factors[0])
        return note("adds-to-some-gradients", names=names, over_ranks=over_ranks, factor=factor, others=len(exact))

    def _name(self, used: _Used) -> str:
        path = self.half.path(self.half.modules[used.event.pair])
        return f"{path}.{self.half.slot(used.event)}".lstrip(".")


def _treated(side: _Treatment) -> Note | None:
    """Say what was done to the gradients of one side; None where it cannot be told."""
    found, total = side.found, side.total
    if len(found) < _FEW:
        return None
    if all(each.rest < _EXACT for each in found):
        factors = [each.factor for each in found]
        if _alike(factors):
            return _scaled(float(np.median(factors)), total)
        clipped = [each.factor * each.norm for each in found if each.factor < 1 - _SAME]
        others = all(math.isclose(each.factor, 1, abs_tol=_SAME) for each in found if each.factor >= 1 - _SAME)
        if len(clipped) >= _FEW and others and _alike(clipped):
            return note("clips-each-by-itself", norm=_number(clipped[0]))
        return side.by_group()
    cut = [each.bound for each in found if each.rest >= _EXACT and each.bound < each.was_bound]
    if len(cut) >= _FEW and _alike(cut) and max(each.bound for each in found) <= max(cut) * (1 + _SAME):
        return note("cuts-elements-off", bound=_number(max(cut)))
    return side.added_to()


def _scaled(factor: float, total: float) -> Note:
    if math.isclose(factor, 1, abs_tol=_SAME):
        return note("uses-gradients-as-left", norm=_number(total))
    if factor == 0:
        return note("uses-zeros")
    inverse = 1 / factor
    is_whole = round(inverse) >= 2 and math.isclose(inverse, round(inverse), rel_tol=_POWER)
    if is_whole and math.log2(round(inverse)).is_integer():
        return note("divides-gradients", by=round(inverse))
    if 0 < factor < 1:
        return note("clips-all-together", norm=_number(factor * total), before=_number(total))
    return note("uses-times-its-gradients", factor=_number(factor))


def _alike(values: list[float]) -> bool:
    return max(values) - min(values) <= _SAME * abs(max(values, key=abs))


def _number(value: float) -> float:
    """Return a number of the three digits that are told."""
    return float(f"{value:.3g}")
