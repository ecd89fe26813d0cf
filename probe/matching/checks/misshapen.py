"""Weights that are compared one for one although their shapes differ, and what a mapping may have to say of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice, permutations

from probe.matching.automatic.likeness import kind_of
from probe.matching.known import Known, canonical_shape
from probe.matching.lists import grouped
from probe.matching.loose import numbers_left_out
from probe.matching.result import Direction, Matching, Pair, Place, View, other_side
from probe.numbers.axis_sums import squeezed
from probe.records import ParameterInfo

Shape = tuple[int, ...]
_Said = tuple[str, str, str, str, str]
"""a text in which the second and the fourth are names"""
_End = tuple[Known, ParameterInfo, Mapping[Place, View]]
_MOST_ORDERS = 5_040
"""of axes, that are tried"""
_PATCHES = (0, 2, 3, 1)
"""the axes of a convolution's kernel as a Linear on patches whose channels come last has them"""


@dataclass(frozen=True, slots=True)
class _Both:
    """A weight of the side that the mapping is written from, and the one that it is compared with."""

    pair: Pair
    paths: tuple[str, str]
    slots: tuple[str, str]
    shapes: tuple[Shape, Shape]
    is_turned: bool
    """the mapping says how its axes lie"""

    line: str
    """of the mapping, if one names the module"""

    @property
    def names(self) -> list[str]:
        """Both names."""
        ends = zip(self.paths, self.slots, strict=True)
        return [f"{path}.{slot}" if path else slot for path, slot in ends]


def misshapen(matching: Matching, a: Known, b: Known, ranks: tuple[int, int] = (1, 1)) -> list[str]:
    """Say which weights of pairs have shapes with which they cannot be the same, and what to write; alike ones once.

    A vocabulary that one side has padded is none of them. ``ranks`` says how many A and B have: under tensor
    parallelism a side may hold a part of a weight only.
    """
    found = list(_both(matching, a, b))
    padded = {
        (each.shapes[0][0], each.shapes[1][0])
        for each in found
        if _is_padded(*each.shapes) and _is_embedding(each.pair, a, b)
    }
    here, there = "AB" if matching.direction is Direction.A_TO_B else "BA"
    said = []
    for each in found:
        x, y = each.shapes
        is_padded = _is_padded(x, y) and (x[0], y[0]) in padded
        if squeezed(x) != squeezed(y) and not is_padded and not _may_be_part(ranks, x, y):
            mine, theirs = each.names
            line = f"{each.line}: " if each.line else ""
            said.append((
                f"{line}{here}'s ", mine, f" has the shape {list(x)}, {there}'s ", theirs, f" {list(y)}{_advice(each, here, there)}",
            ))  # fmt: skip
    return _counted(said)


def reshaped(matching: Matching, a: Known, b: Known) -> list[str]:
    """Say of each weight that a mapping reads in another shape how the axes of the other side's are put in order for it."""
    sides = {"A": a, "B": b}
    said = []
    for each in (each for each in matching.weight_bundles if each.shape):
        other = other_side(each.side)
        mine, theirs = each.parts[0][0], each.whole
        part, whole = _shape_of(sides[each.side], mine), _shape_of(sides[other], theirs)
        axes = matching.views(other).get(theirs, View("")).axes
        turned = f"permute {list(axes)}, which gives {list(each.shape)}" if axes else "no permute"
        names = sides[each.side].tree.parameter_name(*mine), sides[other].tree.parameter_name(*theirs)
        said.append((
            f"{each.side}'s ", names[0], f" {part}: the elements of {other}'s ", names[1], f" {whole}, in their order after {turned}",
        ))  # fmt: skip
    return _counted(said)


def _both(matching: Matching, a: Known, b: Known) -> Iterator[_Both]:
    """Yield the weights that pairs have in common, but for those that are compared as parts of one, or as one of parts."""
    apart = matching.compared_apart("A"), matching.compared_apart("B")
    several = replace(matching, bundles=tuple(each for each in matching.bundles if len(each.parts) > 1))
    packed = several.bundled("A"), several.bundled("B")
    for pair in matching.pairs:
        if not pair.has_calls or pair.a in packed[0] or pair.b in packed[1]:
            continue
        mine = _weights(a, pair.a, matching.views_a, apart[0])
        theirs = _weights(b, pair.b, matching.views_b, apart[1])
        for slot in mine.keys() & theirs.keys():
            ends = (a, mine[slot], matching.views_a), (b, theirs[slot], matching.views_b)
            ends = ends if matching.direction is Direction.A_TO_B else ends[::-1]
            yield _as_both(pair, ends, matching.lines.get(pair.a, ""))


def _as_both(pair: Pair, ends: tuple[_End, _End], line: str) -> _Both:
    views = [views.get((each.module, each.slot), View("")) for _, each, views in ends]
    shapes = [canonical_shape(each, view.axes) for (_, each, _), view in zip(ends, views, strict=True)]
    (x, mine, _), (y, theirs, _) = ends
    paths = x.tree.path(mine.module), y.tree.path(theirs.module)
    return _Both(pair, paths, (mine.slot, theirs.slot), (shapes[0], shapes[1]), any(view.axes for view in views), line)


def _weights(
    known: Known, module: int, views: Mapping[Place, View], apart: frozenset[Place]
) -> dict[str, ParameterInfo]:
    """Return a module's own weights by what the partner calls them; not those that are sharded away."""
    found = {}
    for each in {id(each): each for each in known.slots.get(module, {}).values()}.values():
        place = each.module, each.slot
        if each.module == module and not each.is_buffer and 0 not in each.shape and place not in apart:
            found[views[place].name if place in views else each.canonical_slot] = each
    return found


def _advice(each: _Both, here: str, there: str) -> str:
    """Return what to write where the elements may be the same, in another order or shape."""
    x, y = each.shapes
    if math.prod(x) != math.prod(y):
        is_one_axis = len(x) == len(y) and sum(n != m for n, m in zip(x, y, strict=True)) == 1
        several = "where several of one side lie in one of the other, list them all, with to or from; else "
        return f": they hold not as many elements; {several * is_one_axis}pair other modules, or leave them out with ignore"
    if sorted(x) == sorted(y):
        return _advice_on_axes(each, here, there)
    if len(x) == 2 and len(y) == 4 and x[0] == y[0]:  # a Linear on patches for a convolution
        return (
            f": for a Linear on patches write {_of_slot(each, f'reshape: true, permute: {list(_PATCHES)}')} where their channels "
            f"come last, no permute where they come first; permute is of the axes of {there}'s"
        )
    if len(x) > len(y):
        return (
            f": if they are the same elements in the same order, write {_of_slot(each, 'reshape: true')}; if not, the mapping is to be "
            f"written from the other side, so that permute is of the axes of {here}'s"
        )
    return (
        f": if they are the same elements in another shape, write {_of_slot(each, 'reshape: true')}, with permute where the axes "
        f"of {there}'s are to be put in another order first"
    )


def _advice_on_axes(each: _Both, here: str, there: str) -> str:
    x, y = each.shapes
    if each.is_turned:
        return ": the axes do not lie as the mapping says with transpose or permute"
    if x == (*y[:-2], y[-1], y[-2]):
        return f": write {_line(each, 'transpose: true')}"
    some = islice(permutations(range(len(x))), _MOST_ORDERS)
    orders = [str(list(order)) for order in some if tuple(x[axis] for axis in order) == y]
    which = " or ".join(orders[:2]) or "[…]"
    return f": write {_line(each, f'permute: {which}')}, the axes of {here}'s in the order that {there}'s have"


def _line(each: _Both, more: str) -> str:
    """Return the line of a module that turns its weight; of another parameter than the weight, the one that turns it alone."""
    return _long(each, more) if each.slots[0] == "weight" and each.paths[0] else _of_slot(each, more)


def _of_slot(each: _Both, more: str) -> str:
    """Return what turns a parameter alone, in the long form of its module's line; the root has no line."""
    of = f"params: {{{each.slots[0]}: {{to: {each.slots[1]}, {more}}}}}"
    return _long(each, of) if each.paths[0] else of


def _long(each: _Both, more: str) -> str:
    if each.line:
        return f"{{to: …, {more}}} in that line"
    key, target = (path.rpartition(".")[2] for path in each.paths)
    if key == target and key.isdigit():
        key = target = '"{i}"'
    return f"{key}: {{to: {target}, {more}}}"


def _is_padded(x: Shape, y: Shape) -> bool:
    return len(x) == len(y) > 0 and x[0] != y[0] and x[1:] == y[1:]


def _is_embedding(pair: Pair, a: Known, b: Known) -> bool:
    return all(kind_of(known.tree.class_name(i)) == "embedding" for known, i in ((a, pair.a), (b, pair.b)))


def _counted(said: Iterable[_Said]) -> list[str]:
    """Return texts; those whose names differ in numbers only as one, with ``{i}`` and how many there are."""
    groups = grouped(
        said, lambda each: (each[0], numbers_left_out(each[1]), each[2], numbers_left_out(each[3]), each[4])
    )
    return [
        "".join(alike[0]) if len(alike) == 1 else f"{''.join(key)} (×{len(alike)})" for key, alike in groups.items()
    ]


def _may_be_part(ranks: tuple[int, int], a: Shape, b: Shape) -> bool:
    """Return True if a side may hold a part of the other's weight, by the numbers of ranks of A and of B.

    As many ranks may split a weight on one side and copy it on the other, along one axis.
    """
    axes = [(n, m) for n, m in zip(a, b, strict=False) if n != m]
    is_one_axis = len(a) == len(b) and len(axes) == 1
    sizes = axes[0] if is_one_axis else (math.prod(a), math.prod(b))
    both = ((ranks, sizes), (ranks[::-1], sizes[::-1]))
    return any(
        (mine > theirs or (is_one_axis and mine == theirs > 1)) and _is_part(size, whole, mine)
        for (mine, theirs), (size, whole) in both
    )


def _is_part(size: int, whole: int, ranks: int) -> bool:
    """Return True if a rank may hold so much; of what cannot be divided evenly the last ones hold less."""
    splits = (math.ceil(whole / count) for count in range(2, ranks + 1) if ranks % count == 0)
    return 0 < size < whole and any(size in (part, whole % part) for part in splits)


def _shape_of(known: Known, place: Place) -> list[int]:
    found = known.parameter(place[0], [place[1]])
    return [] if found is None or found[1] is None else list(found[1].shape)
