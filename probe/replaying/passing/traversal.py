"""One pass through B: every call of a paired module is handed what A's was given, and its caller gets what A's returned."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from probe.adapters.replaying import Replaying, Run
from probe.records import Role
from probe.replaying.partners import Partner
from probe.replaying.passing.backward import Backward
from probe.replaying.passing.caches import Caches
from probe.replaying.passing.containers import built
from probe.replaying.passing.handing import Handing
from probe.replaying.passing.left import Left, Passed, Why, left_by
from probe.replaying.passing.segments import Given, Made, Segment, Source, Target
from probe.replaying.passing.slots import distance
from probe.replaying.passing.tensors import Named, Tensors
from probe.replaying.passing.writing import Written
from probe.replaying.prepared import Prepared
from probe.replaying.recorded import digest
from probe.verdict.side import Call as RecordedCall
from probe.verdict.tensors import Tensor

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

    def __init__(self, plan: Prepared, written: Written) -> None:
        self.plan, self.written, self.tensors = plan, written, Tensors(plan)
        self.replaying, self.adapter, self.recorded = plan.replaying, plan.replaying.adapter, plan.recorded
        self.passed = Passed()
        self.backward = Backward(plan, self.tensors, written, self.passed)
        self._handing = Handing(plan, self.tensors, self.backward)
        self.caches, self._inputs = Caches(self.adapter, self.recorded), dict(plan.inputs)
        with contextlib.suppress(Exception):  # not all objects can be copied; a cache has to be a new one
            self._inputs = copy.deepcopy(self._inputs)
        self.modules = {written.modules[id(each.module)]: each.module for each in self.adapter.modules(plan.model)}
        self._of_a: dict[int, list[int]] = {}
        for index, partner in plan.partners.items():
            self._of_a.setdefault(partner.module, []).append(index)
        self._done: dict[tuple[RecordedCall, int], bool] = {}
        """calls of A that a module of B has made: whether to its end"""
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
                    if (call, index) not in self._done:
                        self._reach(call, index)

    def _set_modes(self) -> None:
        """Put every module into the mode that A's was in; those without a counterpart into that of the module around them."""
        first: dict[int, bool] = {}
        for call in self.recorded.calls:
            first.setdefault(call.module, call.is_training)
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
        around = [each for each in call.callers() if each.module in self._of_a]
        is_made = any(self._done.get((each, there)) for each in around for there in self._of_a[each.module])
        if is_made and around[0] not in self.passed.uncached:
            self._leave(call, index, Left(call, Why.NOT_CALLED))
            return
        module, inputs = self.modules[index], self.recorded.slots(call, Role.INPUT)
        lacking = tuple(slot for slot, mine in inputs.items() if not mine.has_values)
        given = {} if around else self.caches.given(index, call) | self._inputs
        if given and self.caches.is_behind(call):
            self.passed.carried.add(call.micro)
        if lacking and not given:
            self._leave(call, index, Left(call, Why.NO_VALUES, slots=lacking))
            return
        tensors = {slot: self.tensors.of(mine, None) for slot, mine in inputs.items() if slot not in lacking}
        args, kwargs, missing = _bound(module, *built(tensors), given)
        if missing:
            self._leave(call, index, Left(call, Why.NO_ARGUMENTS, slots=missing))
            return
        self._micro, self._stack = call.micro, []
        try:
            with self.replaying.under(call.has_gradients, ""):
                self.caches.keep(index, module(*args, **kwargs), _parameters_of(module) or ())
        except Exception as error:  # noqa: BLE001  B's code, with arguments that it may not expect
            self._leave(call, index, left_by(call, error))
        finally:
            self._stack, self._handed = [], {}
            self.backward.settle()
            self.written.forget()

    def _leave(self, call: RecordedCall, index: int, left: Left) -> None:
        """Note what was not replayed, once."""
        self._done.setdefault((call, index), False)
        if left.why is Why.RAISED and call in self.passed.behind:
            self.passed.uncached.add(call)
            self.passed.raised = self.passed.raised or left.error
        elif not any(each.call is call for each in self.passed.left):
            self.passed.left.append(left)
        self.passed.unpulled.add(call)

    # Every call of a module of B

    def _called(self, module: Any, run: Run, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        index = self.written.modules.get(id(module))
        partner = None if index is None else self.plan.partners.get(index)
        if index is None or partner is None or index in self._transparent:
            return run(*args, **kwargs)
        around = self._stack[-1] if self._stack else None
        if around is not None and around.again >= 0:
            return _made_again(self.tensors, around, args, kwargs)
        arrived, made = self.tensors.named(args) + self.tensors.named(kwargs), Made(module, run, args, kwargs)
        call = self._chosen(index, partner, module, arrived)
        if call is None:  # part of the code around it
            return run(*args, **kwargs)
        if not self.plan.substitutes:
            return self._watched(index, call, around, made)
        if self.caches.may_read(call, module, _parameters_of(module) or ()):
            self.passed.behind.add(call)
        counterparts = self.tensors.counterparts(call, Role.INPUT, arrived, _names_of(module))
        if self.tensors.added_inside(arrived, counterparts):
            self._transparent.add(index)
            self._leave(call, index, Left(call, Why.NO_COUNTERPART))
            return run(*args, **kwargs)
        self._done[call, index] = False
        segment = self._begun(index, call, around, made, arrived)
        try:
            segment.arrived = self._standing_in(segment, arrived, counterparts)
            output = self._ran(segment, partner, arrived)
            self._done[call, index] = True
        except Exception as error:  # noqa: BLE001  B's code, with arguments that it may not expect
            self._leave(call, index, left_by(call, error))
            self.written.end(segment.call, raised=True)
            output = self._returned_by_a(call)
            if output is None:
                raise
        return output if around is None else self._handing.back(segment, partner, around, output)

    def _watched(self, index: int, call: RecordedCall, around: Segment | None, made: Made) -> Any:
        """Let a module run as it does, and write down what it returns."""
        self._done[call, index] = False
        segment = self._begun(index, call, around, made, [])
        self._stack.append(segment)
        with self.replaying.under(False, segment.call.autocast):
            output = made.run(*made.args, **made.kwargs)
        self._stack.pop()
        self._done[call, index] = True
        self.written.end(segment.call)
        for slot, tensor in self.tensors.named(output):
            self.written.tensor(Role.OUTPUT, segment.call, slot, tensor)
        return output

    def _chosen(self, index: int, partner: Partner, module: Any, arrived: Named) -> RecordedCall | None:
        """Return the call of A that this one is: the next, unless another one was clearly given what this one is."""
        calls = [
            call for call in self.recorded.calls_of(self._micro, partner.module) if (call, index) not in self._done
        ]
        if len(calls) < 2:
            return calls[0] if calls else None
        distances = [self._distance(call, module, arrived) for call in calls]
        nearest = min(range(len(calls)), key=distances.__getitem__)
        return calls[nearest] if _CLEARLY * distances[nearest] < distances[0] else calls[0]

    def _distance(self, call: RecordedCall, module: Any, arrived: Named) -> float:
        """Return how far what has arrived is from what a call of A was given."""
        tensors = dict(arrived)
        counterparts = self.tensors.counterparts(call, Role.INPUT, arrived, _names_of(module)).items()
        pairs = ((self.recorded.values(mine), self.tensors.values(tensors[slot])) for slot, mine in counterparts)
        return max((distance(*pair) for pair in pairs), default=np.inf)

    def _begun(self, index: int, call: RecordedCall, around: Segment | None, made: Made, arrived: Named) -> Segment:
        """Begin a call, and write down what has arrived: the code around it made that of A's tensors."""
        here = self.written.begin(
            index, call.micro, call.number, None if around is None else around.call, call.is_training, call.has_gradients,
            call.autocast if self.plan.casts else "",
        )  # fmt: skip
        for slot, tensor in arrived:
            self.written.tensor(Role.INPUT, here, slot, tensor)
            if around is not None:
                around.targets.append(Target(Role.INPUT, here, slot, tensor, self.replaying.place(tensor)))
        return Segment(here, call, index, made, call.has_gradients)

    def _ran(self, segment: Segment, partner: Partner, arrived: Named) -> Any:
        """Run a module with A's tensors, forwards and backwards; return what it returned."""
        depth, module, call = len(self._stack), segment.made.module, segment.recorded
        if self.adapter.is_training(module) is not call.is_training:
            self.replaying.set_training(module, call.is_training)
        try:
            with self.replaying.under(segment.grad, segment.call.autocast):
                self._give(segment, arrived)
                given = {each.slot: each.tensor for each in segment.given}
                self._stack.append(segment)
                output = self.tensors.ran(segment.made, given)
        finally:
            del self._stack[depth:]
        self.written.end(segment.call)
        outputs = self.tensors.named(output)
        segment.returned = self.tensors.counterparts(call, Role.OUTPUT, outputs, partner=partner)
        segment.through = self._handing.passed_through(segment, outputs)
        for slot in (slot for slot, tensor in outputs if self._is_from_inside(segment, tensor)):
            segment.foreign.add(slot)
            self.passed.skip(segment.call, Role.GRAD_OUTPUT, slot)
        for slot, tensor in outputs:
            self.written.tensor(Role.OUTPUT, segment.call, slot, tensor)
        if segment.grad and self.recorded.has_backward:
            again = functools.partial(_run_again, self.tensors, self._stack, segment)
            with _buffers_kept(self.replaying, module):
                self.backward.pull(segment, partner, outputs, again, is_outermost=not depth)
        return output

    def _give(self, segment: Segment, arrived: Named) -> None:
        """Make A's tensors for a call; what has no counterpart in A stays what it is."""
        known: dict[tuple[int, object], tuple[Given, Source]] = {}
        for slot, tensor in arrived:
            mine = segment.arrived.get(slot)
            key = id(tensor), digest(mine) if mine is not None else None
            if key not in known:
                value = tensor if mine is None else self.tensors.of(mine, tensor, segment.call.autocast)
                learns = segment.grad and self.tensors.learns(tensor, mine)
                leaf, given = self.replaying.source(value, learns)
                source = Source(Role.INPUT, segment.call, (slot,), leaf, given, learns)
                if learns:
                    with contextlib.suppress(TypeError):  # not all frameworks' tensors can be referred to weakly
                        self._handed[id(given)] = weakref.ref(given)
                segment.sources.append(source)
                known[key] = Given(slot, leaf, given, tensor, self.adapter.version_of(given), slot), source
                segment.given.append(known[key][0])
            else:
                first, source = known[key]
                source.slots += (slot,)
                segment.given.append(replace(first, slot=slot))

    def _is_from_inside(self, segment: Segment, tensor: Any) -> bool:
        """Return True if a tensor is what a module inside was given: it is part of another graph than that of this call."""
        known = self._handed.get(id(tensor))
        return known is not None and known() is tensor and not segment.is_own_input(tensor)

    def _standing_in(self, segment: Segment, arrived: Named, counterparts: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return what of A is given in the place of what has arrived: not those that hold a mask on one side alone."""
        is_other_class = segment.recorded.class_name != type(segment.made.module).__name__
        others = self.tensors.with_other_masks(arrived, counterparts) if is_other_class else []
        for slot in others:
            self.passed.skip(segment.call, Role.INPUT, slot)
        return {slot: mine for slot, mine in counterparts.items() if slot not in others}

    def _returned_by_a(self, call: RecordedCall) -> Any:
        """Return what A's call returned where B's raised: only a single tensor says in which form."""
        outputs = self.recorded.slots(call, Role.OUTPUT)
        if list(outputs) != ["0"] or not outputs["0"].has_values:
            return None
        return self.tensors.of(outputs["0"], None)


# Modules that run once more, because a framework differentiates functions and keeps no graph


def _run_again(tensors: Tensors, stack: list[Segment], segment: Segment, new: Sequence[Any]) -> list[Any]:
    """Run the code of a segment with other sources; the calls inside return what they did. Return the targets."""
    learning = [each for each in segment.sources if each.learns]
    segment.renewed = {id(source): tensor for source, tensor in zip(learning, new, strict=True)}
    own = {each.slots[0]: segment.renewed[id(each)] for each in learning if each.role is Role.INPUT}
    given = {each.slot: own.get(each.first, each.tensor) for each in segment.given}
    segment.again, segment.handed = 0, {}
    stack.append(segment)
    try:
        output = tensors.ran(segment.made, given)
    finally:
        stack.pop()
        segment.again = -1
    for slot, tensor in tensors.named(output):
        segment.handed[id(segment.call), slot] = tensor
    return [segment.handed[id(each.call), each.slot] for each in segment.targets if each.is_known]


def _made_again(tensors: Tensors, around: Segment, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return once more what a call inside of a segment returned."""
    inside = around.inside[around.again]
    around.again += 1
    handed = dict(tensors.named(args) + tensors.named(kwargs))
    around.handed |= {(id(inside.call), slot): tensor for slot, tensor in handed.items()}
    by = {slot: handed[mine] for slot, mine in inside.through.items()}
    for source in inside.sources:
        value = around.renewed.get(id(source), source.given)
        by |= dict.fromkeys(source.slots, value)
    return tensors.put(inside.output, by)


@contextlib.contextmanager
def _buffers_kept(replaying: Replaying, module: Any) -> Iterator[None]:
    """Leave the buffers of a module as they are, where differentiating runs it once more."""
    adapter = replaying.adapter
    found = [each.tensor for each in adapter.parameters(module) if each.is_buffer] if replaying.runs_again else []
    with adapter.quiet():
        before = [adapter.values(each) for each in found]
    yield
    for buffer, values in zip(found, before, strict=True):
        adapter.assign(buffer, values)


# The arguments that a module is called with


def _parameters_of(module: Any) -> Mapping[str, inspect.Parameter] | None:
    """Return the parameters of a module's own function; None where Python does not tell."""
    with contextlib.suppress(TypeError, ValueError):
        return inspect.signature(getattr(module, "forward", None) or module.construct).parameters
    return None


def _names_of(module: Any) -> list[str]:
    """Return the names of a module's parameters that may be given by position."""
    kinds = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    return [each.name for each in (_parameters_of(module) or {}).values() if each.kind in kinds]


def _bound(
    module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], given: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], tuple[str, ...]]:
    """Return arguments that a module takes, and the names of those that it lacks.

    What A calls by names that B does not have stands for what B lacks, in its order.
    """
    known, everything = _parameters_of(module), {**kwargs, **given}
    if known is None:
        return args, everything, ()
    several = inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL
    takes_all = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in known.values())
    positional = _names_of(module)[: len(args)]
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
