"""What the code around a call goes on with: A's results, in the form of B's."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from probe.records import Role
from probe.replaying.partners import Partner
from probe.replaying.passing.backward import Backward
from probe.replaying.passing.segments import Given, Inside, Segment, Source
from probe.replaying.passing.tensors import Named, Tensors
from probe.replaying.prepared import Prepared
from probe.replaying.recorded import are_equal


class Handing:
    """Hands results of A to code of B.

    Parameters
    ----------
    plan
        what to do
    tensors
        makes A's results
    backward
        is told of what goes on with them
    """

    def __init__(self, plan: Prepared, tensors: Tensors, backward: Backward) -> None:
        self._replaying, self._recorded = plan.replaying, plan.recorded
        self._tensors, self._backward = tensors, backward

    def back(self, segment: Segment, partner: Partner, around: Segment, output: Any) -> Any:
        """Return what A's call returned, in the form of what B's did; the code around goes on with that."""
        self._backward.hand_on(segment, partner, around)
        inside, by = Inside(segment.call, None, through=segment.through), dict[str, Any]()
        known: dict[int, Source] = {}
        for slot, tensor in self._tensors.named(output):
            if slot in segment.through:
                by[slot] = next(each.arrived for each in segment.given if each.slot == segment.through[slot])
                self._backward.passed.skip(segment.call, Role.GRAD_OUTPUT, slot)
            elif id(tensor) in known:
                known[id(tensor)].slots += (slot,)
                by[slot] = known[id(tensor)].given
            else:
                source = self._source_of(segment, partner, around, slot, tensor)
                known[id(tensor)] = source
                by[slot] = self._written_in_place(segment, tensor, source.given)
        around.sources += known.values()
        inside.sources += known.values()
        self._write_what_is_not_returned(segment)
        inside.output = self._tensors.put(output, by)
        around.inside.append(inside)
        return inside.output

    def _source_of(self, segment: Segment, partner: Partner, around: Segment, slot: str, tensor: Any) -> Source:
        """Return what stands for something that a call returned; whoever got hold of that by a hook goes on with A's values too."""
        mine = segment.returned.get(slot)
        value = tensor if mine is None else self._tensors.of(mine, tensor, segment.call.autocast, partner)
        learns = around.grad and self._tensors.learns(tensor, mine)
        leaf, given = self._replaying.source(value, learns)
        if learns and self._replaying.become(tensor, leaf):
            self._backward.settle(tensor)
            given = tensor
        found = Source(Role.OUTPUT, segment.call, (slot,), leaf, given, learns, inner=segment.inner.get(slot))
        if mine is None and learns:
            found.made_by = segment.recorded
            self._backward.returning_more.append(segment.recorded)
        found.is_captured = given is tensor and self._recorded.is_captured(segment.recorded, mine)
        return found

    def passed_through(self, segment: Segment, outputs: Named) -> dict[str, str]:
        """Return the arguments that a call returned as they were, by the slots of results, where A's did so too or returned nothing there.

        The code around goes on with its own tensor. What A recorded as the gradient of such a result is that of all who use the tensor, those
        before the call among them.
        """
        inputs = self._recorded.slots(segment.recorded, Role.INPUT).values()
        return {
            slot: given.slot
            for slot, tensor in outputs
            for given in segment.given
            if tensor is given.tensor
            and not self._was_written(given)
            and (slot not in segment.returned or are_equal(segment.returned[slot], inputs))
        }

    def _written_in_place(self, segment: Segment, returned: Any, value: Any) -> Any:
        """Return what stands for a tensor that a module returned: what it was given itself, if it wrote to that in place."""
        for given in segment.given:
            if returned is given.tensor and self._was_written(given):
                with contextlib.suppress(NotImplementedError):
                    self._replaying.write(given.arrived, value)
                    given.is_settled = True
                    return given.arrived
        return value

    def _write_what_is_not_returned(self, segment: Segment) -> None:
        """Let what a module wrote to its arguments, and did not return, be written to those of its caller."""
        for given in segment.given:
            if not given.is_settled and given.version is not None and self._was_written(given):
                with contextlib.suppress(Exception):  # a leaf, or memory that is read only
                    self._replaying.write(given.arrived, self._replaying.without_graph(given.tensor))

    def _was_written(self, given: Given) -> bool:
        version = self._replaying.adapter.version_of(given.tensor)
        if version is not None:
            return version != given.version
        return not np.array_equal(self._tensors.values(given.tensor), self._tensors.values(given.leaf))
