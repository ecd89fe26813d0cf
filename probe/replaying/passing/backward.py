"""The gradients of a pass: pulled back through one segment after the other, each with what A recorded."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from probe.records import Role
from probe.replaying.partners import Partner
from probe.replaying.passing.left import Left, Passed, Why, left_by, place_of
from probe.replaying.passing.segments import Again, Gradients, Held, Segment, Source, Target, pulled_back
from probe.replaying.passing.tensors import Named, Tensors
from probe.replaying.passing.writing import Written
from probe.replaying.prepared import Prepared
from probe.verdict.side import Call as RecordedCall

_GRADIENT_OF = {Role.INPUT: Role.GRAD_INPUT, Role.OUTPUT: Role.GRAD_OUTPUT}


class Backward:
    """Pulls A's gradients back.

    Parameters
    ----------
    plan
        what to do
    tensors
        makes A's gradients
    written
        where the results go
    passed
        is told what is not pulled back through
    """

    def __init__(self, plan: Prepared, tensors: Tensors, written: Written, passed: Passed) -> None:
        self.replaying, self.recorded = plan.replaying, plan.recorded
        self.adapter, self._tensors, self._written = plan.replaying.adapter, tensors, written
        self.passed = passed
        self.gradients: dict[int, Any] = {}
        """of parameters, by their ids, all calls together"""
        self.returning_more: list[RecordedCall] = []
        """calls of which B's returns something that A's does not, and that learns"""
        self._parameters: dict[int, list[Any]] = {}
        self._held: list[Held] = []
        """what code around the caller of a module has got hold of too: its gradient is not whole yet"""

    def pull(self, segment: Segment, partner: Partner, outputs: Named, again: Again, is_outermost: bool) -> None:
        """Pull A's gradients back through a call, and write down what comes of it."""
        call = segment.recorded
        seen: set[int] = set()
        for slot, tensor in outputs:
            target = Target(Role.OUTPUT, segment.call, slot, tensor, self.replaying.place(tensor))
            forward = segment.returned.get(slot)
            mine = self.recorded.gradient(call, Role.GRAD_OUTPUT, forward)
            is_own = slot not in segment.through and slot not in segment.foreign
            if mine is not None and is_own and id(tensor) not in seen:
                target.gradient = self._tensors.of(mine, tensor, segment.call.autocast, partner, forward)
                seen.add(id(tensor))
            segment.targets.append(target)
        if not self.recorded.slots(call, Role.GRAD_OUTPUT) and self._passed_back(segment):
            self.passed.leave(Left(call, Why.NO_GRADIENT))
            return
        try:
            found = pulled_back(self.replaying, segment, self._parameters_of(segment), self._held, again)
        except Exception as error:  # noqa: BLE001  B's code once more
            self.passed.leave(left_by(call, error, Why.BACKWARD_RAISED))
            return
        segment.inner = found.inside
        self.passed.with_inner |= {(*place_of(segment.call), slot) for slot in found.inside}
        if is_outermost:  # what a model makes of its own logits is a loss, of which the training uses nothing else
            for slot, gradient in found.inside.items():
                self._written.tensor(Role.GRAD_OUTPUT, segment.call, slot, gradient)
        self._take(segment, found)
        if is_outermost:
            self.settle()

    def settle(self, tensor: Any = None) -> None:
        """Write down the gradients of what was captured, once nobody uses it any more.

        That is all of it, or one tensor that a call around its own returns too: whoever has got hold of it uses what that one returned.
        """
        for held in [each for each in self._held if tensor is None or each.tensor() is tensor]:
            for slot in held.slots if held.gradient is not None else ():
                self._written.tensor(Role.GRAD_OUTPUT, held.call, slot, held.gradient)
            self._held.remove(held)

    def _passed_back(self, segment: Segment) -> bool:
        """Return True if A passed gradients back through a call."""
        call = segment.recorded
        if not any(each.learns for each in self.recorded.slots(call, Role.OUTPUT).values()):
            return False
        if self.recorded.side.has_gradient(call.module):  # of what it returned, written over in place, none is known
            return True
        is_passed = any(Role.GRAD_INPUT in each.seen or Role.GRAD_OUTPUT in each.seen for each in call.inner)
        return is_passed or bool(self.recorded.slots(call, Role.GRAD_INPUT))

    def _take(self, segment: Segment, found: Gradients) -> None:
        """Write down the gradients that a segment gave."""
        for source, gradient in found.of_sources:
            source.gradient = gradient
            whole = self._sum(gradient, source.inner)
            if source.is_captured:
                self._held.append(Held(source.call, source.slots, weakref.ref(source.given), whole))
            elif whole is not None:
                for slot in source.slots:
                    self._written.tensor(_GRADIENT_OF[source.role], source.call, slot, whole)
                if source.made_by is not None and gradient is not None:
                    self._leave_more(source.made_by, source.slots[0])
        for held, gradient in found.of_held:
            held.gradient = self._sum(held.gradient, gradient)
        captured = {id(each.given) for each in segment.sources if each.is_captured}
        inner = {id(each.given): each.inner for each in segment.sources if each.inner is not None}
        for target, gradient in found.of_targets:
            if gradient is not None:
                whole = self._sum(gradient, inner.get(id(target.tensor)))
                self._written.tensor(Role.GRAD_TOTAL, target.call, target.slot, whole)
                if id(target.tensor) in captured:
                    self.passed.skip(target.call, Role.GRAD_TOTAL, target.slot)
        for parameter, gradient in found.of_parameters:
            if gradient is not None:
                self.gradients[id(parameter)] = self._sum(self.gradients.get(id(parameter)), gradient)

    def _leave_more(self, call: RecordedCall, slot: str) -> None:
        """Note that gradients come back to what B's alone returns: the call, and those inside that it may be from, lack them."""
        self.passed.leave(Left(call, Why.MORE_RETURNED, slots=(slot,)))
        for inner in self.returning_more:
            if call in inner.callers():
                self.passed.leave(Left(inner, Why.MORE_RETURNED))

    def _sum(self, a: Any, b: Any) -> Any:
        """Return the sum of two gradients, of which either may be none."""
        return b if a is None else a if b is None else self.replaying.added(a, b)

    def _parameters_of(self, segment: Segment) -> Sequence[Any]:
        """Return the parameters that the code of a call may use."""
        if segment.index not in self._parameters:
            found = self.adapter.parameters(segment.made.module)
            self._parameters[segment.index] = [each.tensor for each in found if not each.is_buffer]
        return self._parameters[segment.index]

    def hand_on(self, segment: Segment, partner: Partner, around: Segment) -> None:
        """Let the code around a call be handed the gradients that the call passes back: A's where they were recorded of it alone."""
        own = {slot: each for each in segment.sources if each.role is Role.INPUT for slot in each.slots}
        handed: set[Source] = set()
        for target in around.targets:
            if target.call is not segment.call:
                continue
            forward = None if partner.is_part else segment.arrived.get(target.slot)
            mine = self.recorded.gradient(segment.recorded, Role.GRAD_INPUT, forward)
            if mine is not None:
                target.gradient = self._tensors.of(mine, target.tensor, segment.call.autocast, forward=forward)
                continue
            source = own.get(target.slot)
            if source is not None and source not in handed:  # one tensor in several arguments has one gradient
                handed.add(source)
                target.gradient = source.gradient
