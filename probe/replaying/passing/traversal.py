"""One pass through B: every call of a paired module is handed what A's was given, and its caller gets what A's returned."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from probe.adapters.replaying import Run
from probe.comparison.steps.step_half import Call as RecordedCall
from probe.recorder.calls import Call
from probe.records import Role
from probe.replaying.partners import Partner
from probe.replaying.passing.again import buffers_kept, made_again, run_again
from probe.replaying.passing.arguments import bound, names_of
from probe.replaying.passing.backward import Backward
from probe.replaying.passing.containers import built
from probe.replaying.passing.handing import Handing
from probe.replaying.passing.left import Left, Why, left_by
from probe.replaying.passing.plan import Plan
from probe.replaying.passing.segments import Given, Segment, Source, Target
from probe.replaying.passing.slots import distance
from probe.replaying.passing.tensors import Named, Tensors
from probe.replaying.passing.writing import Written

_CLEARLY = 10.0
"""how much closer another call's inputs must be before a call is taken for that one"""


class Traversal:
    """A pass under way.

    Parameters
    ----------
    plan
        what to do
    written
        where the results go
    """

    def __init__(self, plan: Plan, written: Written) -> None:
        self.plan, self.written, self.tensors = plan, written, Tensors(plan)
        self.replaying, self.adapter, self.recorded = plan.replaying, plan.replaying.adapter, plan.recorded
        self.backward = Backward(plan, self.tensors, written, self._leave_backward, self._skip)
        self._handing = Handing(plan, self.tensors, self.backward, self._skip)
        self.modules = {written.modules[id(each.module)]: each.module for each in self.adapter.modules(plan.model)}
        self.left: list[Left] = []
        self.unpulled: set[tuple[int, int, int]] = set()
        """calls of A, by micro, module and number, through which nothing was pulled back"""
        self.skipped: set[tuple[int, int, int, Role, str]] = set()
        """tensors that cannot be held against A's, by the call in B, the role, and the slot"""
        self._of_a: dict[int, list[int]] = {}
        for index, partner in plan.partners.items():
            self._of_a.setdefault(partner.module, []).append(index)
        self._done: dict[tuple[int, int], bool] = {}
        """calls of A, by row, that a module of B has made: whether to its end"""
        self._transparent: set[int] = set()
        """modules that add up what A's are given the sum of, and return it too: they are part of the code around them"""
        self._stack: list[Segment] = []
        self._handed: dict[int, weakref.ref[Any]] = {}
        """what modules were given, by its id: hooks may get hold of it, and code further out may return it"""
        self._micro = 0

    # What the training called

    def run(self) -> None:
        """Make all calls of the step, from the outermost ones on; what could not be run is left to those inside of it."""
        self._set_modes()
        with self.replaying.intercepted(self._called):
            for call in self.recorded.calls:
                for index in self._of_a.get(call.module, ()):
                    if (call.row, index) not in self._done:
                        self._reach(call, index)

    def _set_modes(self) -> None:
        """Put every module into the mode that A's was in; those without a counterpart into that of the module around them."""
        first: dict[int, bool] = {}
        for call in self.recorded.calls:
            first.setdefault(call.module, call.training)
        found: dict[str, bool] = {}
        for named in self.adapter.modules(self.plan.model):
            partner = self.plan.partners.get(self.written.modules[id(named.module)])
            around = found.get(named.path.rpartition(".")[0], next(iter(first.values()), True))
            mode = around if partner is None else first.get(partner.module, around)
            found[named.path] = mode
            if self.adapter.is_training(named.module) is not mode:
                self.replaying.set_training(named.module, mode)

    def _reach(self, call: RecordedCall, index: int) -> None:
        """Make a call that B's code has not made, unless that is what is to be said."""
        around = [each for each in self._around(call) if each.module in self._of_a]
        if any(self._done.get((each.row, there)) for each in around for there in self._of_a[each.module]):
            self._leave(call, index, Left(call, Why.NOT_CALLED))
            return
        module, rows = self.modules[index], self.recorded.slots(call.key, Role.INPUT)
        lacking = tuple(slot for slot, row in rows.items() if not self.recorded.has_values(row))
        given = {} if around else dict(self.plan.inputs)
        if lacking and not given:
            self._leave(call, index, Left(call, Why.NO_VALUES, slots=lacking))
            return
        tensors = {slot: self.tensors.of(row, None) for slot, row in rows.items() if slot not in lacking}
        args, kwargs, missing = bound(module, *built(tensors), given)
        if missing:
            self._leave(call, index, Left(call, Why.NO_ARGUMENTS, slots=missing))
            return
        self._micro, self._stack = call.micro, []
        try:
            with self.replaying.under(call.grad_enabled, ""):
                module(*args, **kwargs)
        except Exception as error:  # noqa: BLE001  B's code, with arguments that it may not expect
            self._leave(call, index, left_by(call, error))
        finally:
            self._stack, self._handed = [], {}
            self.backward.settle()
            self.written.forget()

    def _around(self, call: RecordedCall) -> Iterator[RecordedCall]:
        """Yield the calls around one."""
        at = self.recorded.caller(call)
        while at is not None:
            yield at
            at = self.recorded.caller(at)

    def _leave(self, call: RecordedCall, index: int, left: Left) -> None:
        """Note what was not replayed, once."""
        self._done.setdefault((call.row, index), False)
        if not any(each.call is call for each in self.left):
            self.left.append(left)
        self.unpulled.add(call.key)

    def _leave_backward(self, left: Left) -> None:
        self.left.append(left)
        self.unpulled.add(left.call.key)

    def _skip(self, call: Call, role: Role, slot: str) -> None:
        self.skipped.add((call.micro, call.module, call.number, role, slot))

    # Every call of a module of B

    def _called(self, module: Any, run: Run, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        index = self.written.modules.get(id(module))
        partner = None if index is None else self.plan.partners.get(index)
        if index is None or partner is None or index in self._transparent:
            return run(*args, **kwargs)
        around = self._stack[-1] if self._stack else None
        if around is not None and around.again >= 0:
            return made_again(self.tensors, around, args, kwargs)
        arrived = self.tensors.named(args) + self.tensors.named(kwargs)
        call = self._chosen(index, partner, module, arrived)
        if call is None:  # part of the code around it
            return run(*args, **kwargs)
        if not self.plan.substitutes:
            return self._watched(index, call, around, module, run, args, kwargs)
        rows = self.tensors.rows(call.key, Role.INPUT, arrived, names_of(module))
        if self.tensors.added_inside(arrived, rows):
            self._transparent.add(index)
            self._leave(call, index, Left(call, Why.NO_COUNTERPART))
            return run(*args, **kwargs)
        self._done[call.row, index] = False
        segment = self._begun(index, call, around, module, arrived)
        try:
            segment.arrived = self._standing_in(segment, module, arrived, rows)
            output = self._ran(segment, partner, run, args, kwargs, arrived)
            self._done[call.row, index] = True
        except Exception as error:  # noqa: BLE001  B's code, with arguments that it may not expect
            self._leave(call, index, left_by(call, error))
            self.written.end(segment.call, raised=True)
            output = self._returned_by_a(call)
            if output is None:
                raise
        return output if around is None else self._handing.back(segment, partner, around, output)

    def _watched(
        self, index: int, call: RecordedCall, around: Segment | None, module: Any, run: Run, args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:  # fmt: skip
        """Let a module run as it does, and write down what it returns."""
        self._done[call.row, index] = False
        segment = self._begun(index, call, around, module, [])
        self._stack.append(segment)
        with self.replaying.under(False, segment.call.autocast):
            output = run(*args, **kwargs)
        self._stack.pop()
        self._done[call.row, index] = True
        self.written.end(segment.call)
        for slot, tensor in self.tensors.named(output):
            self.written.tensor(Role.OUTPUT, segment.call, slot, tensor)
        return output

    def _chosen(self, index: int, partner: Partner, module: Any, arrived: Named) -> RecordedCall | None:
        """Return the call of A that this one is: the next, unless another one was clearly given what this one is."""
        calls = [
            call for call in self.recorded.calls_of(self._micro, partner.module) if (call.row, index) not in self._done
        ]
        if len(calls) < 2:
            return calls[0] if calls else None
        distances = [self._distance(call, module, arrived) for call in calls]
        nearest = min(range(len(calls)), key=distances.__getitem__)
        return calls[nearest] if _CLEARLY * distances[nearest] < distances[0] else calls[0]

    def _distance(self, call: RecordedCall, module: Any, arrived: Named) -> float:
        """Return how far what has arrived is from what a call of A was given."""
        tensors = dict(arrived)
        rows = self.tensors.rows(call.key, Role.INPUT, arrived, names_of(module))
        found = [distance(self.recorded.values(row), self.tensors.values(tensors[slot])) for slot, row in rows.items()]
        return max(found, default=np.inf)

    def _begun(
        self, index: int, call: RecordedCall, around: Segment | None, module: Any, arrived: Named
    ) -> Segment:  # fmt: skip
        """Begin a call, and write down what has arrived: the code around it made that of A's tensors."""
        here = self.written.begin(
            index, call.micro, call.number, None if around is None else around.call, call.training, call.grad_enabled,
            call.autocast if self.plan.casts else "",
        )  # fmt: skip
        for slot, tensor in arrived:
            self.written.tensor(Role.INPUT, here, slot, tensor)
            if around is not None:
                around.targets.append(Target(Role.INPUT, here, slot, tensor, self.replaying.place(tensor)))
        return Segment(here, call, index, module, call.grad_enabled)

    def _ran(
        self, segment: Segment, partner: Partner, run: Run, args: tuple[Any, ...], kwargs: dict[str, Any], arrived: Named
    ) -> Any:  # fmt: skip
        """Run a module with A's tensors, forwards and backwards; return what it returned."""
        depth, module, call = len(self._stack), segment.module, segment.recorded
        if self.adapter.is_training(module) is not call.training:
            self.replaying.set_training(module, call.training)
        try:
            with self.replaying.under(segment.grad, segment.call.autocast):
                self._give(segment, arrived)
                given = {each.slot: each.tensor for each in segment.given}
                self._stack.append(segment)
                output = run(*self.tensors.put(args, given), **self.tensors.put(kwargs, given))
        finally:
            del self._stack[depth:]
        self.written.end(segment.call)
        outputs = self.tensors.named(output)
        segment.returned = self.tensors.rows(call.key, Role.OUTPUT, outputs, partner=partner)
        segment.through = self._handing.passed_through(segment, outputs)
        for slot in (slot for slot, tensor in outputs if self._is_from_inside(segment, tensor)):
            segment.foreign.add(slot)
            self._skip(segment.call, Role.GRAD_OUTPUT, slot)
        for slot, tensor in outputs:
            self.written.tensor(Role.OUTPUT, segment.call, slot, tensor)
        if segment.grad and self.recorded.has_backward:

            def again(new: Sequence[Any]) -> list[Any]:
                return run_again(self.tensors, self._stack, segment, run, args, kwargs, new)

            with buffers_kept(self.replaying, module):
                self.backward.pull(segment, partner, outputs, again, is_outermost=not depth)
        return output

    def _give(self, segment: Segment, arrived: Named) -> None:
        """Make A's tensors for a call; what has no counterpart in A stays what it is."""
        rows = segment.arrived
        known: dict[tuple[int, object], tuple[Given, Source]] = {}
        for slot, tensor in arrived:
            row = rows.get(slot, -1)
            key = id(tensor), self.recorded.digest(row) if row >= 0 else None
            if key not in known:
                value = tensor if row < 0 else self.tensors.of(row, tensor, segment.call.autocast)
                learns = segment.grad and self.tensors.learns(tensor, row)
                leaf, given = self.replaying.source(value, learns)
                source = Source(Role.INPUT, segment.call, slot, leaf, given, learns)
                if learns:
                    with contextlib.suppress(TypeError):  # not all frameworks' tensors can be referred to weakly
                        self._handed[id(given)] = weakref.ref(given)
                segment.sources.append(source)
                known[key] = Given(slot, leaf, given, tensor, self.adapter.version_of(given), slot), source
                segment.given.append(known[key][0])
            else:
                first, source = known[key]
                source.also += (slot,)
                segment.given.append(first.under(slot))

    def _is_from_inside(self, segment: Segment, tensor: Any) -> bool:
        """Tell whether a tensor is what a module inside was given: it is part of another graph than that of this call."""
        known = self._handed.get(id(tensor))
        return known is not None and known() is tensor and not segment.is_own_input(tensor)

    def _standing_in(self, segment: Segment, module: Any, arrived: Named, rows: dict[str, int]) -> dict[str, int]:
        """Return the rows of A that are given in the place of what has arrived: not those that hold a mask on one side alone."""
        info = self.recorded.reader.modules[segment.recorded.module]
        others = [] if info.class_name == type(module).__name__ else self.tensors.with_other_masks(arrived, rows)
        for slot in others:
            self._skip(segment.call, Role.INPUT, slot)
        return {slot: row for slot, row in rows.items() if slot not in others}

    def _returned_by_a(self, call: RecordedCall) -> Any:
        """Return what A's call returned where B's raised: only a single tensor says in which form."""
        rows = self.recorded.slots(call.key, Role.OUTPUT)
        if list(rows) != ["0"] or not self.recorded.has_values(rows["0"]):
            return None
        return self.tensors.of(rows["0"], None)
