"""Which parameter of A is which of B: by pairs of modules, tied names, and fused ones as what they are together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from probe.matching import Matching, WeightBundle
from probe.numbers.fused import problem_of, whole_shape
from probe.records import Phase, Role
from probe.verdict.side import Place, Side
from probe.verdict.steps.events import Event
from probe.verdict.tensors import Tensor, joined

Tied = Mapping[Place, list[Place]]


class ParameterPairs:
    """Pairs the parameters of a step, and what belongs to them."""

    def __init__(self, a: Side, b: Side, matching: Matching) -> None:
        self.a, self.b, self.bundles = a, b, matching.weight_bundles
        self.b_of = {pair.a: pair.b for pair in matching.pairs}
        self.a_of = {pair.b: pair.a for pair in matching.pairs}
        self.fused: list[WeightBundle] = []
        """those of the bundles that were found on both sides"""
        self.tied_a, self.tied_b = _tied_places(a), _tied_places(b)

    def events(self, phase: Phase, role: Role) -> Iterator[Event]:
        """Yield the events of a role in the order of A's parameters, those of one side alone too."""
        mine, theirs = dict(self.a.params.get((phase, role), {})), dict(self.b.params.get((phase, role), {}))
        if not mine or not theirs:
            return
        for bundle in self.bundles:
            self._fuse(bundle, role, mine, theirs)
        for number, (place, a) in enumerate(mine.items()):
            other = self.partner(place, theirs)
            b = theirs.pop(other) if other is not None else None
            if place[0] in self.b_of or b is not None:
                yield Event(phase, role, None, place, place[1], other[1] if other else "", a, b, number)
        for (module, name), b in theirs.items():
            if module in self.a_of:
                yield Event(phase, role, None, (self.a_of[module], name), "", name, None, b, len(mine))

    def partner(self, place: Place, theirs: Mapping[Place, object]) -> Place | None:
        """Return where B has a parameter of A; a tied one may have another of its names there."""
        module, name = place
        parameter, dot, rest = name.partition(".")
        for owner, slot in self.tied_a.get((module, parameter), [(module, parameter)]):
            if owner not in self.b_of:
                continue
            there = self.b_of[owner], slot
            for other, slot_b in (there, *self.tied_b.get(there, ())):
                if (other, f"{slot_b}{dot}{rest}") in theirs:
                    return other, f"{slot_b}{dot}{rest}"
        return None

    def both_have(self, event: Event) -> bool:
        """Return True if both models have the parameter of an event that one side alone recorded."""
        assert event.place is not None
        module, name = event.place[0], (event.slot_a or event.slot_b).partition(".")[0]
        return module in self.b_of and (module, name) in self.a.places and (self.b_of[module], name) in self.b.places

    def owners(self) -> list[list[int]]:
        """Return the modules that share a parameter, for each tied one of A."""
        return [list(dict.fromkeys(owner for owner, _ in places)) for places in _unique(self.tied_a)]

    def _fuse(self, bundle: WeightBundle, role: Role, mine: dict[Place, Tensor], theirs: dict[Place, Tensor]) -> None:
        """Replace parameters by the one of the other side in which they lie; no gradient is a zero one."""
        is_a = bundle.side == "A"
        half, here, there = (self.a, mine, theirs) if is_a else (self.b, theirs, mine)
        other = self.b if is_a else self.a
        whole_module, whole_name = bundle.whole[0], other.canonical(*bundle.whole)
        home = (self.a_of if is_a else self.b_of).get(whole_module, bundle.parts[0][0][0])
        for rest in {name.partition(".")[2] for _, name in here}:
            tail = f".{rest}" if rest else ""
            rows = [[(module, half.canonical(module, slot) + tail) for module, slot in row] for row in bundle.parts]
            places = [place for row in rows for place in row]
            if (whole_module, whole_name + tail) not in there or not any(place in here for place in places):
                continue
            lacking = [place for place in places if place not in here]
            if lacking and role not in (Role.PARAM_GRAD, Role.DELTA):
                continue
            tensors = [[here[place] if place in here else half.zeros(place) for place in row] for row in rows]
            shapes = [[tensor.laid for tensor in row] for row in tensors]
            if problem_of(shapes, bundle.fusion):
                continue
            if bundle not in self.fused:
                self.fused.append(bundle)
            made = joined(tensors, bundle.fusion, whole_shape(shapes, bundle.fusion))
            for place in places:
                here.pop(place, None)
            here[home, whole_name + tail] = made


def _tied_places(side: Side) -> dict[Place, list[Place]]:
    by_path = {module.path: index for index, module in enumerate(side.reader.modules)}
    found: dict[Place, list[Place]] = {}
    for parameter in side.reader.parameters:
        if len(parameter.names) > 1:
            parts = [name.rpartition(".") for name in parameter.names]
            places = [(by_path[o], side.canonical(by_path[o], slot)) for o, _, slot in parts if o in by_path]
            found.update(dict.fromkeys(places, places))
    return found


def _unique(tied: Tied) -> list[list[Place]]:
    return list({id(places): places for places in tied.values()}.values())
