"""Parameters of modules that are a pair, where classes of one's own call them by other names or lay them out turned.

A guess, as that of modules is: by shapes that fit once, by numbers, last by the order in which they stand. What a class
calls its parameters, and how they lie, is the same in all of its modules: all of them are asked together.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from probe.matching.automatic import values
from probe.matching.automatic.outline import Outline, Weight, values_of
from probe.matching.automatic.weights.fused import sums_of_rows
from probe.matching.automatic.weights.lying import CAST, fits
from probe.matching.result import Matching, Place, Reason, View
from probe.numbers.axis_sums import squeezed

_SAME_VALUES, _SAME_CLASS, _SHAPE, _ORDER = 0.98, 0.9, 0.85, 0.6
_USUAL = ("weight", "bias")
"""what is called so keeps its name"""
_TURNED = (1, 0)


@dataclass(frozen=True, slots=True)
class _Named:
    """A parameter of A and the one of B that it may be."""

    place_a: Place
    place_b: Place
    a: Weight
    b: Weight
    is_turned: bool
    is_part: bool
    """one side has only some rows of it"""
    is_by_order: bool

    @property
    def is_told(self) -> bool:
        """Return True if names and layouts are what is known already."""
        return self.a.slot == self.b.slot and not self.is_turned and self.a.is_turned == self.b.is_turned

    @property
    def is_square(self) -> bool:
        """Return True if neither its shape nor a table tells how it lies; one that lies as it should has a say too."""
        is_known = self.is_part or self.a.axes or self.b.axes
        return not is_known and len(set(self.a.shape)) < len(self.a.shape)

    @property
    def is_b_named(self) -> bool:
        """Return True if it is B's that is named as A's is: what has the usual name keeps it."""
        return self.a.slot in _USUAL or self.b.slot not in _USUAL

    @property
    def same(self) -> bool | None:
        """Return True if both hold the same numbers; None where nothing tells."""
        known = [w.numbers is not None and w.numbers.is_telling for w in (self.a, self.b)]
        return values.alike(self.a, self.b) if all(known) and not self.is_part else None


def match_parameters(matching: Matching, a: Outline, b: Outline, least: float) -> Matching:
    """Return a matching with views of parameters whose names, or layouts, only a guess tells, ``least`` as sure.

    What a mapping pairs keeps the names that it gives.
    """
    by_class: dict[Hashable, list[_Named]] = defaultdict(list)
    for each in _candidates(matching, a, b):
        classes = a.tree.class_name(each.place_a[0]), b.tree.class_name(each.place_b[0])
        by_class[classes, each.place_a[1], each.place_b[1], each.is_turned].append(each)
    same_weights = bool(by_class) and values.are_same_weights(a, b, values.anchors(a, b))
    views = dict(matching.views_a), dict(matching.views_b)
    for group in by_class.values():
        alike, other = (sum(each.same is answer for each in group) for answer in (True, False))
        if same_weights and other > alike:
            continue
        axes = _axes_of(group, a, b)
        for each in (replace(one, is_turned=bool(axes)) for one in group):
            sure = _SAME_VALUES if each.same else _SAME_CLASS if alike else _ORDER if each.is_by_order else _SHAPE
            if sure >= least and not each.is_told:
                _keep(each, sure, axes, views)
    return replace(matching, views_a=views[0], views_b=views[1])


def _axes_of(group: Sequence[_Named], a: Outline, b: Outline) -> Axes:
    """Return the order of the axes of what is turned in all pairs of a kind; of a square one the values tell."""
    is_b = group[0].is_b_named
    sides = [(each.b, each.a) if is_b else (each.a, each.b) for each in group]
    order = () if group[0].is_part else order_of(*((b, a) if is_b else (a, b)), sides)
    if group[0].is_turned:
        return order or _TURNED
    return () if order == (sides[0][0].axes or tuple(range(len(order)))) else order


def _keep(each: _Named, sure: float, turned: Axes, views: Sequence[dict[Place, View]]) -> None:
    """Name one parameter as the other is named; what has the usual name keeps it."""
    is_b = each.is_b_named
    name = each.a.slot if is_b else each.b.slot
    ends = (each.place_a, each.a, not is_b), (each.place_b, each.b, is_b)
    for (place, weight, is_named), known in zip(ends, views, strict=True):
        is_turned = each.is_turned and is_named
        if is_turned or weight.is_turned or weight.slot != name:
            known.setdefault(place, View(name, turned if is_turned else weight.axes, sure))


def _candidates(matching: Matching, a: Outline, b: Outline) -> Iterator[_Named]:
    parts = {(bundle.side, bundle.parts[0]): bundle.parts for bundle in matching.bundles}
    packed = [{module for module, _ in matching.compared_apart(side)} for side in "AB"]
    for pair in matching.pairs:
        is_told = pair.reason is Reason.MAPPED or pair.a in packed[0] or pair.b in packed[1]
        if is_told or _forms(a, pair.a) == _forms(b, pair.b):
            continue
        parts_a, parts_b = parts.get(("A", pair.a)), parts.get(("B", pair.b))
        for i, j in product(parts_a or (pair.a,), parts_b or (pair.b,)):
            found = _of_modules(a, i, b, j, is_part=bool(parts_a or parts_b))
            yield from (each for each in found if each.is_square or not each.is_told)


def _forms(side: Outline, index: int) -> tuple[str, set[tuple[str, tuple[int, ...], bool]]]:
    return side.tree.class_name(index), {(w.slot, w.shape, w.is_turned) for w in side.weights[index]}


def _of_modules(a: Outline, i: int, b: Outline, j: int, is_part: bool) -> Iterator[_Named]:
    mine, theirs = ([w for w in side.weights[k] if w.recorded] for side, k in ((a, i), (b, j)))

    def named(x: Weight, y: Weight, is_by_order: bool = False) -> _Named:
        is_turned = not is_part and squeezed(x.shape) != squeezed(y.shape)
        return _Named((i, x.recorded), (j, y.recorded), x, y, is_turned, is_part, is_by_order)

    slots = {w.slot for w in mine} & {w.slot for w in theirs}
    for x in mine:
        for y in theirs:
            if x.slot == y.slot and (x.shape == y.shape or is_part or x.shape == y.shape[::-1]):
                yield named(x, y)
    left, right = ([w for w in weights if w.slot not in slots] for weights in (mine, theirs))
    for key in _FORMS_OF_PARTS if is_part else _FORMS:
        for x, y, is_by_order in list(_met(left, right, key)):
            yield named(x, y, is_by_order)
            left.remove(x)
            right.remove(y)


def _met(
    left: Sequence[Weight], right: Sequence[Weight], key: Callable[[Weight], Hashable]
) -> Iterator[tuple[Weight, Weight, bool]]:
    """Yield what fits where both sides have as many of a kind: by numbers, the rest in the order in which it stands."""
    for kind in dict.fromkeys(map(key, left)):
        mine, theirs = ([w for w in weights if key(w) == kind] for weights in (left, right))
        if len(mine) != len(theirs):
            continue
        is_alone = len(mine) == 1
        for x in list(mine):
            same = [y for y in theirs if values.alike(x, y)]
            if len(same) == 1 and sum(values.alike(other, same[0]) for other in mine) == 1:
                mine.remove(x)
                theirs.remove(same[0])
                yield x, same[0], False
        yield from ((x, y, not is_alone) for x, y in zip(mine, theirs, strict=True))


Key = Callable[[Weight], Hashable]
# axes of size 1 are left out: a scale of channels is [C] or [C, 1, 1]
_FORMS: tuple[Key, ...] = (
    lambda weight: weight.shape,
    lambda weight: squeezed(weight.shape),
    lambda weight: tuple(sorted(weight.shape)),
)
_FORMS_OF_PARTS: tuple[Key, ...] = (lambda weight: (len(weight.shape), weight.shape[1:]),)


# In which order the axes lie of a weight that a class of one's own has otherwise: a convolution's as [h, w, in, out]
#
# The sizes tell it where they are all different. Where two are the same, as those of a square kernel, the stored values do.

_LARGEST = 1 << 22
"""elements of a weight up to which its values are read"""
_MOST_AXES = 5

Axes = tuple[int, ...]


def order_of(here: Outline, there: Outline, pairs: Sequence[tuple[Weight, Weight]]) -> Axes:
    """Return which stored axis stands where in the other side's weight: the same for all pairs, empty if nothing tells.

    The weights of ``here`` are turned; each pair has one of them, and the one of ``there`` that it is.
    """
    possible = [set(_fitting(mine, theirs)) for mine, theirs in pairs]
    common = sorted(set.intersection(*possible)) if possible else []
    if len(common) < 2:
        return common[0] if common else ()
    seen: Counter[Axes] = Counter()
    for mine, theirs in pairs:
        seen.update(_agreeing(here, mine, there, theirs, common))
    return seen.most_common(1)[0][0] if seen else ()


def _fitting(mine: Weight, theirs: Weight) -> Iterator[Axes]:
    """Yield the orders of a weight's axes that give it the other one's shape."""
    count = len(mine.shape)
    if count != len(theirs.shape) or count > _MOST_AXES:
        return
    stored = mine.axes if len(mine.axes) == count else tuple(range(count))
    for order in itertools.permutations(range(count)):
        if tuple(mine.shape[axis] for axis in order) == theirs.shape:
            yield tuple(stored[axis] for axis in order)


def _agreeing(here: Outline, mine: Weight, there: Outline, theirs: Weight, orders: Sequence[Axes]) -> Iterator[Axes]:
    """Yield the orders in which two weights are the same: by the sums of their rows, or by stored values of more axes."""
    if len(orders[0]) == 2:
        meant = sums_of_rows(there, theirs)
        made = [sums_of_rows(here, replace(mine, axes=order)) for order in orders]
    else:
        sides = ((here, replace(mine, axes=())), (there, theirs))
        stored, meant = (values_of(*each) if mine.size <= _LARGEST else None for each in sides)
        made = [None if stored is None else stored.transpose(order) for order in orders]
    for order, each in zip(orders, made, strict=True):
        if each is not None and meant is not None and fits(each, meant, CAST):
            yield order
