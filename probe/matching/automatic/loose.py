"""Parameters of modules that have no counterpart: a table that one side's model holds itself and the other's in an Embedding.

``positional_embedding`` is ``embed_positions.weight`` elsewhere, a class token is the model's own or that of its embeddings,
``x @ proj`` is a Linear. Axes of size 1 say nothing. The numbers tell which is which; what is left alone of a size on both
sides, with a like name, is a pair once they have told of others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace

from probe.matching.automatic import likeness, values
from probe.matching.automatic.outline import Outline, Weight
from probe.matching.automatic.weights.parameters import order_of
from probe.matching.result import Matching, Place, Reason, View, WeightBundle
from probe.numbers.axis_sums import squeezed
from probe.numbers.layouts import recorded_kind, unpacked

_SAME_VALUES, _ALONE = 0.95, 0.7


@dataclass(frozen=True, slots=True)
class _Loose:
    """A parameter, or a buffer, that is compared with nothing."""

    place: Place
    weight: Weight
    name: str
    path: str
    is_buffer: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """Without axes of size 1."""
        return squeezed(self.weight.shape)


def match_loose(matching: Matching, a: Outline, b: Outline, least: float) -> Matching:
    """Return a matching that pairs parameters which are compared with nothing by their values, ``least`` as sure."""
    sides = _Side("A", matching, a), _Side("B", matching, b)
    left = [list(side.left(other)) for side, other in (sides, sides[::-1])]
    mapped = {(pair.a, pair.b) for pair in matching.pairs if pair.reason is Reason.MAPPED}
    found = [(*pair, _SAME_VALUES) for pair in _met(*left, _alike)]
    told = {id(each) for pair in found for each in pair[:2]}
    if values.are_same_weights(a, b, values.anchors(a, b)):
        rest = [[each for each in side if id(each) not in told and not each.is_buffer] for side in left]
        found += [(*pair, _ALONE) for pair in _met(*rest, _are_named_alike)]
    bundles, views = [], ({}, {})
    for x, y, sure in found:
        is_paired_a, is_paired_b = x.place[0] in sides[0].partner, y.place[0] in sides[1].partner
        is_whole_b = is_paired_b or not is_paired_a
        whole, part = (y, x) if is_whole_b else (x, y)
        axes = order_of(*((b, a) if is_whole_b else (a, b)), [(whole.weight, part.weight)])
        is_turned = axes not in ((), tuple(range(len(axes))))
        is_open = not axes and len({*whole.shape}) < len(whole.shape)  # a square lies either way
        is_said = (x.place[0], y.place[0]) in mapped  # what their parameters are called is the mapping's to say
        are_other = not is_paired_a and not is_paired_b and _are_other_modules(x, y, a, b)
        if sure < least or is_open or is_said or are_other or (whole.shape != part.shape and not is_turned):
            continue
        if is_turned:
            views[is_whole_b][whole.place] = View(whole.weight.slot, axes)
        shape = () if is_turned or whole.weight.shape == part.weight.shape else whole.weight.shape
        bundles.append(WeightBundle("A" if is_whole_b else "B", whole.place, ((part.place,),), shape=shape))
    return replace(
        matching,
        weight_bundles=(*matching.weight_bundles, *bundles),
        views_a={**matching.views_a, **views[0]},
        views_b={**matching.views_b, **views[1]},
    )


def _are_other_modules(x: _Loose, y: _Loose, a: Outline, b: Outline) -> bool:
    """Return True if two modules have weights of one name and other sizes: a bias alone makes them no pair."""
    sizes = [
        {weight.slot: sorted(squeezed(weight.shape)) for weight in side.weights[each.place[0]]}
        for side, each in ((a, x), (b, y))
    ]
    return any(sizes[0][slot] != sizes[1][slot] for slot in sizes[0].keys() & sizes[1].keys())


def tables(side: Outline, other: Outline) -> set[int]:
    """Return the embeddings of a side that are a table which the other side's model holds itself: what they return is no input there."""
    own = [
        weight for index, children in enumerate(other.tree.children) if children
        for weight in (*other.weights[index], *other.buffers.get(index, ()))
    ]  # fmt: skip
    return {
        index
        for index, weights in enumerate(side.weights)
        if own and len(weights) == 1 and side.kind(index) == "embedding"
        and any(values.alike(weights[0], each) for each in own)
    }  # fmt: skip


class _Side:
    def __init__(self, name: str, matching: Matching, outline: Outline) -> None:
        self.outline, self.partner = outline, matching.partners(name)
        self._apart, self._views = matching.compared_apart(name), matching.views(name)
        self._told = matching.bundled(name) | matching.ignored(name)
        self._framework = outline.reader.info.framework if outline.reader is not None else ""

    def of_module(self, index: int) -> Iterator[_Loose]:
        """Yield the weights and buffers of a module, by what they are called where they are compared."""
        buffers = self.outline.buffers.get(index, ())
        for weight in (*self.outline.weights[index], *buffers):
            place = index, weight.recorded
            name = self._views[place].name if place in self._views else weight.slot
            path = f"{self.outline.tree.path(index)}.{name}"
            yield _Loose(place, weight, name, path, any(weight is each for each in buffers))

    def left(self, other: _Side) -> Iterator[_Loose]:
        """Yield what has no partner: all of a module without one, and of others what the partner does not have by its name."""
        for index in (index for index in range(len(self.outline)) if index not in self._told):
            there = {each.name for k in [self.partner.get(index)] if k is not None for each in other.of_module(k)}
            classes = recorded_kind(self._framework, self.outline.tree.modules[index])
            for each in self.of_module(index):
                slot = each.weight.recorded
                is_told = not slot or each.name in there or each.place in self._apart
                if not is_told and not unpacked(self._framework, classes, slot):
                    yield each


def _met(
    left: Sequence[_Loose], right: Sequence[_Loose], fit: Callable[[_Loose, _Loose], bool]
) -> Iterator[tuple[_Loose, _Loose]]:
    """Yield the weights of which each fits the other alone, among those of their size."""
    by_size: dict[Hashable, list[_Loose]] = defaultdict(list)
    for each in right:
        by_size[tuple(sorted(each.shape))].append(each)
    for x in left:
        mine = [each for each in left if sorted(each.shape) == sorted(x.shape)]
        fitting = [y for y in by_size[tuple(sorted(x.shape))] if fit(x, y)]
        if len(fitting) == 1 and sum(fit(each, fitting[0]) for each in mine) == 1:
            yield x, fitting[0]


def _alike(x: _Loose, y: _Loose) -> bool:
    numbers = x.weight.numbers, y.weight.numbers
    is_telling = all(each is not None and each.is_telling for each in numbers) and len(x.shape) > 0
    return is_telling and not (x.is_buffer and y.is_buffer) and values.alike(x.weight, y.weight)


def _are_named_alike(x: _Loose, y: _Loose) -> bool:
    """Return True if two names share a word; that of a table's own slot, ``weight``, is none."""
    mine, theirs = (likeness.words(each.path.removesuffix(".weight").rpartition(".")[2]) for each in (x, y))
    return len(x.shape) > 0 and bool(mine & theirs)
