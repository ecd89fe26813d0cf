"""What each side did with its gradients between backward and the optimizer: clipped, divided, as they are."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from probe.notes import Note, note
from probe.records import Phase, Role
from probe.verdict.side import Place, Side

_SAME = 2e-3
"""relative difference up to which factors, norms and bounds are one"""
_EXACT = 1e-3
"""share of a gradient that may stay unexplained where it is said to be a multiple"""
_POWER = 1e-4
"""relative difference up to which a factor is a power of two: a norm that clipping gave may be near one"""
_ADDED = 8
"""unit roundoffs of a gradient's dtype that are left over where more than rounding was added to it"""
_FEW = 2


@dataclass(frozen=True, slots=True)
class _Used:
    """One parameter's gradient as it was used, held against how backward left it."""

    place: Place
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

    @property
    def is_as_left(self) -> bool:
        return math.isclose(self.factor, 1, abs_tol=_SAME)


def treated_otherwise(a: Side, b: Side) -> Note | None:
    """Return what both sides made of their gradients, where that is not the same and the numbers tell."""
    mine, theirs = _treated(a), _treated(b)
    is_told = mine is not None and theirs is not None and mine != theirs
    return note("gradients-treated-otherwise", a=mine, b=theirs) if is_told else None


def is_added(said: Note) -> bool:
    """Return True if a side added something to its gradients, which is more than clipping."""
    return not {"adds-to-each-gradient", "adds-to-some-gradients"}.isdisjoint(each.code for each in said.facts.values())


def _treated(side: Side) -> Note | None:
    """Say what was done to the gradients of one side; None where it cannot be told."""
    left = side.params.get((Phase.GRADIENT, Role.PARAM_GRAD), {})
    found, total = list(_used(side)), math.hypot(*(each.norm for each in left.values()))
    if len(found) < _FEW:
        return None
    if all(each.rest < _EXACT for each in found):
        factors = [each.factor for each in found]
        if _alike(factors):
            return _scaled(float(np.median(factors)), total)
        clipped = [each.factor * each.norm for each in found if each.factor < 1 - _SAME]
        others = all(each.is_as_left for each in found if each.factor >= 1 - _SAME)
        if len(clipped) >= _FEW and others and _alike(clipped):
            return note("clips-each-by-itself", norm=_number(clipped[0]))
        return _by_group(side, found)
    cut = [each.bound for each in found if each.rest >= _EXACT and each.bound < each.was_bound]
    if len(cut) >= _FEW and _alike(cut) and max(each.bound for each in found) <= max(cut) * (1 + _SAME):
        return note("cuts-elements-off", bound=_number(max(cut)))
    return _added(side, found)


def _used(side: Side) -> Iterator[_Used]:
    for place, used in side.params.get((Phase.UPDATE, Role.PARAM_GRAD), {}).items():
        left = side.params.get((Phase.GRADIENT, Role.PARAM_GRAD), {}).get(place)
        if left is None or left.sketch is None or used.sketch is None or not np.isfinite(used.sketch).all():
            continue
        before, after = left.sketch.astype(np.float64), used.sketch.astype(np.float64)
        length = float(np.linalg.norm(before))
        if length:
            factor = float(after @ before) / length**2
            rest = float(np.linalg.norm(after - factor * before)) / (float(np.linalg.norm(after)) or 1.0)
            yield _Used(place, factor, rest, left.norm, used.largest, left.largest, max(left.u, used.u))


def _scaled(factor: float, total: float) -> Note:
    if math.isclose(factor, 1, abs_tol=_SAME):
        return note("uses-gradients-as-left", norm=_number(total))
    if factor == 0:
        return note("uses-zeros")
    whole = round(1 / factor)
    if whole >= 2 and math.log2(whole).is_integer() and math.isclose(1 / factor, whole, rel_tol=_POWER):
        return note("divides-gradients", by=whole)
    if 0 < factor < 1:
        return note("clips-all-together", norm=float(f"{factor * total:.4g}"), before=_number(total))
    return note("uses-times-its-gradients", factor=_number(factor))


def _by_group(side: Side, found: Sequence[_Used]) -> Note | None:
    """Say so if the gradients of each parameter group were clipped by themselves."""
    numbers = {side.places[i]: (each.optimizer, each.group) for each in side.groups for i in each.parameters}
    groups = defaultdict(list)
    for each in found:
        groups[numbers.get(each.place, (-1, -1))].append(each)
    is_whole = len(found) == len(side.params[Phase.UPDATE, Role.PARAM_GRAD])
    if len(groups) < _FEW or not is_whole or not all(_alike([each.factor for each in of]) for of in groups.values()):
        return None
    norms = {number: of[0].factor * math.hypot(*(each.norm for each in of)) for number, of in groups.items()}
    clipped = [norms[number] for number, of in groups.items() if 0 < of[0].factor < 1 - _SAME]
    shorter = [number for number, of in groups.items() if of[0].is_as_left]
    if not clipped or len(clipped) + len(shorter) < len(groups) or not _alike(clipped):
        return None
    if any(norms[number] > clipped[0] * (1 + _SAME) for number in shorter):
        return None
    had_less = tuple(group for _, group in shorter)
    return note("clips-each-group", groups=len(groups), norm=_number(clipped[0]), had_less=had_less)


def _added(side: Side, found: Sequence[_Used]) -> Note | None:
    """Say to which gradients something was added that backward did not leave there, and what was done to the others."""
    exact = [each for each in found if each.rest < _EXACT]
    added = [each for each in found if each.rest >= _EXACT]
    if any(each.rest < _ADDED * each.u for each in added):
        return None  # rounding may do that
    over_ranks = side.reader.info.world_size > 1
    if not exact:
        return note("adds-to-each-gradient", over_ranks=over_ranks)
    if not _alike([each.factor for each in exact]):
        return None
    places = ((side.reader.modules[each.place[0]].path, side.recorded_slot(*each.place)) for each in added)
    names = tuple(f"{path}.{slot}".lstrip(".") for path, slot in places)
    factor = 1.0 if exact[0].is_as_left else _number(exact[0].factor)
    return note("adds-to-some-gradients", names=names, over_ranks=over_ranks, factor=factor, others=len(exact))


def _alike(values: Sequence[float]) -> bool:
    return max(values) - min(values) <= _SAME * abs(max(values, key=abs))


def _number(value: float) -> float:
    """Return a number of the three digits that are told."""
    return float(f"{value:.3g}")
