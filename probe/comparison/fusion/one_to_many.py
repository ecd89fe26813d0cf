"""Which parameters of one side lie in one of the other: what a mapping says, and what is known of the classes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from probe.comparison.steps.parameter_names import Names
from probe.errors import MappingError
from probe.matching import Bundle, Matching, Place, WeightBundle
from probe.matching.apart import with_places
from probe.numbers.fused import Fusion, problem_of
from probe.numbers.layouts import unpacked
from probe.store.reading.reader import Reader
from probe.structure.tree import Tree

_BIAS = "bias"


def completed(matching: Matching, a: Reader, b: Reader) -> Matching:
    """Return a matching with the parameters of its bundles, and those of attentions that pack theirs on one side alone.

    Places of parts are as they were recorded, those of wholes are canonical.

    Raises
    ------
    MappingError
        tensors cannot lie in one as the mapping says
    """
    return _Completion(matching, a, b).result()


class _Completion:
    def __init__(self, matching: Matching, a: Reader, b: Reader) -> None:
        self.readers = {"A": a, "B": b}
        self.trees = {"A": Tree(a.modules), "B": Tree(b.modules)}
        self.matching = with_places(matching, self.trees["A"], self.trees["B"])
        self.names = {"A": Names(a, a.parameters, matching.views_a), "B": Names(b, b.parameters, matching.views_b)}
        self.slots = {side: _by_canonical(self.names[side], reader) for side, reader in self.readers.items()}
        self.buffers = {
            side: {(each.module, each.slot) for each in reader.parameters if each.is_buffer}
            for side, reader in self.readers.items()
        }

    def result(self) -> Matching:
        """Return the matching with all that was found."""
        found = [self._settled(bundle) for bundle in self.matching.weight_bundles]
        taken = {(each.side, each.whole) for each in found}
        for bundle in self.matching.bundles:
            found += [each for each in self._of_modules(bundle) if (each.side, each.whole) not in taken]
        taken = {(each.side, each.whole) for each in found}
        found += [each for each in self._packed() if (each.side, each.whole) not in taken]
        return replace(self.matching, weight_bundles=tuple(found))

    # What a mapping says

    def _settled(self, bundle: WeightBundle) -> WeightBundle:
        """Return a bundle with the places that records have."""
        other = "A" if bundle.side == "B" else "B"
        slot = self.names[other].of(*bundle.whole)
        parts = tuple(tuple(self._recorded(bundle.side, place) for place in row) for row in bundle.parts)
        self._check(bundle.side, (bundle.whole[0], slot), parts, bundle.fusion)
        kinds = {bundle.whole in self.buffers[other]} | {
            place in self.buffers[bundle.side] for row in parts for place in row
        }
        return replace(bundle, whole=(bundle.whole[0], slot), parts=parts, is_mixed=len(kinds) > 1)

    def _recorded(self, side: str, place: Place) -> Place:
        """Return where records have a parameter: under its own slot, and the first of the names of a tied one."""
        module, slot = place
        slot = slot if place in self.names[side].slots else self.slots[side].get(module, {}).get(slot, slot)
        if (module, slot) in self.names[side].slots:
            return module, slot
        path = self.trees[side].path(module)
        full = f"{path}.{slot}" if path else slot
        tied = next((p for p in self.readers[side].parameters if full in p.names), None)
        return (module, slot) if tied is None else (tied.module, tied.slot)

    def _of_modules(self, bundle: Bundle) -> Iterator[WeightBundle]:
        """Yield what the parameters of modules that are one are."""
        slots = [self.slots[bundle.side].get(part, {}) for part in bundle.parts]
        for name in {name: None for each in slots for name in each}:
            if all(name in each for each in slots) or (name == _BIAS and all("weight" in each for each in slots)):
                places = tuple((part, each.get(name, name)) for part, each in zip(bundle.parts, slots, strict=True))
                found = WeightBundle(
                    bundle.side,
                    (bundle.whole, name),
                    (places,),
                    0,
                    bundle.groups,
                    rotary=bundle.rotary,
                    order=bundle.order,
                )
                self._check(bundle.side, found.whole, found.parts, found.fusion)
                yield found

    def _check(self, side: str, whole: Place, parts: Sequence[Sequence[Place]], fusion: Fusion) -> None:
        problem = problem_of([[self.names[side].shape_of(place) for place in row] for row in parts], fusion)
        if problem:
            names = ", ".join(self._name(side, place) for place in parts[0])
            other = "A" if side == "B" else "B"
            raise MappingError(
                f"{names} of {side} cannot lie in {self._name(other, whole)} of {other} as the mapping says: {problem}"
            )

    def _name(self, side: str, place: Place) -> str:
        path = self.trees[side].path(place[0])
        return f"{path}.{place[1]}" if path else place[1]

    # What classes say

    def _packed(self) -> Iterator[WeightBundle]:
        """Yield the packed parameters of attentions whose counterparts hold them apart."""
        for pair in self.matching.pairs:
            for module, other, side, parts_side in ((pair.a, pair.b, "A", "B"), (pair.b, pair.a, "B", "A")):
                reader = self.readers[side]
                kinds = (reader.modules[module].class_name,)
                for name, slot in self.slots[side].get(module, {}).items():
                    parts = unpacked(reader.info.framework, kinds, slot)
                    places = [self._piece(parts_side, other, part) for part in parts]
                    found = tuple(place for place in places if place is not None)
                    is_direct = name in self.slots[parts_side].get(other, {})
                    if found and len(found) == len(parts) and not is_direct and self._fits(side, module, slot, found):
                        yield WeightBundle(parts_side, (module, name), (found,))

    def _piece(self, side: str, module: int, name: str) -> Place | None:
        *path, canonical = name.split(".")
        inner = self.trees[side].resolve(module, path)
        slot = None if inner is None else self.slots[side].get(inner, {}).get(canonical)
        return None if inner is None or slot is None else (inner, slot)

    def _fits(self, side: str, module: int, slot: str, parts: tuple[Place, ...]) -> bool:
        shapes = [self.names["A" if side == "B" else "B"].shape_of(place) for place in parts]
        whole = self.names[side].shape_of((module, slot))
        return not problem_of([shapes], Fusion()) and whole == (sum(shape[0] for shape in shapes), *shapes[0][1:])


def _by_canonical(names: Names, reader: Reader) -> dict[int, dict[str, str]]:
    """Return the recorded slots of the parameters of each module, by their canonical names."""
    found: dict[int, dict[str, str]] = {}
    for parameter in reader.parameters:
        if not parameter.is_buffer:
            found.setdefault(parameter.module, {})[names.of(parameter.module, parameter.slot)] = parameter.slot
    return found
