"""What modules are given and what they return."""

from __future__ import annotations

import weakref
from typing import Any

from probe.config import Batch
from probe.numbers.slots import flatten
from probe.numbers.statistics import is_integer
from probe.recorder.calls import CALLS, Call, Calls
from probe.recorder.gradients import Gradients
from probe.recorder.measuring import Measuring
from probe.recorder.operations import Operations
from probe.recorder.run import Run, guarded
from probe.recorder.updates import Updates
from probe.records import Phase, Role


class Forward:
    """The hooks around module calls."""

    def __init__(
        self, run: Run, measuring: Measuring, calls: Calls, gradients: Gradients, updates: Updates,
        operations: Operations | None = None,
    ) -> None:  # fmt: skip
        self.run = run
        self._measuring, self._calls, self._gradients, self._updates = measuring, calls, gradients, updates
        self._operations = operations

    @guarded
    def before_call(
        self, index: int, module: weakref.ref[Any], is_leaf: bool, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Begin a call, and record what it is given."""
        run, calls = self.run, self._calls
        if not run.active or run.paused:
            calls.count_forward(index)
            return
        if run.too_many(len(calls.all), CALLS, "module calls"):
            return
        context = run.adapter.context()
        if context.aside:
            run.note(f"calls {context.aside} are not recorded", index)
            return
        stack = calls.stack
        if not context.recomputing:
            if calls.begins_pass(index, context.grad_enabled, stack):
                calls.begin_pass(index, context.grad_enabled, stack)
                self._measuring.forget()
            self._updates.record_initial()
        if stack and stack[-1].step != run.step:
            calls.pass_over(index, stack)
            return
        live = module()
        call = calls.begin(index, context, bool(live is not None and run.adapter.is_training(live)), stack)
        if run.norms:
            if index in run.roots and not call.recomputed and call.micro >= 0:
                self._observe_batch(call, args, kwargs)
            return
        if not call.recomputed:
            self._updates.record_changed(index, call.micro)
        tensors = self._observe(Role.INPUT, call, args, kwargs)
        call.is_in_graph = calls.in_graph(call)
        if call.is_in_graph:
            self._gradients.watch_inputs(call, tensors, is_leaf)
        if self._operations is not None:
            self._operations.enter(live, index)

    @guarded
    def after_call(self, index: int, output: object, raised: bool) -> None:
        """End a call, and record what it returns."""
        run, calls = self.run, self._calls
        stack = calls.stack
        call = calls.end(index, stack) if run.active else None
        if self._operations is not None:
            self._operations.leave(stack[-1].module if stack else -1)
        if call is None:
            return
        if call.step != run.step:
            name = run.name_of(index, "the model")
            run.note(f"{name} was running when another thread called probe.step(): its outputs are not recorded", index)
            return
        call.end = run.next_seq()
        call.raised = raised
        tensors = self._observe(Role.OUTPUT, call, output, {})
        if call.is_in_graph:
            self._gradients.watch_outputs(call, tensors)
        call.inputs = call.edges = ()
        if not stack:
            self._measuring.forget()
            self._gradients.look_at_views()

    def _observe_batch(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Record the hashes of what a model is given, where only norms are recorded of the rest."""
        adapter = self.run.adapter
        for slot, tensor in flatten(args, adapter.is_tensor) + flatten(kwargs, adapter.is_tensor):
            if self.run.config.batch is Batch.ALL or is_integer(adapter.facts(tensor).dtype):
                self._measuring.observe(Phase.FORWARD, Role.INPUT, slot, tensor, call, always=True)

    def _observe(self, role: Role, call: Call, value: object, named: dict[str, Any]) -> list[tuple[str, Any]]:
        """Record the tensors in what a call is given or returns, unless it is a second pass; return them."""
        is_tensor = self.run.adapter.is_tensor
        missed: list[tuple[str, object]] = []
        tensors = flatten(value, is_tensor, "", missed)
        if named:
            tensors += flatten(named, is_tensor, "", missed)
        if missed:
            self._measuring.note_missed(role, call.module, missed)
        if not call.recomputed:
            if role is Role.INPUT and call.module in self.run.roots and self.run.config.tokens is not None:
                self._measuring.tokens.count(call.micro, tensors)
            for slot, tensor in tensors:
                self._measuring.observe(Phase.FORWARD, role, slot, tensor, call)
        return tensors
