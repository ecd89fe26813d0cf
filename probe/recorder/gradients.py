"""Gradients of what modules were given and returned, and of parameters as backward leaves them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from probe.recorder.calls import Call, Calls, Input
from probe.recorder.measuring import Measuring
from probe.recorder.run import Run, guarded
from probe.records import Phase, Role

Removal = Callable[[], None]
Found = Callable[[Any], None]
_VIEWS = 1000
"""views of a step that were written to, and are kept in mind"""


@dataclass(slots=True)
class _View:
    """A view whose gradient is awaited."""

    writes: Any
    """has its versions"""
    version: int | None
    module: int
    found: bool = False


class _OfOutput:
    """The hook for the gradient of a call's output. There are hundreds at a time, so it is one object: a partial would be three."""

    __slots__ = ("_arrived", "_call", "_seq", "_slot")

    def __init__(self, arrived: Callable[[Call, str, int, Any], None], call: Call, slot: str, seq: int) -> None:
        self._arrived, self._call, self._slot, self._seq = arrived, call, slot, seq

    def __call__(self, gradient: Any) -> None:
        self._arrived(self._call, self._slot, self._seq, gradient)


class _OfCall:
    """The hook for what a call contributes to the gradients of its inputs."""

    __slots__ = ("_arrived", "_call", "_inputs")

    def __init__(
        self, arrived: Callable[[Call, Sequence[Input], int, Any], None], call: Call, inputs: Sequence[Input]
    ) -> None:
        self._arrived, self._call, self._inputs = arrived, call, inputs

    def __call__(self, index: int, gradient: Any) -> None:
        self._arrived(self._call, self._inputs, index, gradient)


class Gradients:
    """Hooks on the tensors of a step, and what they find.

    A record of backward has the micro and the call of the forward that made its tensor, and the negative number of
    that moment as its order.
    """

    def __init__(self, run: Run, measuring: Measuring, calls: Calls) -> None:
        self.run = run
        self._measuring, self._calls = measuring, calls
        self.last_step: int | None = None
        """in which a backward pass ended"""
        self._last_micro = 0
        self.found: set[int] = set()
        """parameters whose gradients are recorded in this step"""
        self._is_differentiated = False
        """a backward pass of this step has made a graph of its own: a later one runs through that too"""
        self._views: list[_View] = []
        """that calls under way gave or were given"""
        self._written_views: list[_View] = []
        """those that were written to in place since"""
        self._leaf_removals: list[Removal] = []
        self._leaf_micros: dict[int, set[int]] = {}
        self._output_arrived = functools.partial(self._gradient, Role.GRAD_OUTPUT)
        self._total_arrived, self._call_arrived = self._total_gradient, self._call_gradient

    def begin_step(self) -> None:
        """Take the hooks of the step before off the tensors that outlive it."""
        for removal in self._leaf_removals:
            removal()
        self._leaf_removals = []
        self._leaf_micros = {}
        self._views, self._written_views = [], []
        self._last_micro = 0
        self._is_differentiated = False
        self.found = set()

    def forget(self) -> None:
        """Hold no hook any longer."""
        self.begin_step()

    def watch_inputs(self, call: Call, tensors: list[tuple[str, Any]], is_leaf: bool) -> None:
        """Wait for the gradients of a call's inputs; to be called before it."""
        source = self._calls.original_of(call)
        watched = [(slot, tensor) for slot, tensor in tensors if self.run.adapter.requires_grad(tensor)]
        if not watched:
            return
        call.inputs = [Input(slot, source.seq, call, self._total_arrived) for slot, _ in watched]
        for entry, (_, tensor) in zip(call.inputs, watched, strict=True):
            entry.remove = self._watch(tensor, entry, call)
        if is_leaf:
            call.edges = self.run.adapter.graph_edges([tensor for _, tensor in watched])

    def watch_outputs(self, call: Call, tensors: list[tuple[str, Any]]) -> None:
        """Wait for the gradients of a call's outputs, and for what the call contributes to those of its inputs."""
        if call.edges:
            found = _OfCall(self._call_arrived, call, call.inputs)
            possible = self.run.adapter.on_call_gradient(call.edges, [tensor for _, tensor in tensors], found)
            for index, report in possible.items():
                entry = call.inputs[index]
                entry.report = report
                if report is None and entry.remove is not None:
                    entry.remove()
        for entry in call.inputs:
            entry.remove = None
        source = self._calls.original_of(call)
        for slot, tensor in tensors:
            if self.run.adapter.requires_grad(tensor):
                self._watch(tensor, _OfOutput(self._output_arrived, call, slot, source.end), call)

    def watch_logged(self, call: Call, slot: str, tensor: Any) -> None:
        """Wait for the gradient of a tensor that the user logged."""
        seq = self.run.seq
        self._watch(tensor, lambda g: self._gradient(Role.GRAD_OUTPUT, call, slot, seq, g, True), call)

    def look_at_views(self) -> None:
        """Keep those views in mind that were changed in place: they have lost the hook on their gradients."""
        written = [view for view in self._views if self.run.adapter.version_of(view.writes) != view.version]
        self._written_views += written[: _VIEWS - len(self._written_views)]
        self._views.clear()

    def end_step(self) -> None:
        """Say of which views no gradient came."""
        for view in self._written_views if self.last_step == self.run.step else ():
            if not view.found:
                name = self.run.name_of(view.module, "the model")
                text = f"a gradient at {name} is not recorded: the tensor is a view that was changed in place"
                self.run.note(text, view.module)
        self._written_views = []

    @guarded
    def backward_ended(self, touched: list[int]) -> None:
        """Record the gradients of the parameters that a backward pass has given one."""
        run = self.run
        self.last_step = run.step
        self._calls.differentiated()
        if run.passes_over or run.norms or not run.wants[Phase.GRADIENT]:
            return
        for index in touched:
            gradient = run.adapter.gradient(run.tensors[index].tensor)
            if gradient is not None:
                self.found.add(index)
                self._measuring.observe_parameter(Phase.GRADIENT, Role.PARAM_GRAD, index, gradient, self._last_micro)

    @guarded
    def record_given(self, given: dict[int, Any]) -> None:
        """Record the gradients that the user handed over, but for those that a backward pass has brought."""
        run = self.run
        if run.passes_over or run.norms or not run.wants[Phase.GRADIENT]:
            return
        micro = max(self._calls.micro, 0)
        for index in sorted(given.keys() - self.found):
            self._measuring.observe_parameter(Phase.GRADIENT, Role.PARAM_GRAD, index, given[index], micro)

    def _watch(self, tensor: Any, found: Found, call: Call) -> Removal | None:
        """Call ``found(gradient)`` when a tensor of a call has its gradient; return what takes the hook off.

        A leaf keeps its hooks, and one that is used in several micro-batches gets a gradient from each of them.
        """
        adapter = self.run.adapter
        if not adapter.is_leaf(tensor):
            if not adapter.is_view(tensor):
                return adapter.on_gradient(tensor, found)
            view = _View(adapter.writes_to(tensor), adapter.version_of(tensor), call.module)
            self._views.append(view)
            return adapter.on_gradient(tensor, functools.partial(self._view_gradient, found, view))
        micro = max(call.micro, 0)
        micros = self._leaf_micros.setdefault(id(tensor), set())
        micros.add(micro)
        leaf = functools.partial(self._leaf_gradient, found, micro, micros)
        removal = adapter.on_gradient(tensor, leaf)
        if removal is not None:
            self._leaf_removals.append(removal)
        return removal

    def _view_gradient(self, found: Found, view: _View, gradient: Any) -> None:
        view.found = True
        found(gradient)

    @guarded
    def _gradient(self, role: Role, call: Call, slot: str, seq: int, gradient: Any, logged: bool = False) -> None:
        self._record_gradient(role, call, slot, seq, gradient, logged)

    def _record_gradient(
        self, role: Role, call: Call, slot: str, seq: int, gradient: Any, logged: bool = False
    ) -> None:
        if not self.run.active or gradient is None:  # compiled code passes nothing back to what was not used
            return
        if call.step != self.run.step:
            text = "gradients arrived after the probe.step() of their forward: they are not recorded"
            self.run.note(text, call.module)
            return
        self._last_micro = max(call.micro, 0)
        self._is_differentiated |= self.run.adapter.requires_grad(gradient)
        self._measuring.observe(Phase.BACKWARD, role, slot, gradient, call, order=-seq, always=logged)

    @guarded
    def _leaf_gradient(self, found: Found, micro: int, micros: set[int], gradient: Any) -> None:
        """Pass on the gradient of a leaf, if the backward under way is that of the micro-batch."""
        if len(micros) == 1 or micro == self._last_micro:
            found(gradient)

    @guarded
    def _total_gradient(self, entry: Input, gradient: Any) -> None:
        if entry.report is not None and not self._is_of_second_order(gradient):
            entry.report()
        else:
            self._record_gradient(Role.GRAD_TOTAL, entry.call, entry.slot, entry.seq, gradient)

    @guarded
    def _call_gradient(self, call: Call, inputs: Sequence[Input], index: int, gradient: Any) -> None:
        if isinstance(gradient, Exception):  # its parts could not be added up
            raise gradient
        if self._is_of_second_order(gradient):
            return
        self._record_gradient(Role.GRAD_INPUT, call, inputs[index].slot, inputs[index].seq, gradient)

    def _is_of_second_order(self, gradient: Any) -> bool:
        """Return True if a gradient may have parts that came through the graph of an earlier backward pass.

        Which of a call's nodes such parts go through is up to how its derivatives are written: what the call alone
        contributes is not defined, the total is.
        """
        return self._is_differentiated and not self.run.adapter.requires_grad(gradient)
