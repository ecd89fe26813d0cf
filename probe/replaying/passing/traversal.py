"""One pass through B: every call of a paired module is handed what A's was given, and its caller gets what A's returned."""

from __future__ import annotations

import contextlib
import inspect
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from probe.adapters.replaying import Run
from probe.comparison.steps.step_half import Call as RecordedCall
from probe.recorder.calls import Call
from probe.records import Role
from probe.replaying.partners import Partner
from probe.replaying.passing.backward import Backward
from probe.replaying.passing.containers import built
from probe.replaying.passing.left import Left, Why, left_by
from probe.replaying.passing.plan import Plan
from probe.replaying.passing.segments import Given, Inside, Segment, Source, Target
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
        args, kwargs, missing = _bound(module, *built(tensors), given)
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
            return self._made_again(around, args, kwargs)
        arrived = self.tensors.named(args) + self.tensors.named(kwargs)
        call = self._chosen(index, partner, module, arrived)
        if call is None:  # part of the code around it
            return run(*args, **kwargs)
        if not self.plan.substitutes:
            return self._watched(index, call, around, module, run, args, kwargs)
        rows = self.tensors.rows(call.key, Role.INPUT, arrived, _names(module))
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
        return output if around is None else self._handed_back(segment, partner, around, output)

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
        rows = self.tensors.rows(call.key, Role.INPUT, arrived, _names(module))
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
        segment.through = self._passed_through(segment, outputs)
        for slot in (slot for slot, tensor in outputs if self._is_from_inside(segment, tensor)):
            segment.foreign.add(slot)
            self._skip(segment.call, Role.GRAD_OUTPUT, slot)
        for slot, tensor in outputs:
            self.written.tensor(Role.OUTPUT, segment.call, slot, tensor)
        if segment.grad and self.recorded.has_backward:

            def again(new: Sequence[Any]) -> list[Any]:
                return self._again(segment, run, args, kwargs, new)

            with self._as_after_one_run(module):
                self.backward.pull(segment, partner, outputs, again, is_outermost=not depth)
        return output

    @contextlib.contextmanager
    def _as_after_one_run(self, module: Any) -> Iterator[None]:
        """Leave the buffers of a module as they are, where differentiating runs it once more."""
        found = (
            [each.tensor for each in self.adapter.parameters(module) if each.is_buffer]
            if self.replaying.runs_again
            else []
        )
        before = [self.tensors.values(each) for each in found]
        yield
        for buffer, values in zip(found, before, strict=True):
            self.adapter.assign(buffer, values)

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

    # What the code around goes on with

    def _handed_back(self, segment: Segment, partner: Partner, around: Segment, output: Any) -> Any:
        """Return what A's call returned, in the form of what B's did; the code around goes on with that."""
        self.backward.hand_on(segment, partner, around)
        inside, by = Inside(segment.call, None, through=segment.through), dict[str, Any]()
        known: dict[int, Source] = {}
        for slot, tensor in self.tensors.named(output):
            if slot in segment.through:
                by[slot] = next(each.arrived for each in segment.given if each.slot == segment.through[slot])
                self._skip(segment.call, Role.GRAD_OUTPUT, slot)
            elif id(tensor) in known:
                known[id(tensor)].also += (slot,)
                by[slot] = known[id(tensor)].given
            else:
                source = self._source_of(segment, partner, around, slot, tensor)
                known[id(tensor)] = source
                by[slot] = self._written_in_place(segment, tensor, source.given)
        around.sources += known.values()
        inside.sources += known.values()
        self._write_what_is_not_returned(segment)
        inside.output = self.tensors.put(output, by)
        around.inside.append(inside)
        return inside.output

    def _source_of(self, segment: Segment, partner: Partner, around: Segment, slot: str, tensor: Any) -> Source:
        """Return what stands for something that a call returned; whoever got hold of that by a hook goes on with A's values too."""
        row = segment.returned.get(slot, -1)
        value = tensor if row < 0 else self.tensors.of(row, tensor, segment.call.autocast, partner)
        learns = around.grad and self.tensors.learns(tensor, row)
        leaf, given = self.replaying.source(value, learns)
        if learns and self.replaying.become(tensor, leaf):
            self.backward.release(tensor)
            given = tensor
        found = Source(Role.OUTPUT, segment.call, slot, leaf, given, learns, inner=segment.inner.get(slot))
        if row < 0 and learns:
            found.made_by = segment.recorded
            self.backward.returning_more.append(segment.recorded)
        found.is_captured = given is tensor and self.recorded.is_captured(segment.recorded, row)
        return found

    def _passed_through(self, segment: Segment, outputs: Named) -> dict[str, str]:
        """Return the arguments that a call returned as they were, by the slots of results, where A's did so too or returned nothing there.

        The code around goes on with its own tensor. What A recorded as the gradient of such a result is that of all who use the tensor, those
        before the call among them.
        """
        inputs = self.recorded.slots(segment.recorded.key, Role.INPUT).values()
        return {
            slot: given.slot
            for slot, tensor in outputs
            for given in segment.given
            if tensor is given.tensor
            and not self._was_written(given)
            and (slot not in segment.returned or self.recorded.are_equal(segment.returned[slot], inputs))
        }

    def _written_in_place(self, segment: Segment, returned: Any, value: Any) -> Any:
        """Return what stands for a tensor that a module returned: what it was given itself, if it wrote to that in place."""
        for given in segment.given:
            if returned is given.tensor and self._was_written(given):
                with contextlib.suppress(NotImplementedError):
                    self.replaying.write(given.arrived, value)
                    given.is_settled = True
                    return given.arrived
        return value

    def _write_what_is_not_returned(self, segment: Segment) -> None:
        """Let what a module wrote to its arguments, and did not return, be written to those of its caller."""
        for given in segment.given:
            if not given.is_settled and given.version is not None and self._was_written(given):
                with contextlib.suppress(Exception):  # a leaf, or memory that is read only
                    self.replaying.write(given.arrived, self.replaying.without_graph(given.tensor))

    def _was_written(self, given: Given) -> bool:
        version = self.adapter.version_of(given.tensor)
        if version is not None:
            return version != given.version
        return not np.array_equal(self.tensors.values(given.tensor), self.tensors.values(given.leaf))

    def _returned_by_a(self, call: RecordedCall) -> Any:
        """Return what A's call returned where B's raised: only a single tensor says in which form."""
        rows = self.recorded.slots(call.key, Role.OUTPUT)
        if list(rows) != ["0"] or not self.recorded.has_values(rows["0"]):
            return None
        return self.tensors.of(rows["0"], None)

    # Once more, to be differentiated as a function

    def _again(
        self, segment: Segment, run: Run, args: tuple[Any, ...], kwargs: dict[str, Any], new: Sequence[Any]
    ) -> list[Any]:
        """Run the code of a segment with other sources; the calls inside return what they did. Return the targets."""
        learning = [each for each in segment.sources if each.learns]
        segment.renewed = {id(source): tensor for source, tensor in zip(learning, new, strict=True)}
        own = {each.slot: segment.renewed[id(each)] for each in learning if each.role is Role.INPUT}
        given = {each.slot: own.get(each.first, each.tensor) for each in segment.given}
        segment.again, segment.handed = 0, {}
        self._stack.append(segment)
        try:
            output = run(*self.tensors.put(args, given), **self.tensors.put(kwargs, given))
        finally:
            self._stack.pop()
            segment.again = -1
        for slot, tensor in self.tensors.named(output):
            segment.handed[id(segment.call), slot] = tensor
        return [segment.handed[id(each.call), each.slot] for each in segment.targets if each.is_known]

    def _made_again(self, around: Segment, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return once more what a call inside of a segment returned."""
        inside = around.inside[around.again]
        around.again += 1
        handed = dict(self.tensors.named(args) + self.tensors.named(kwargs))
        around.handed |= {(id(inside.call), slot): tensor for slot, tensor in handed.items()}
        by = {slot: handed[mine] for slot, mine in inside.through.items()}
        for source in inside.sources:
            value = around.renewed.get(id(source), source.given)
            by |= dict.fromkeys((source.slot, *source.also), value)
        return self.tensors.put(inside.output, by)


def _function_of(module: Any) -> Callable[..., Any]:
    return getattr(module, "forward", None) or module.construct


def _names(module: Any) -> list[str]:
    """Return the names of a module's parameters that may be given by position."""
    kinds = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    try:
        return [each.name for each in inspect.signature(_function_of(module)).parameters.values() if each.kind in kinds]
    except (TypeError, ValueError):
        return []


def _bound(
    module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], given: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], tuple[str, ...]]:
    """Return arguments that a module takes, and the names of those that it lacks.

    What A calls by names that B does not have stands for what B lacks, in its order.
    """
    try:
        known = inspect.signature(_function_of(module)).parameters
    except (TypeError, ValueError):
        return args, {**kwargs, **given}, ()
    several = inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL
    takes_all = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in known.values())
    positional = _names(module)[: len(args)]
    everything = {**kwargs, **given}
    named = {name: value for name, value in everything.items() if name in known and name not in positional}
    lacking = [
        each.name
        for each in known.values()
        if each.default is each.empty and each.kind not in several and each.name not in {*positional, *named}
    ]
    left = [name for name in kwargs if name not in known]
    renamed = dict(zip(lacking, left, strict=False))
    named |= {name: kwargs[there] for name, there in renamed.items()}
    if takes_all:
        named |= {name: everything[name] for name in everything if name not in known and name not in renamed.values()}
    return args, named, tuple(name for name in lacking if name not in renamed)
