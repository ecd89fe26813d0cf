"""Which parameters of one side lie in one of the other: what a mapping says, and what is known of the classes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from probe.errors import MappingError
from probe.matching import Bundle, Matching, Pair, Place, Reason, View, WeightBundle
from probe.matching.result import other_side
from probe.notes import note
from probe.numbers.fused import Fusion, problem_of
from probe.numbers.layouts import layout_of, unpacked
from probe.store.reading.reader import Reader
from probe.structure.tree import Tree

_BIAS = "bias"


def completed(matching: Matching, a: Reader, b: Reader) -> Matching:
    """Return a matching with the parameters of its bundles, and those of attentions that pack theirs on one side alone.

    Places of parts are as they were recorded, those of wholes are canonical. Raises MappingError where tensors cannot
    lie in one as the mapping says.
    """
    sides = {"A": _Side(a, matching.views_a), "B": _Side(b, matching.views_b)}
    matching = with_places(matching, sides["A"].tree, sides["B"].tree)
    found = [_settled(bundle, sides) for bundle in matching.weight_bundles]
    for more in (
        [each for bundle in matching.bundles for each in _of_modules(bundle, sides)],
        _packed(matching, sides),
    ):
        taken = {(each.side, each.whole) for each in found}
        found += [each for each in more if (each.side, each.whole) not in taken]
    return replace(matching, weight_bundles=tuple(found))


class _Side:
    """The parameters of a recording: what they are called in the canonical layout, and how they lie.

    ``views`` has those of which a mapping says it.
    """

    def __init__(self, reader: Reader, views: Mapping[Place, View]) -> None:
        self.reader, self.tree = reader, Tree(reader.modules)
        known = {(each.module, each.slot): each for each in reader.parameters}
        self._shapes = {place: each.shape for place, each in known.items()}
        self._axes = {place: each.axes for place, each in known.items()} | {
            place: view.axes for place, view in views.items() if view.axes
        }
        self.names = {place: each.canonical_slot for place, each in known.items()} | {
            place: view.name for place, view in views.items()
        }
        self.buffers = {place for place, each in known.items() if each.is_buffer}
        self.slots: dict[int, dict[str, str]] = {}
        """by module and canonical name, the slots under which weights are recorded"""
        for module, slot in (place for place, each in known.items() if not each.is_buffer):
            self.slots.setdefault(module, {})[self.names[module, slot]] = slot

    def shape_of(self, place: Place) -> tuple[int, ...]:
        """Return the shape of a parameter in the canonical layout; of a bias that is not there, what it would have."""
        shape = self._shapes.get(place)
        if shape is None:
            weights = (other for other, name in self.names.items() if other[0] == place[0] and name == "weight")
            return next((self.shape_of(each)[:1] for each in weights), ())
        axes = self._axes.get(place, ())
        return tuple(shape[axis] for axis in axes) if len(axes) == len(shape) else shape

    def canonical(self, place: Place) -> Place:
        """Return the place of a parameter by its canonical name."""
        name = self.names.get(place)
        if name is None:  # another name of a tied one: all that is known of it is the class
            classes = (self.reader.modules[place[0]].class_name,)
            name = layout_of(self.reader.info.framework, classes, place[1]).name
        return place[0], name

    def recorded(self, place: Place) -> Place:
        """Return where records have a parameter: under its own slot, and the first of the names of a tied one."""
        module, slot = place
        slot = slot if place in self.names else self.slots.get(module, {}).get(slot, slot)
        if (module, slot) in self.names:
            return module, slot
        full = self.tree.parameter_name(module, slot)
        tied = next((each for each in self.reader.parameters if full in each.names), None)
        return (module, slot) if tied is None else (tied.module, tied.slot)

    def piece(self, module: int, name: str) -> Place | None:
        """Return the place of a weight by its canonical path below a module, None where there is none."""
        *path, canonical = name.split(".")
        inner = self.tree.resolve(module, path)
        slot = None if inner is None else self.slots.get(inner, {}).get(canonical)
        return None if inner is None or slot is None else (inner, slot)


def _settled(bundle: WeightBundle, sides: Mapping[str, _Side]) -> WeightBundle:
    """Return what a mapping says, with the places that records have."""
    mine, theirs = sides[bundle.side], sides[other_side(bundle.side)]
    parts = tuple(tuple(map(mine.recorded, row)) for row in bundle.parts)
    kinds = {bundle.whole in theirs.buffers, *(place in mine.buffers for row in parts for place in row)}
    found = replace(bundle, whole=theirs.canonical(bundle.whole), parts=parts, is_mixed=len(kinds) > 1)
    return _checked(found, sides)


def _of_modules(bundle: Bundle, sides: Mapping[str, _Side]) -> Iterator[WeightBundle]:
    """Yield what the parameters of modules that are one are."""
    slots = [sides[bundle.side].slots.get(part, {}) for part in bundle.parts]
    for name in {name: None for each in slots for name in each}:
        if all(name in each for each in slots) or (name == _BIAS and all("weight" in each for each in slots)):
            places = tuple((part, each.get(name, name)) for part, each in zip(bundle.parts, slots, strict=True))
            found = WeightBundle(bundle.side, (bundle.whole, name), (places,), 0, bundle.groups)
            yield _checked(replace(found, rotary=bundle.rotary, order=bundle.order), sides)


def _checked(bundle: WeightBundle, sides: Mapping[str, _Side]) -> WeightBundle:
    """Return a bundle whose parts can lie in one as it says. Raises MappingError."""
    mine, other = sides[bundle.side], other_side(bundle.side)
    problem = problem_of([list(map(mine.shape_of, row)) for row in bundle.parts], bundle.fusion)
    if problem:
        names = ", ".join(mine.tree.parameter_name(*place) for place in bundle.parts[0])
        whole = sides[other].tree.parameter_name(*bundle.whole)
        raise MappingError(f"{names} of {bundle.side} cannot lie in {whole} of {other} as the mapping says: {problem}")
    return bundle


def _packed(matching: Matching, sides: Mapping[str, _Side]) -> Iterator[WeightBundle]:
    """Yield the packed parameters of attentions whose counterparts hold them apart, as their classes say."""
    for pair in matching.pairs:
        for module, there, side in ((pair.a, pair.b, "A"), (pair.b, pair.a, "B")):
            mine, theirs = sides[side], sides[other_side(side)]
            classes = (mine.reader.modules[module].class_name,)
            for name, slot in mine.slots.get(module, {}).items():
                parts = unpacked(mine.reader.info.framework, classes, slot)
                found = tuple(place for part in parts if (place := theirs.piece(there, part)) is not None)
                is_direct = name in theirs.slots.get(there, {})
                if not found or len(found) < len(parts) or is_direct:
                    continue
                shapes, whole = [theirs.shape_of(place) for place in found], mine.shape_of((module, slot))
                if not problem_of([shapes], Fusion()) and whole == (sum(each[0] for each in shapes), *shapes[0][1:]):
                    yield WeightBundle(other_side(side), (module, name), (found,))


def with_places(matching: Matching, a: Tree, b: Tree) -> Matching:
    """Return a matching of which every weight that is compared has a pair of modules where that can be done.

    A mapping may say it of a weight, and not that the modules are a pair. One for one, a weight whose module has no
    partner is read as if it were in the module that the other one's is a pair with. Where neither has a partner, what is
    around all of them, or the first of them, is its pair for these weights alone. What is left has a warning.
    """
    trees, partner = {"A": a, "B": b}, {side: matching.partners(side) for side in "AB"}
    pairs, found, notes = list(matching.pairs), [], list(matching.notes)
    for each in matching.weight_bundles:
        bundle = _turned(each, partner)
        side, other = bundle.side, other_side(bundle.side)
        whole, parts = bundle.ends
        if whole not in partner[other]:
            free = [m for m in (_around(parts, trees[side]), *parts) if m not in partner[side]]
            if not free:
                names = tuple(trees[side].parameter_name(*place) for place in bundle.parts[0])
                name = trees[other].parameter_name(*bundle.whole)
                notes.append(note("weight-without-module", name=name, of=other, names=names, side=side))
                continue
            partner[other][whole], partner[side][free[0]] = free[0], whole
            ends = (whole, free[0]) if other == "A" else (free[0], whole)
            pairs.append(Pair(*ends, Reason.MAPPED, has_calls=False))
        found.append(bundle)
    return replace(matching, pairs=tuple(pairs), weight_bundles=tuple(found), notes=tuple(notes))


def _turned(bundle: WeightBundle, partner: Mapping[str, Mapping[int, int]]) -> WeightBundle:
    """Return one weight for one the other way round where that side's module alone has a partner."""
    whole, parts = bundle.ends
    is_alone = len(parts) == 1 and bundle.fusion == Fusion() and parts[0] in partner[bundle.side]
    return bundle.turned_round() if is_alone and whole not in partner[other_side(bundle.side)] else bundle


def _around(modules: Iterable[int], tree: Tree) -> int:
    """Return the innermost module that holds all of some."""
    paths = [[module, *tree.ancestors(module)][::-1] for module in modules]
    common = [each[0] for each in zip(*paths, strict=False) if len(set(each)) == 1]
    return common[-1]
