"""Which parameter of A is which of B: by pairs of modules, tied names, and fused ones as what they are together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from probe.matching import Matching, WeightBundle
from probe.numbers.fused import problem_of, whole_shape
from probe.records import Phase, Role
from probe.verdict.side import Place, Side
from probe.verdict.steps.events import Event
from probe.verdict.tensors import Tensor, joined


class ParameterPairs:
    """Pairs the parameters of a step, and what belongs to them."""

    def __init__(self, a: Side, b: Side, matching: Matching) -> None:
        self.a, self.b, self.bundles = a, b, matching.weight_bundles
        self.b_of = {pair.a: pair.b for pair in matching.pairs}
        self.a_of = {pair.b: pair.a for pair in matching.pairs}
        self.fused: list[WeightBundle] = []
        """those of the bundles that were found on both sides"""
        self.joined: dict[tuple[str, Place], tuple[list[Place], Place]] = {}
        """by side and place of what is joined there: where the parts are, and the whole on the other side"""
        self.tied_a, self.tied_b = a.tied, b.tied
        for bundle in (each for each in self.bundles if each.is_mixed):
            half, other = (a, b) if bundle.side == "A" else (b, a)
            _as_weights(half, [place for row in bundle.parts for place in row])
            _as_weights(other, [bundle.whole])

    def events(self, phase: Phase, role: Role) -> Iterator[Event]:
        """Yield the events of a role in the order of A's parameters, those of one side alone too."""
        mine, theirs = dict(self.a.params.get((phase, role), {})), dict(self.b.params.get((phase, role), {}))
        if not mine or not theirs:
            return
        for bundle in self.bundles:
            self._fuse(bundle, role, mine, theirs)
        for number, (place, a) in enumerate(sorted(mine.items(), key=lambda each: each[0][0])):
            other = self.partner(place, theirs)
            b = theirs.pop(other) if other is not None else None
            names = self.tied_a.get(place, [place])
            place = next((each for each in (place, *names) if each[0] in self.b_of), place)
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

    def parts(self, event: Event) -> tuple[list[Place], list[Place]]:
        """Return the parameters of each side that are one on the other side; none where both have one."""
        assert event.place is not None
        there = self.b_of.get(event.place[0], -1), event.slot_b
        nothing: tuple[list[Place], Place] = [], there
        return self.joined.get(("A", event.place), nothing)[0], self.joined.get(("B", there), nothing)[0]

    def both_have(self, event: Event) -> bool:
        """Return True if both models have the parameter of an event that one side alone recorded."""
        assert event.place is not None
        module, name = event.place[0], (event.slot_a or event.slot_b).partition(".")[0]
        return module in self.b_of and (module, name) in self.a.places and (self.b_of[module], name) in self.b.places

    def owners(self) -> list[list[int]]:
        """Return the modules that share a parameter, for each tied one of A."""
        unique = {id(places): places for places in self.tied_a.values()}.values()
        return [list(dict.fromkeys(owner for owner, _ in places)) for places in unique]

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
            may_be_zero = role in (Role.PARAM_GRAD, Role.DELTA) and all(each in half.places for each in lacking)
            if lacking and not may_be_zero:
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
            self.joined[bundle.side, (home, whole_name + tail)] = places, (whole_module, whole_name + tail)


def _as_weights(half: Side, places: list[Place]) -> None:
    """Take buffers that are parameters on the other side for parameters."""
    for phase in (phase for phase, role in list(half.params) if role is Role.BUFFER):
        for module, slot in places:
            tensor = half.params[phase, Role.BUFFER].pop((module, half.canonical(module, slot)), None)
            if tensor is not None:
                half.params[phase, Role.PARAM][module, half.canonical(module, slot)] = tensor
