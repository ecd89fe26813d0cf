"""Parameters of modules that are a pair, where classes of one's own call them by other names or lay them out turned.

A guess, as that of modules is: by shapes that fit once, by numbers, last by the order in which they stand. What a class
calls its parameters, and how they lie, is the same in all of its modules: all of them are asked together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace

from probe.matching.automatic import values
from probe.matching.automatic.outline import Outline, Weight
from probe.matching.automatic.weights.axes import Axes, order_of
from probe.matching.result import Matching, Place, Reason, View

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
        """Tell whether names and layouts are what is known already."""
        return self.a.slot == self.b.slot and not self.is_turned and self.a.is_turned == self.b.is_turned

    @property
    def is_b_named(self) -> bool:
        """Tell whether it is B's that is named as A's is: what has the usual name keeps it."""
        return self.a.slot in _USUAL or self.b.slot not in _USUAL

    @property
    def same(self) -> bool | None:
        """Tell whether both hold the same numbers; None where nothing tells."""
        known = [w.numbers is not None and w.numbers.is_telling for w in (self.a, self.b)]
        return values.alike(self.a, self.b) if all(known) and not self.is_part else None


def match_parameters(matching: Matching, a: Outline, b: Outline, least: float) -> Matching:
    """Return a matching with views of parameters whose names, or layouts, only a guess tells.

    Parameters
    ----------
    matching
        pairs of modules, of which no mapping says anything
    a, b
        the two models
    least
        guesses that are less sure are not made
    """
    by_class: dict[Hashable, list[_Named]] = defaultdict(list)
    for each in _candidates(matching, a, b):
        classes = a.tree.class_name(each.place_a[0]), b.tree.class_name(each.place_b[0])
        by_class[classes, each.place_a[1], each.place_b[1], each.is_turned].append(each)
    same_weights = bool(by_class) and values.are_same_weights(a, b, values.anchors(a, b))
    views_a, views_b = dict(matching.views_a), dict(matching.views_b)
    for group in by_class.values():
        alike, other = (sum(each.same is answer for each in group) for answer in (True, False))
        if same_weights and other > alike:
            continue
        axes = _axes_of(group, a, b)
        for each in group:
            sure = _SAME_VALUES if each.same else _SAME_CLASS if alike else _ORDER if each.is_by_order else _SHAPE
            if sure >= least:
                _keep(each, sure, axes, views_a, views_b)
    return replace(matching, views_a=views_a, views_b=views_b)


def _axes_of(group: Sequence[_Named], a: Outline, b: Outline) -> Axes:
    """Return the order of the axes of what is turned in all pairs of a kind."""
    if not group[0].is_turned:
        return ()
    if group[0].is_b_named:
        return order_of(b, a, [(each.b, each.a) for each in group]) or _TURNED
    return order_of(a, b, [(each.a, each.b) for each in group]) or _TURNED


def _keep(each: _Named, sure: float, turned: Axes, views_a: dict[Place, View], views_b: dict[Place, View]) -> None:
    """Name one parameter as the other is named; what has the usual name keeps it."""
    is_b = each.is_b_named
    name = each.a.slot if is_b else each.b.slot
    for place, weight, views, is_turned in (
        (each.place_a, each.a, views_a, each.is_turned and not is_b),
        (each.place_b, each.b, views_b, each.is_turned and is_b),
    ):
        axes = turned if is_turned else weight.axes
        if (is_turned or weight.is_turned or weight.slot != name) and place not in views:
            views[place] = View(name, axes, sure)


def _candidates(matching: Matching, a: Outline, b: Outline) -> Iterator[_Named]:
    bundles = {(bundle.side, bundle.parts[0]): bundle for bundle in matching.bundles}
    packed_a, packed_b = _packed(matching, "A"), _packed(matching, "B")
    for pair in matching.pairs:
        if pair.reason is Reason.MAPPED or _forms(a, pair.a) == _forms(b, pair.b):
            continue
        if pair.a in packed_a or pair.b in packed_b:
            continue
        parts_a, parts_b = (bundles.get((side, index)) for side, index in (("A", pair.a), ("B", pair.b)))
        is_part = parts_a is not None or parts_b is not None
        for i in parts_a.parts if parts_a is not None else (pair.a,):
            for j in parts_b.parts if parts_b is not None else (pair.b,):
                for each in _of_modules(a, i, b, j, is_part):
                    if not each.is_told:
                        yield each


def _packed(matching: Matching, side: str) -> set[int]:
    """Return a side's modules of which weights are compared as parts of one, or as one of parts."""
    bundles = matching.weight_bundles
    parts = {module for each in bundles if each.side == side for row in each.parts for module, _ in row}
    return parts | {each.whole[0] for each in bundles if each.side != side}


def _forms(side: Outline, index: int) -> tuple[str, set[tuple[str, tuple[int, ...], bool]]]:
    return side.tree.class_name(index), {(w.slot, w.shape, w.is_turned) for w in side.weights[index]}


def _of_modules(a: Outline, i: int, b: Outline, j: int, is_part: bool) -> Iterator[_Named]:
    mine, theirs = ([w for w in side.weights[k] if w.recorded] for side, k in ((a, i), (b, j)))

    def named(x: Weight, y: Weight, is_by_order: bool = False) -> _Named:
        is_turned = not is_part and _squeezed(x) != _squeezed(y)
        return _Named((i, x.recorded), (j, y.recorded), x, y, is_turned, is_part, is_by_order)

    slots = {w.slot for w in mine} & {w.slot for w in theirs}
    for x in mine:
        for y in theirs:
            if x.slot == y.slot and (x.shape == y.shape or is_part or x.shape == y.shape[::-1]):
                yield named(x, y)
    left, right = ([w for w in weights if w.slot not in slots] for weights in (mine, theirs))
    for key in (_rows_left_out,) if is_part else (_shape, _squeezed, _sorted_shape):
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


def _shape(weight: Weight) -> Hashable:
    return weight.shape


def _squeezed(weight: Weight) -> tuple[int, ...]:
    """Return a shape without axes of size 1: a scale of channels is [C] or [C, 1, 1]."""
    return tuple(size for size in weight.shape if size != 1)


def _sorted_shape(weight: Weight) -> Hashable:
    return tuple(sorted(weight.shape))


def _rows_left_out(weight: Weight) -> Hashable:
    return len(weight.shape), weight.shape[1:]
