"""The gradients of a pass: pulled back through one segment after the other, each with what A recorded."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from probe.comparison.steps.step_half import Call as RecordedCall
from probe.recorder.calls import Call
from probe.records import Role
from probe.replaying.partners import Partner
from probe.replaying.passing.left import Left, Why, left_by
from probe.replaying.passing.plan import Plan
from probe.replaying.passing.segments import Again, Gradients, Held, Segment, Source, Target, pulled_back
from probe.replaying.passing.tensors import Named, Tensors
from probe.replaying.passing.writing import Written

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
    leave
        notes a call that nothing was pulled back through
    skip
        notes a gradient that cannot be held against A's, by the call, its role and the slot
    """

    def __init__(
        self, plan: Plan, tensors: Tensors, written: Written, leave: Callable[[Left], None],
        skip: Callable[[Call, Role, str], None],
    ) -> None:  # fmt: skip
        self.replaying, self.recorded = plan.replaying, plan.recorded
        self.adapter, self._tensors, self._written = plan.replaying.adapter, tensors, written
        self._leave, self._skip = leave, skip
        self.gradients: dict[int, Any] = {}
        """of parameters, by their ids, all calls together"""
        self.returning_more: list[RecordedCall] = []
        """calls of which B's returns something that A's does not, and that learns"""
        self._parameters: dict[int, list[Any]] = {}
        self.with_inner: set[tuple[int, int, int, str]] = set()
        """gradients, by the call in B and the slot, of which a part came through code inside of calls"""
        self._held: list[Held] = []
        """what code around the caller of a module has got hold of too: its gradient is not whole yet"""

    def pull(self, segment: Segment, partner: Partner, outputs: Named, again: Again, is_outermost: bool) -> None:
        """Pull A's gradients back through a call, and write down what comes of it."""
        call = segment.recorded
        rows = self._tensors.recorded.slots(call.key, Role.GRAD_OUTPUT)
        slots = {row: slot for slot, row in self.recorded.slots(call.key, Role.OUTPUT).items()}
        seen: set[int] = set()
        for slot, tensor in outputs:
            target = Target(Role.OUTPUT, segment.call, slot, tensor, self.replaying.place(tensor))
            forward = segment.returned.get(slot, -1)
            row = rows.get(slots.get(forward, ""), -1)
            is_known = (
                row >= 0
                and self.recorded.has_values(row)
                and slot not in segment.through
                and slot not in segment.foreign
            )
            if is_known and id(tensor) not in seen:
                target.gradient = self._tensors.of(row, tensor, segment.call.autocast, partner, forward)
                seen.add(id(tensor))
            segment.targets.append(target)
        if not rows and self._passed_back(segment):
            self._leave(Left(call, Why.NO_GRADIENT))
            return
        try:
            found = pulled_back(self.replaying, segment, self._parameters_of(segment), self._held, again)
        except Exception as error:  # noqa: BLE001  B's code once more
            self._leave(left_by(call, error, Why.BACKWARD_RAISED))
            return
        segment.inner = found.inside
        here = segment.call
        self.with_inner |= {(here.micro, here.module, here.number, slot) for slot in found.inside}
        if is_outermost:  # what a model makes of its own logits is a loss, of which the training uses nothing else
            for slot, gradient in found.inside.items():
                self._written.tensor(Role.GRAD_OUTPUT, segment.call, slot, gradient)
        self._take(segment, found)
        if is_outermost:
            self.settle()

    def settle(self) -> None:
        """Write down the gradients of what was captured: nobody uses it any more."""
        for held in self._held:
            self._write_held(held)
        self._held = []

    def release(self, tensor: Any) -> None:
        """Take note that a call returns what another one inside of it did: whoever has got hold of it uses what the outer one returned."""
        for held in [each for each in self._held if each.tensor() is tensor]:
            self._write_held(held)
            self._held.remove(held)

    def _write_held(self, held: Held) -> None:
        for slot in held.slots if held.gradient is not None else ():
            self._written.tensor(Role.GRAD_OUTPUT, held.call, slot, held.gradient)

    def _passed_back(self, segment: Segment) -> bool:
        """Tell whether A passed gradients back through a call."""
        call = segment.recorded
        if not any(map(self.recorded.learns, self.recorded.slots(call.key, Role.OUTPUT).values())):
            return False
        if self.recorded.has_gradients(call.module):  # of what it returned, written over in place, no gradient is known
            return True
        inside = (each.key for each in self.recorded.calls_in(call))
        roles = Role.GRAD_INPUT, Role.GRAD_OUTPUT
        return bool(self.recorded.slots(call.key, Role.GRAD_INPUT)) or any(
            self.recorded.slots(key, role) for key in inside for role in roles
        )

    def _take(self, segment: Segment, found: Gradients) -> None:
        """Write down the gradients that a segment gave."""
        for source, gradient in found.of_sources:
            source.gradient = gradient
            whole = self._sum(gradient, source.inner)
            if source.is_captured:
                slots = source.slot, *source.also
                self._held.append(Held(source.call, slots, weakref.ref(source.given), whole))
            elif whole is not None:
                for slot in (source.slot, *source.also):
                    self._written.tensor(_GRADIENT_OF[source.role], source.call, slot, whole)
                if source.made_by is not None and gradient is not None:
                    self._leave_more(source.made_by, source.slot)
        for held, gradient in found.of_held:
            held.gradient = self._sum(held.gradient, gradient)
        captured = {id(each.given) for each in segment.sources if each.is_captured}
        inner = {id(each.given): each.inner for each in segment.sources if each.inner is not None}
        for target, gradient in found.of_targets:
            if gradient is not None:
                whole = self._sum(gradient, inner.get(id(target.tensor)))
                self._written.tensor(Role.GRAD_TOTAL, target.call, target.slot, whole)
                if id(target.tensor) in captured:
                    self._skip(target.call, Role.GRAD_TOTAL, target.slot)
        for parameter, gradient in found.of_parameters:
            if gradient is not None:
                self.gradients[id(parameter)] = self._sum(self.gradients.get(id(parameter)), gradient)

    def _leave_more(self, call: RecordedCall, slot: str) -> None:
        """Note that gradients come back to what B's alone returns: the call, and those inside that it may be from, lack them."""
        self._leave(Left(call, Why.MORE_RETURNED, slots=(slot,)))
        for inner in self.returning_more:
            if inner is not call and self.recorded.is_inside(inner, call):
                self._leave(Left(inner, Why.MORE_RETURNED))

    def _sum(self, a: Any, b: Any) -> Any:
        """Return the sum of two gradients, of which either may be none."""
        return b if a is None else a if b is None else self.replaying.added(a, b)

    def _parameters_of(self, segment: Segment) -> Sequence[Any]:
        """Return the parameters that the code of a call may use."""
        if segment.index not in self._parameters:
            found = self.adapter.parameters(segment.module)
            self._parameters[segment.index] = [each.tensor for each in found if not each.is_buffer]
        return self._parameters[segment.index]

    def hand_on(self, segment: Segment, partner: Partner, around: Segment) -> None:
        """Let the code around a call be handed the gradients that the call passes back: A's where they were recorded of it alone."""
        arrived = segment.arrived
        rows = {} if partner.is_part else self.recorded.slots(segment.recorded.key, Role.GRAD_INPUT)
        slots = {row: slot for slot, row in self.recorded.slots(segment.recorded.key, Role.INPUT).items()}
        own = {slot: each for each in segment.sources if each.role is Role.INPUT for slot in (each.slot, *each.also)}
        handed: set[Source] = set()
        for target in around.targets:
            if target.call is not segment.call:
                continue
            row = rows.get(slots.get(arrived.get(target.slot, -1), ""), -1)
            is_known = row >= 0 and self.recorded.has_values(row)
            if is_known:
                forward = arrived[target.slot]
                target.gradient = self._tensors.of(row, target.tensor, segment.call.autocast, forward=forward)
                continue
            source = own.get(target.slot)
            if source is not None and source not in handed:  # one tensor in several arguments has one gradient
                handed.add(source)
                target.gradient = source.gradient
