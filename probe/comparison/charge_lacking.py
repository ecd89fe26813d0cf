"""Who answers for a wrong value of the forward pass where one side's model alone is given an input."""

from __future__ import annotations

from probe.comparison import tolerance
from probe.comparison.charge_loose import LooseCharger
from probe.comparison.one_sided import effect, has_counterpart, is_named_as_labels, named, size_of, ways_to
from probe.comparison.result import Divergence, Kind
from probe.comparison.step_half import Event, Node, StepHalf
from probe.records import Phase, Role


class LackingCharger(LooseCharger):
    """Charges a wrong value of the forward pass to what the model is given on one side only."""

    def _charge_lacking_input(self, place: Node, event: Event, what: str, at: tuple[int, int]) -> bool:
        """Charge something wrong in a call, at positions of A and of B, to what it and the model get on one side only."""
        alone: dict[str, list[str]] = {}
        for slot, side in self._lacking.get(id(place), ()):
            alone.setdefault(side, []).append(slot)
        tops = [top for top in self.pairs.nodes.values() if top.parent is None and top.micro == place.micro]
        lacking = [(top, *each) for top in tops for each in self._lacking.get(id(top), ()) if each[1] in alone]
        is_integer = not self.u(event)  # what tokens are made of: of labels, too
        found = [
            each for each in lacking
            if not self._is_kept_out(*each, place, at) and (is_integer or self._may_be_behind(*each, place, alone[each[2]], at))
        ]  # fmt: skip
        if not found:
            return False
        found.sort(key=lambda each: -size_of(self.pairs.half(each[2]), *each[:2]))  # a mask before a number
        top, slot, side = found[0]
        other = "B" if side == "A" else "A"
        name = named(self.pairs.half(side), top, slot)
        own = [
            named(self.pairs.half(other), top, each)
            for each, its in self._lacking[id(top)] if its == other and not is_named_as_labels(each)
        ]  # fmt: skip
        hint = f"give {other} {'' if name != slot else 'the same '}{name}{' too' * (name != slot)}, or look at its default there"
        if own:
            hint += f"; or {other} has it as {' or '.join(own)}, under another name"
        facts = [f"the model is given {named(self.pairs.half(its), at, each)} on {its} only" for at, each, its in found]
        self._append(Divergence(
            Phase.FORWARD, Role.INPUT, Kind.INPUTS, 0.8, *self.refs(top.pair, top, slot, slot), event.metrics,
            tolerance.FORWARD.limit(self.u(event), 0.0), (*facts, what), hint,
        ), event)  # fmt: skip
        return True

    def _is_kept_out(self, top: Node, slot: str, side: str, place: Node, at: tuple[int, int]) -> bool:
        """Tell whether what is wrong in a call, at positions of A and of B, lies in one that was given all it needs on both sides.

        All that such a call is given was compared and agrees, but for what was not made of the input in question. Nor is that handed to
        what runs inside it, as something that is no tensor, and so is not recorded, would bring it there. The model itself has it.
        """
        half = self.pairs.half(side)
        digest = half.side.digest(half.rows.get(half.key(top), Role.INPUT)[slot][0])
        for call in (place, *place.ancestors()):
            if digest in half.hashes(half.key(call), Role.INPUT):
                return False
            alone = {name for name, its in self._lacking.get(id(call), ()) if its == side}
            ways = ways_to(half, top, slot, call, alone, at["AB".index(side)])
            if not ways and self._was_given_the_same(call, side, alone):
                return True
        return False

    def _was_given_the_same(self, node: Node, side: str, but_for: set[str]) -> bool:
        """Tell whether a call's inputs were compared and agree, but for some that this side alone has."""
        has_more = any(its != side for _, its in self._lacking.get(id(node), ()))
        if has_more or node not in self._with_inputs or not self._unknown.get(id(node), set()) <= but_for:
            return False
        given = (each for each in self.events if each.event.role is Role.INPUT and self._is_of(node, each.event))
        return all(each.verdict in ("equal", "noise") and not each.event.metrics.is_lower_bound for each in given)

    def _may_be_behind(
        self, top: Node, slot: str, side: str, place: Node, alone: list[str], at: tuple[int, int]
    ) -> bool:
        """Tell whether what the model is given on one side only may be behind what is wrong in a call.

        Not if the other side has it under another name, nor if calls like this one had it before, and made the same of it.
        """
        half, other = self.pairs.half(side), self.pairs.half("B" if side == "A" else "A")
        ways = ways_to(half, top, slot, place, alone, at["AB".index(side)])
        if not ways:
            return False
        given = (j.event for j in self.events if j.event.role is Role.INPUT and self._is_of(place, j.event))
        theirs = [each for each, its in self._lacking[id(top)] if its == other.name]
        if place is not top and has_counterpart(self.pairs, half, top, theirs, given):
            return False
        none = effect(half, top, slot)
        if none:
            self._say_of_lacking(half, top, slot, none)
            return False
        before = [self._handed_before(way, side, place) for way in ways]
        if None in before:
            return True
        path = self._path_a(before[0].pair)
        why = f"what is wrong first is not its work, since {path} was handed the same, and what it returns agrees"
        self._say_of_lacking(half, top, slot, why)
        return False

    def _say_of_lacking(self, half: StepHalf, top: Node, slot: str, why: str) -> None:
        if not self.findings:
            self.warnings.append(f"the model is given {named(half, top, slot)} on {half.name} only: {why}")

    def _handed_before(self, way: object, side: str, place: Node) -> Node | None:
        """Return a call like another one that one side alone handed a tensor before, and that returned what agrees.

        Of the model's own code any call is like it: it hands on what it is given.
        """
        half = self.pairs.half(side)
        for node in self.pairs.nodes.values():
            is_alike = place.parent is None or self._classes(node.pair) == self._classes(place.pair)
            if node.micro != place.micro or not is_alike:
                continue
            rows = half.rows.get(half.key(node), Role.INPUT)
            was_given = any(
                its == side and half.side.digest(rows[slot][0]) == way for slot, its in self._lacking.get(id(node), ())
            )
            if way is not None and was_given and self._returned_the_same(node):
                return node
        return None

    def _returned_the_same(self, node: Node) -> bool:
        """Tell whether what a call returned was compared, as far as it is no integers, and agrees."""
        returned = [
            judged for judged in self.events
            if judged.event.role is Role.OUTPUT and self._is_of(node, judged.event) and self.u(judged.event)
        ]  # fmt: skip
        return bool(returned) and all(
            judged.verdict in ("equal", "noise") and not judged.event.metrics.is_lower_bound for judged in returned
        )

    @staticmethod
    def _is_of(node: Node, event: Event) -> bool:
        return (event.micro, event.pair, event.call) == (node.micro, node.pair, node.call)
