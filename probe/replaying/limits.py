"""How large a module's own error may be: what rounding does to what it computes, measured where that is in question.

A module that is handed what A's was inherits nothing. In 16 bits its error is that of rounding what it computes, a unit or two; in float32 sums in
another order add some. Where it takes differences of large numbers, or divides by small ones, it may be any number of units. That is measured: B's
module runs once more with all that it is handed off by one unit in the last place, and its weights too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from probe.notes import note
from probe.numbers.statistics import unit_roundoff
from probe.records import Role
from probe.replaying.passing.left import by_place, place_of
from probe.store.reading.reader import Reader
from probe.verdict.distance.error import Error
from probe.verdict.distance.measure import measure
from probe.verdict.noise.limits import widened
from probe.verdict.noise.model import SIXTEEN_BITS, Row
from probe.verdict.noise.rung import Check
from probe.verdict.side import PARAMETER_ROLES, Side
from probe.verdict.steps.events import Event, Node
from probe.verdict.steps.step import Step
from probe.verdict.tensors import Tensor


@dataclass(frozen=True, slots=True)
class Limit:
    """What is rounding, for one kind of tensors: the sources of `Row` are here what one unit in everything changes."""

    size: Row
    gain16: float
    """of the row, for 16 bits"""
    norm: Row | None = None
    """of the norm, where it is one of many elements: rounding is up as often as down"""

    def between_frameworks(self) -> Limit:
        """Return the same for two frameworks, whose functions (exp, tanh) are approximations of their own."""
        norm = None if self.norm is None else replace(self.norm, k=2 * self.norm.k, k16=2 * self.norm.k16)
        return replace(self, size=replace(self.size, k=2 * self.size.k), norm=norm)

    def check(self, error: Error, u: float, moved: float) -> Check:
        """Return what is held against what: the error, or if that alone is rounding, how far the norm is off."""
        row = replace(self.size, gain=self.gain16) if u > SIXTEEN_BITS else self.size
        limit = widened(row.floor(u), replayed=row.gain * moved)
        if self.norm is not None and error.norm_a and error.size <= limit:
            off, most = abs(error.norm_b / error.norm_a - 1), self.norm.limit(u, moved)
            if off > most:
                said = note("norm-is-off", error=off, limit=most)
                return Check(off, most, True, measure="of the norm", facts=(said,))
        return Check(error.size, limit, error.size > limit)


WEIGHTS = (Role.PARAM, Role.BUFFER)
MADE_OUTSIDE = (Role.INPUT, Role.GRAD_OUTPUT, Role.GRAD_TOTAL)
"""of a call, by the code around it"""
_FEW, _MANY = 64, 512
"""elements"""
_VALUES, _GRADIENTS = Limit(Row(8, 1.5, 3), 0.75), Limit(Row(12, 2, 4), 1.25)
_OF_FEW, _OF_SUMS = Limit(Row(64, 6, 20), 3), Limit(Row(16, 2.5, 6), 1.35)
INTEGERS = Limit(Row(0, 0, 3), 3)
_LIMITS = {
    "values": (_VALUES, replace(_VALUES, norm=Row(2.5, 2.5, 1)), replace(_VALUES, norm=Row(2.5, 2.5, 0.5))),
    "gradients": (_GRADIENTS, _GRADIENTS, replace(_GRADIENTS, norm=Row(4, 4, 0.5))),
    "parameters": (_OF_FEW, _OF_SUMS, _OF_SUMS),
}
"""for up to so few elements, for more, and for many. Evidence: docs/evidence/replay.md"""
_KINDS = dict.fromkeys((Role.INPUT, Role.OUTPUT, Role.PARAM), "values") | dict.fromkeys(
    (Role.PARAM_GRAD, Role.BUFFER), "parameters"
)


class OtherPass:
    """One more pass through B: moved by rounding, in float64, or without A's tensors."""

    def __init__(self, reader: Reader, step: Step) -> None:
        self.step, self._side = step, Side(reader, step.a.step, step.matching.views_b)
        self._calls = by_place(self._side.calls)

    def tensor(self, event: Event) -> Tensor | None:
        """Return what B's tensor of an event is in this pass; None where it has none, or several for one."""
        if event.b is None or event.b.parts:
            return None
        if event.node is not None:
            call = self._calls.get(place_of(event.node.b))
            return None if call is None else call.of(event.role).get(event.slot_b)
        assert event.place is not None and event.role in PARAMETER_ROLES
        place = self.step.pair_of[event.place[0]].b, event.slot_b
        return self._side.params.get((event.phase, event.role), {}).get(place)

    def error(self, event: Event, tensor: Tensor | None) -> float | None:
        """Return how far a tensor is from what B's is in this pass; None if that is not known."""
        there = self.tensor(event)
        if tensor is None or there is None:
            return None
        may_permute = tensor is event.a and self.step.may_permute(event)
        found = measure(tensor, there, may_permute=may_permute)
        return None if found is None else found.size


class Rounding:
    """What of a step is rounding."""

    def __init__(self, step: Step) -> None:
        self._step, self._units = step, {node: _unit(node) for node in step.nodes}

    def check(self, event: Event, moved: Sequence[OtherPass]) -> Check | None:
        """Return what is held against what; None where that is not known."""
        error = self._step.error(event)
        if error is None or event.a is None:
            return None
        changes = [change for each in moved if (change := each.error(event, event.b)) is not None]
        return self._limit(event).check(error, self._roundoff(event), max(changes, default=0.0))

    def _limit(self, event: Event) -> Limit:
        assert event.a is not None
        if not event.u:
            return INTEGERS
        few, some, many = _LIMITS[_KINDS.get(event.role, "gradients")]
        limit = few if event.a.size < _FEW else some if event.a.size < _MANY else many
        return limit.between_frameworks() if self._step.is_across_frameworks else limit

    def _roundoff(self, event: Event) -> float:
        """Return the unit roundoff of the least precise dtype on the way."""
        if event.role in WEIGHTS or not event.u:
            return event.u
        if event.node is None:
            assert event.place is not None
            own = [self._units[node] for node in self._step.nodes if node.a.module == event.place[0]]
            return max([event.u, *own])
        maker = event.node.parent if event.role in MADE_OUTSIDE else event.node
        return event.u if maker is None else max(event.u, self._units[maker])


def _unit(node: Node) -> float:
    """Return the unit roundoff of what a call computes with: what goes in, and what it is cast to."""
    casts = [unit_roundoff(call.autocast) for call in (node.a, node.b) if call.autocast]
    goes_in = (*node.inputs, *(event for inner in node.inner for event in inner.outputs))
    return max([0.0, *casts, *(event.u for event in goes_in)])
