"""The run under way: what the hooks see becomes records.

Everything here runs inside somebody's training. No method that a hook calls returns a value or lets an
exception out; what goes wrong is said once, and noted in the file.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import shutil
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from probe import buffers
from probe.adapters.base import Adapter, Group, NamedModule, NamedTensor, TensorFacts
from probe.blocks import main_blocks
from probe.config import RecordConfig
from probe.contents import Contents, joined
from probe.errors import ProbeWarning, warn
from probe.growth import shortage
from probe.records import (
    HashKind,
    ModuleInfo,
    OptimizerGroup,
    ParameterInfo,
    Phase,
    Role,
    StepState,
    Task,
    TensorStats,
)
from probe.sketch import WIDTH
from probe.slots import DEPTH, flatten, holds_tensor, is_container
from probe.store.schema import CALLS, RECORDS
from probe.store.writer import Writer
from probe.triggers import Triggers

_RECORD_BYTES = RECORDS.itemsize
_SAID = 1000
"""different messages of a recording"""
_WAITING = 8192
"""records that wait for a device, at most, before it is waited for"""
_UNMEASURED = TensorStats(*[math.nan] * 5, 0, 0, 0, 0, 0, 0, HashKind.NONE, np.zeros(WIDTH))


@dataclass(slots=True)
class _Input:
    """An input of a call whose gradient is awaited."""

    slot: str
    seq: int
    remove: Callable[[], None] | None = None
    """takes the hook for the total gradient off"""
    report: Callable[[], None] | None = None
    """reports the call's own contribution when the total is complete; then the total is not recorded"""


@dataclass(slots=True)
class _Call:
    """A module call under way or done: a row of ``/calls``."""

    step: int
    micro: int
    seq: int
    module: int
    number: int
    caller: int
    training: bool
    grad_enabled: bool
    recomputed: bool
    autocast: str
    row: int
    end: int = -1
    raised: bool = False
    edges: list[object] = field(default_factory=list)
    inputs: list[_Input] = field(default_factory=list)

    def as_row(self) -> tuple[Any, ...]:
        return (self.step, self.micro, self.seq, self.end, self.module, self.number, self.caller, self.training,
                self.grad_enabled, self.recomputed, self.raised, self.autocast.encode())  # fmt: skip


def _guarded(method: Callable[..., None]) -> Callable[..., None]:
    """Let no exception out of what a hook calls."""

    @functools.wraps(method)
    def safe(self: Recorder, *args: Any) -> None:
        if not self.running:
            return
        try:
            with self._lock:
                if self.running:
                    method(self, *args)
        except Exception as error:  # noqa: BLE001  the training must go on whatever happened here
            if not self.running:  # a signal handler has ended the recording in the middle of this
                return
            try:
                self._note(f"not recorded because of an error inside probe: {error!r}", -1)
            except Exception:  # noqa: BLE001  no room on the stack, warnings that are errors
                self._unsaid = True
        except BaseException as error:
            with contextlib.suppress(Exception):
                self._before.clear()
                if not self._closing:  # or `step` and `stop` say it
                    self._note(f"{type(error).__name__} interrupted probe: what it was recording then is missing", -1)
            raise

    return safe


class Recorder:
    """Hooks on one or several models, and the file that they fill.

    Parameters
    ----------
    adapter
        of the models' framework
    models
        (prefix, model); the prefix is ``""`` for a single model, ``"0"``, ``"1"`` … for a list
    writer
        where records go
    config
        what to record
    optimizer
        the optimizer to watch; without it all of the process, for the parameters of these models
    """

    def __init__(
        self,
        adapter: Adapter,
        models: Sequence[tuple[str, Any]],
        writer: Writer,
        config: RecordConfig,
        optimizer: object | None = None,
    ) -> None:
        self.running = False
        self.step_number = 0
        self._adapter, self._writer, self._config = adapter, writer, config
        self._removals: list[Callable[[], None]] = []
        self._lock = threading.RLock()
        self._stacks = threading.local()
        self._said: set[str] = set()
        self._unsaid = self._closing = False
        self._missed: set[str] = set()
        self._opaque: set[type] = set()
        self._notes: list[tuple[int, int, str]] = []
        self._modules: list[ModuleInfo] = []
        self._parameters: list[ParameterInfo] = []
        self._tensors: list[NamedTensor] = []
        self._parameter_index: dict[int, int] = {}
        self._contents = Contents(adapter, self._tensors, self._parameters, self._parameter_index)
        self._last_recorded: int | None = None
        self._waiting: list[tuple[tuple[Any, ...], str, Any, int]] = []
        self._triggers = Triggers(config.on_nonfinite, config.on_loss_jump)
        self._room_is_known = False
        self._forwards: Counter[int] = Counter()
        self._updates = 0
        self._last_backward_step: int | None = None
        self._optimizers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._roots: set[int] = set()
        self._unhooked: list[tuple[int, weakref.ref[Any], bool]] = []
        self._removals_of_step: list[Callable[[], None]] = []
        self._leaf_removals: list[Callable[[], None]] = []
        self._before: dict[int, Any] = {}
        self._seen: dict[int, tuple[weakref.ref[Any], int, TensorStats]] = {}
        try:
            self._add_models(models)
            self._wants = [config.wants_phase(phase) for phase in Phase]
            self._keep = [config.wants_module(m.path, m.class_name) for m in self._modules]
            self._in_full = [config.wants_values(m.path, m.class_name) for m in self._modules]
            self._set_hooks()
            self._removals.append(adapter.on_update(optimizer, self._before_update, self._after_update))
            self._begin_step()
            self.running = True
        except BaseException:
            self._end()
            raise

    @property
    def path(self) -> object:
        """The file that is written."""
        return self._writer.path

    def is_tensor(self, value: object) -> bool:
        """Tell whether a value is a tensor of the models' framework."""
        return self._adapter.is_tensor(value)

    # Before the first step

    def _add_models(self, models: Sequence[tuple[str, Any]]) -> None:
        if len(models) > 1 or models[0][0]:
            self._modules.append(ModuleInfo("", "list", -1))
        for prefix, model in models:
            first = len(self._modules)
            self._roots.add(first)
            modules = list(self._adapter.modules(model))
            index_of = {module.path: first + i for i, module in enumerate(modules)}
            n_params = self._add_parameters(prefix, model, index_of)
            for named in modules:
                self._modules.append(_module_info(named, prefix, index_of, n_params))
            for named in modules:
                self._unhooked.append((index_of[named.path], weakref.ref(named.module), named.is_leaf))
            self._contents.add(prefix, model)
            for text in self._adapter.cautions(model):
                self._note(text, first)
        self._writer.add_modules(self._modules)
        self._writer.add_parameters(self._parameters)

    def _add_parameters(self, prefix: str, model: Any, index_of: dict[str, int]) -> dict[str, int]:
        """Append a model's parameters; return the number of elements by owner's path."""
        elements: dict[str, int] = {}
        for named in self._adapter.parameters(model):
            owner, _, slot = named.names[0].rpartition(".")
            facts = self._adapter.facts(named.tensor)
            if not named.is_buffer:
                elements[owner] = elements.get(owner, 0) + math.prod(facts.shape)
            self._parameter_index[id(named.tensor)] = len(self._parameters)
            self._tensors.append(named)
            self._parameters.append(
                ParameterInfo(tuple(joined(prefix, name) for name in named.names), index_of.get(owner, 0), slot,
                              facts.shape, facts.dtype, facts.requires_grad, named.is_buffer, named.axes, named.canonical,
                              named.is_persistent)
            )  # fmt: skip
        return elements

    def _set_hooks(self) -> None:
        """Hook every module; for norms only those that they are taken of, the others when a step is to be in full."""
        hooked, self._unhooked = self._unhooked, []
        if self._config.task is Task.NORMS:
            chosen = main_blocks(self._modules, sorted(self._roots))
            if self._config.modules is not None:
                chosen = self._roots | {index for index, keep in enumerate(self._keep) if keep}
            self._unhooked = [entry for entry in hooked if entry[0] not in chosen]
            hooked = [entry for entry in hooked if entry[0] in chosen]
        for entry in hooked:
            self._hook(*entry, self._removals)
        if self._config.task is not Task.NORMS:
            self._hook_parameters(self._removals)

    def _set_hooks_of_step(self) -> None:
        """Hook what is not hooked for norms, or take these hooks off again."""
        for removal in self._removals_of_step:
            removal()
        self._removals_of_step = []
        if self._because and self._config.task is Task.NORMS:
            for entry in self._unhooked:
                self._hook(*entry, self._removals_of_step)
            self._hook_parameters(self._removals_of_step)

    def _hook(self, index: int, module: weakref.ref[Any], is_leaf: bool, removals: list[Callable[[], None]]) -> None:
        before = functools.partial(self._before_call, index, module, is_leaf)
        after = functools.partial(self._after_call, index)
        live = module()
        try:
            if live is not None:
                removals.append(self._adapter.on_call(live, before, after))
        except Exception as error:  # noqa: BLE001  a module that takes no hooks must not end the training
            name = self._modules[index].path or "the root"
            self._note(f"{name} takes no hooks ({error}): its calls are not recorded", index)

    def _hook_parameters(self, removals: list[Callable[[], None]]) -> None:
        parameters = [named.tensor for named in self._tensors]
        removals.append(self._adapter.on_parameter_gradients(parameters, self._backward_ended))

    def _begin_step(self, because: str = "") -> None:
        """Begin a step; ``because`` says why it is to be recorded in full whatever the options say."""
        self._because = because
        self._active = bool(because) or self._config.wants_step(self.step_number)
        self._norms = self._config.task is Task.NORMS and not because
        self._set_hooks_of_step()
        self._nbytes = self._init_bytes = 0
        self._began = time.time()
        self._seq = 0
        self._calls: list[_Call] = []
        self._call_rows = getattr(self, "_call_rows", 0)
        self._numbers: dict[tuple[int, int], int] = {}
        self._passes: dict[tuple[int, bool], int] = {}
        self._micro = 0
        self._last_backward_micro = 0
        self._initialised = False
        self._seen, self._before = {}, {}
        self._reuses = self._adapter.writes_are_seen()
        self._views: list[tuple[weakref.ref[Any], int | None, int]] = []
        self._leaf_removals = []
        self._leaf_micros: dict[int, set[int]] = {}
        self._scalars: list[tuple[int, str, float]] = []
        self._groups: list[OptimizerGroup] = []

    # Forward

    @_guarded
    def _before_call(
        self, index: int, module: weakref.ref[Any], is_leaf: bool, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if not self._active:
            self._count_forward(index)
            return
        context = self._adapter.context()
        if context.transformed:
            self._note("calls inside vmap or another function transform are not recorded", index)
            return
        stack = self._stack()
        if not context.recomputing:
            # a root inside another one is part of its pass; a root inside itself was left there by an interrupt
            if index in self._roots and not any(c.module in self._roots and c.module != index for c in stack):
                self._begin_pass(index, context.grad_enabled, stack)
                self._count_forward(index)
            self._record_initial()
        if stack and stack[-1].step != self.step_number:
            stack.append(_Call(stack[-1].step, 0, 0, index, 0, -1, False, False, False, "", -1))
            return
        original = self._original(index, stack) if context.recomputing else None
        micro = original.micro if original else stack[-1].micro if stack else self._micro
        number = original.number if original else self._next_number(index, micro)
        live = module()
        call = _Call(
            self.step_number, micro, self._next_seq(), index, number, stack[-1].row if stack else -1,
            bool(live is not None and self._adapter.is_training(live)), context.grad_enabled, context.recomputing,
            context.autocast, self._call_rows + len(self._calls),
        )  # fmt: skip
        self._calls.append(call)
        stack.append(call)
        if self._norms:
            return
        missed: list[tuple[str, object]] = []
        tensors = flatten(args, self._adapter.is_tensor, "", missed)
        if kwargs:
            tensors += flatten(kwargs, self._adapter.is_tensor, "", missed)
        if missed:
            self._note_missed(Role.INPUT, index, missed)
        if not call.recomputed:
            for slot, tensor in tensors:
                self._observe(Phase.FORWARD, Role.INPUT, index, slot, tensor, call)
        if self._watches_gradients(call, original):
            self._watch_inputs(call, tensors, is_leaf)

    def _watch_inputs(self, call: _Call, tensors: list[tuple[str, Any]], is_leaf: bool) -> None:
        source = self._original_of(call) if call.recomputed else call
        watched = [(slot, tensor) for slot, tensor in tensors if self._adapter.requires_grad(tensor)]
        for slot, tensor in watched:
            entry = _Input(slot, source.seq)
            entry.remove = self._watch(tensor, functools.partial(self._total_gradient, call, entry), call)
            call.inputs.append(entry)
        if is_leaf and watched:
            call.edges = self._adapter.graph_edges([tensor for _, tensor in watched])

    @_guarded
    def _after_call(self, index: int, output: object, raised: bool) -> None:
        stack = self._stack()
        if not self._active or not stack:
            return
        if stack[-1].module != index and not any(call.module == index for call in stack):
            return
        call = stack.pop()
        while call.module != index:
            call.raised, call.end = True, self._next_seq()
            call = stack.pop()
        if call.step != self.step_number:
            name = self._modules[index].path or "the model"
            self._note(
                f"{name} was running when another thread called probe.step(): its outputs are not recorded", index
            )
            return
        call.end = self._next_seq()
        call.raised = raised
        missed: list[tuple[str, object]] = []
        tensors = flatten(output, self._adapter.is_tensor, "", missed)
        if missed:
            self._note_missed(Role.OUTPUT, index, missed)
        if not call.recomputed:
            for slot, tensor in tensors:
                self._observe(Phase.FORWARD, Role.OUTPUT, index, slot, tensor, call)
        original = self._original_of(call) if call.recomputed else None
        if not self._norms and self._watches_gradients(call, original):
            self._watch_outputs(call, original or call, tensors)
        call.inputs, call.edges = [], []
        if not stack:
            self._seen.clear()
            self._look_at_views()

    def _note_missed(self, role: Role, index: int, missed: list[tuple[str, object]]) -> None:
        """Say of what was given or returned that it holds tensors which are not recorded; once for each kind."""
        for slot, value in missed:
            what = self._adapter.unreadable(value)
            if not what and is_container(value):
                what = f"tensors more than {DEPTH} containers deep"
            elif not what and (type(value) in self._opaque or holds_tensor(value, self._adapter.is_tensor)):
                self._opaque.add(type(value))
                what = f"tensors in objects of class {type(value).__qualname__}"
            if what and what not in self._missed:
                self._missed.add(what)
                name = self._modules[index].path or "the root"
                self._note(f"{what} are not recorded; the first is {role.label} {slot} of {name}", index)

    def _look_at_views(self) -> None:
        """A view that is changed in place loses the hook on its gradient: say so."""
        for reference, version, module in self._views:
            tensor = reference()
            if tensor is not None and self._adapter.version_of(tensor) != version:
                name = self._modules[module].path or "the model"
                self._note(
                    f"a gradient at {name} is not recorded: the tensor is a view that was changed in place", module
                )
        self._views.clear()

    def _watch_outputs(self, call: _Call, source: _Call, tensors: list[tuple[str, Any]]) -> None:
        if call.edges:
            found = functools.partial(self._call_gradient, call, call.inputs)
            possible = self._adapter.on_call_gradient(call.edges, [tensor for _, tensor in tensors], found)
            for index, report in possible.items():
                entry = call.inputs[index]
                entry.report = report
                if report is None and entry.remove is not None:
                    entry.remove()
        for entry in call.inputs:
            entry.remove = None
        for slot, tensor in tensors:
            if self._adapter.requires_grad(tensor):
                found = functools.partial(self._gradient, Role.GRAD_OUTPUT, call, slot, source.end)
                self._watch(tensor, found, call)

    def _watch(self, tensor: Any, found: Callable[[Any], None], call: _Call) -> Callable[[], None] | None:
        """Call ``found(gradient)`` when a tensor of a call has its gradient; return what takes the hook off.

        A leaf keeps its hooks, and one that is used in several micro-batches gets a gradient from each of them.
        """
        if not self._adapter.is_leaf(tensor):
            if self._adapter.is_view(tensor):
                self._views.append((weakref.ref(tensor), self._adapter.version_of(tensor), call.module))
            return self._adapter.on_gradient(tensor, found)
        micro = max(call.micro, 0)
        micros = self._leaf_micros.setdefault(id(tensor), set())
        micros.add(micro)
        removal = self._adapter.on_gradient(tensor, functools.partial(self._leaf_gradient, found, micro, micros))
        if removal is not None:
            self._leaf_removals.append(removal)
        return removal

    def _begin_pass(self, root: int, grad_enabled: bool, stack: list[_Call]) -> None:
        """Count a forward of the root; what is left on the stack was left by exceptions."""
        self._abandon(stack)
        self._seen.clear()
        number = self._passes.get((root, grad_enabled), 0)
        self._passes[root, grad_enabled] = number + 1
        self._micro = number if grad_enabled else -1 - number

    def _abandon(self, stack: list[_Call]) -> None:
        """Take note of calls that were left by an interrupt, of which no hook was told."""
        for call in stack:
            if call.end < 0:
                call.raised, call.end = True, self._next_seq()
        stack.clear()

    def _count_forward(self, index: int) -> None:
        if not self.step_number and index in self._roots:
            self._forwards[index] += 1

    def _next_number(self, index: int, micro: int) -> int:
        number = self._numbers.get((index, micro), 0)
        self._numbers[index, micro] = number + 1
        return number

    def _next_seq(self) -> int:
        self._seq += 1
        return self._seq - 1

    def _stack(self) -> list[_Call]:
        stack = getattr(self._stacks, "calls", None)
        if stack is None:
            stack = self._stacks.calls = []
        return stack

    def _original(self, index: int, stack: list[_Call]) -> _Call | None:
        """Find the call that activation checkpointing is running again.

        Segments are recomputed from the last to the first, the calls inside one in their own order.
        """
        again = {(c.module, c.micro, c.number) for c in self._calls if c.recomputed}
        candidates = [
            c for c in self._calls
            if c.module == index and not c.recomputed and (c.module, c.micro, c.number) not in again
        ]  # fmt: skip
        if stack and stack[-1].recomputed:
            parent = self._original_of(stack[-1])
            inside = [c for c in candidates if c.caller == parent.row]
            return inside[0] if inside else None
        return candidates[-1] if candidates else None

    def _original_of(self, call: _Call) -> _Call:
        if not call.recomputed:
            return call
        key = (call.module, call.micro, call.number)
        return next((c for c in self._calls if not c.recomputed and (c.module, c.micro, c.number) == key), call)

    @staticmethod
    def _watches_gradients(call: _Call, original: _Call | None) -> bool:
        """Tell whether backward will run through the graph of this call.

        Of a checkpointed call the graph is that of its first pass, unless that ran without gradients.
        """
        return call.grad_enabled and not (original is not None and original.grad_enabled)

    # Backward

    @_guarded
    def _gradient(self, role: Role, call: _Call, slot: str, seq: int, gradient: Any, logged: bool = False) -> None:
        if not self._active:
            return
        if call.step != self.step_number:
            self._note("gradients arrived after the probe.step() of their forward: they are not recorded", call.module)
            return
        self._last_backward_micro = max(call.micro, 0)
        self._observe(Phase.BACKWARD, role, call.module, slot, gradient, call, order=-seq, logged=logged)

    @_guarded
    def _leaf_gradient(self, found: Callable[[Any], None], micro: int, micros: set[int], gradient: Any) -> None:
        """Pass on the gradient of a leaf, if the backward under way is that of the micro-batch."""
        if len(micros) == 1 or micro == self._last_backward_micro:
            found(gradient)

    @_guarded
    def _total_gradient(self, call: _Call, entry: _Input, gradient: Any) -> None:
        if entry.report is not None:
            entry.report()
        else:
            self._gradient(Role.GRAD_TOTAL, call, entry.slot, entry.seq, gradient)

    @_guarded
    def _call_gradient(self, call: _Call, inputs: list[_Input], index: int, gradient: Any) -> None:
        if isinstance(gradient, Exception):  # its parts could not be added up
            raise gradient
        self._gradient(Role.GRAD_INPUT, call, inputs[index].slot, inputs[index].seq, gradient)

    @_guarded
    def _backward_ended(self, touched: list[int]) -> None:
        self._last_backward_step = self.step_number
        if not self._active or self._norms or not self._wants[Phase.GRADIENT]:
            return
        for index in touched:
            gradient = self._adapter.gradient(self._tensors[index].tensor)
            if gradient is not None:
                self._observe_parameter(Phase.GRADIENT, Role.PARAM_GRAD, index, gradient, self._last_backward_micro)

    # Parameters and updates

    def _record_initial(self) -> None:
        """Record parameters and buffers, unless they are those that the step before left."""
        if self._initialised or self._norms:
            return
        self._initialised = True
        follows = self._last_recorded is not None and self._last_recorded == self.step_number - 1
        if not follows:
            self._look_for_changes()
            for index, named in enumerate(self._tensors):
                role = Role.BUFFER if named.is_buffer else Role.PARAM
                self._observe_parameter(Phase.INIT, role, index, named.tensor, 0)
            self._init_bytes = self._nbytes

    @_guarded
    def _look_for_changes(self) -> None:
        news = self._contents.news()
        if news:
            self._note(news, -1)

    @_guarded
    def _record_buffers(self) -> None:
        """Record what the step made of the buffers: running statistics."""
        self._look_for_changes()
        if self._initialised:
            for index, named in enumerate(self._tensors):
                if named.is_buffer:
                    self._observe_parameter(Phase.UPDATE, Role.BUFFER, index, named.tensor, 0)

    @_guarded
    def _before_update(self, groups: list[Group], why_not: str) -> None:
        if not self._active or not self._wants[Phase.UPDATE]:
            return
        self._look_at_order(groups, why_not)
        for _, index in self._own(groups):
            parameter = self._tensors[index].tensor
            gradient = self._adapter.gradient(parameter)
            if why_not:
                self._note(f"gradients as the optimizer used them are not recorded: {why_not}", -1)
            elif gradient is not None:
                self._observe_parameter(Phase.UPDATE, Role.PARAM_GRAD, index, gradient, 0)
            if not self._norms and self._config.task is not Task.STRUCTURE:
                self._keep_for_update(index)

    def _look_at_order(self, groups: list[Group], why_not: str) -> None:
        """Say that the gradients of the step before are used only now: probe.step() should come behind the update."""
        before = self._last_backward_step
        unseen = why_not or self._config.task is Task.NORMS  # backward comes later, or nobody listens to it
        late = before is not None and before < self.step_number and not unseen
        if late and any(
            self._adapter.gradient(self._tensors[index].tensor) is not None for _, index in self._own(groups)
        ):
            self._note("probe.step() comes before the optimizer's step: updates are recorded one step late", -1)

    def _keep_for_update(self, index: int) -> None:
        """Copy a parameter until the optimizer has changed it; where memory is short, say that the update is lost."""
        if not self._keep[self._parameters[index].module]:
            return
        try:
            with self._adapter.quiet():
                self._before[index] = self._adapter.snapshot(self._tensors[index].tensor)
        except Exception as error:  # noqa: BLE001  out of memory, mostly
            name = self._parameters[index].names[0]
            self._note(f"the update of {name} is not recorded: {error!r}", self._parameters[index].module)

    @_guarded
    def _after_update(self, groups: list[Group]) -> None:
        if not self.step_number and self._own(groups):
            self._updates += 1
        if not self._active or self._norms or not self._wants[Phase.UPDATE]:
            return
        for group in groups:
            indices = tuple(index for _, index in self._own([group]))
            if indices:
                number = self._optimizers.setdefault(group.optimizer, len(self._optimizers))
                self._groups.append(OptimizerGroup(number, group.class_name, group.index, group.hyper, indices))
        for group, index in self._own(groups):
            self._observe_update(group, index)

    def _observe_update(self, group: Group, index: int) -> None:
        parameter = self._tensors[index].tensor
        slot = self._parameters[index].slot
        for key, state in self._adapter.optimizer_state(group.optimizer, parameter).items():
            self._observe_parameter(Phase.UPDATE, Role.STATE, index, state, 0, f"{slot}.{key}")
        self._observe_parameter(Phase.UPDATE, Role.PARAM, index, parameter, 0)
        before = self._before.pop(index, None)
        if before is not None:
            self._observe_change(index, parameter, before)

    def _observe_change(self, index: int, after: Any, before: Any) -> None:
        """Record the update itself: its statistics, never its values."""
        info = self._parameters[index]
        try:
            with self._lock:
                dtype, stats = self._adapter.measure_update(after, before, info.axes)
                facts = TensorFacts(dtype, self._adapter.facts(after).shape, requires_grad=False)
                self._append(Phase.UPDATE, Role.DELTA, info.module, 0, info.slot, facts, stats, 0, index, -1)
        except Exception as error:  # noqa: BLE001  the others must not be lost
            self._note(f"the update of {info.names[0]} is not recorded: {error!r}", info.module)

    def _own(self, groups: list[Group]) -> list[tuple[Group, int]]:
        """Return the parameters of these models among those of the groups."""
        found = [(group, self._parameter_index.get(id(p))) for group in groups for p in group.parameters]
        return [(group, index) for group, index in found if index is not None]

    def _observe_parameter(
        self, phase: Phase, role: Role, index: int, tensor: Any, micro: int, slot: str | None = None
    ) -> None:
        info = self._parameters[index]
        if index in self._contents.gone or (not self._keep[info.module] and not self._norms):
            return
        if not self._adapter.is_tensor(tensor) and self._config.task is not Task.STRUCTURE:
            self._note_missed(role, info.module, [(slot or info.slot, tensor)])
            return
        self._record(phase, role, info.module, 0, slot or info.slot, tensor, micro, index, info.axes, fresh=True)

    # Any tensor

    def _observe(
        self, phase: Phase, role: Role, module: int, slot: str, tensor: Any, call: _Call, order: int | None = None,
        *, logged: bool = False,
    ) -> None:  # fmt: skip
        """Record a tensor of a call; what the user logged is recorded whatever its module."""
        if logged or self._keep[module]:
            self._record(phase, role, module, call.number, slot, tensor, call.micro, order, (), fresh=False)

    def _record(
        self, phase: Phase, role: Role, module: int, call: int, slot: str, tensor: Any, micro: int,
        order: int | None, axes: tuple[int, ...], *, fresh: bool,
    ) -> None:  # fmt: skip
        """Measure a tensor and append its record."""
        if not self._wants[phase]:
            return
        try:
            facts = self._adapter.facts(tensor)
            values = -1
            with self._lock:
                stats = self._measured(tensor, axes, fresh)
                if self._in_full[module] and stats.hash_kind is not HashKind.NONE:
                    if type(stats) is not TensorStats:
                        (stats,) = self._adapter.settle([stats])
                    copy = functools.partial(self._copied, tensor)
                    values = self._writer.tensor(stats, facts.dtype, facts.shape, copy)
                self._append(phase, role, module, call, slot, facts, stats, micro, order, values)
        except Exception as error:  # noqa: BLE001  one tensor that cannot be read must not lose the others
            name = self._modules[module].path or "the root"
            self._note(f"{phase.label} {role.label} {slot} of {name} could not be recorded: {error!r}", module)

    def _copied(self, tensor: Any) -> np.ndarray:
        with self._adapter.quiet():
            array = self._adapter.values(tensor)
        self._nbytes += array.nbytes
        return array

    def _append(
        self, phase: Phase, role: Role, module: int, call: int, slot: str, facts: TensorFacts, stats: TensorStats,
        micro: int, order: int | None, values: int,
    ) -> None:  # fmt: skip
        seq = self._next_seq()
        facts_row = (
            self.step_number, micro, seq, seq if order is None else order, phase, module, call, role,
            self._writer.slot(slot), facts.dtype.encode(), self._writer.shape(facts.shape), facts.requires_grad,
        )  # fmt: skip
        if self._waiting or type(stats) is not TensorStats:
            self._waiting.append((facts_row, slot, stats, values))
            if len(self._waiting) >= _WAITING:
                self._settle()
        else:
            self._add(facts_row, slot, stats, values)

    @_guarded
    def _settle(self) -> None:
        """Append the records whose statistics a device was still computing, and those that came behind them."""
        waiting, self._waiting = self._waiting, []
        settled = iter(self._adapter.settle([stats for _, _, stats, _ in waiting if type(stats) is not TensorStats]))
        for facts_row, slot, stats, values in waiting:
            self._add(facts_row, slot, stats if type(stats) is TensorStats else next(settled), values)

    def _add(self, facts_row: tuple[Any, ...], slot: str, stats: TensorStats, values: int) -> None:
        if stats.hash_kind is HashKind.NONE:
            self._writer.add_record((*facts_row, *stats[:-1], values), None)
            self._nbytes += _RECORD_BYTES
        else:
            self._writer.add_record((*facts_row, *stats[:-1], values), stats.sketch)
            self._nbytes += _RECORD_BYTES + 8 * WIDTH
        if (stats.nan or stats.posinf or stats.neginf) and self._triggers.look_at_values:
            self._saw_nonfinite(*facts_row[4:8], slot, stats)

    def _saw_nonfinite(self, phase: Phase, module: int, call: int, role: Role, slot: str, stats: TensorStats) -> None:
        """Tell the triggers; infinite outputs are not uncommon (masks), infinite gradients are."""
        path = self._modules[module].path
        if role is Role.OUTPUT and stats.nan:
            self._triggers.saw_nonfinite(f"output {slot} of {path or 'the root'} has NaN")
        elif role is Role.PARAM_GRAD and phase is Phase.UPDATE:
            name = joined(path, slot)
            self._triggers.saw_nonfinite(f"the gradient of {name}, as the optimizer used it, has NaN or Inf")

    def _measured(self, tensor: Any, axes: tuple[int, ...], fresh: bool) -> TensorStats:
        """Return a tensor's statistics; those of the same object, unwritten since, are not computed again."""
        if self._config.task is Task.STRUCTURE:
            return _UNMEASURED
        if self._norms:
            return self._adapter.summarize(tensor)
        version = self._adapter.version_of(tensor) if self._reuses and not fresh else None
        if version is None:
            return self._adapter.measure(tensor, axes)
        known = self._seen.get(id(tensor))
        if known is not None and known[0]() is tensor and known[1] == version:
            return known[2]
        stats = self._adapter.measure(tensor, axes)
        self._seen[id(tensor)] = (weakref.ref(tensor), version, stats)
        return stats

    # The user's calls

    def step(self, scalars: dict[str, float]) -> None:
        """Close the step and begin the next one."""
        with self._lock:
            if not self.running:
                return
            self._closing = True
            try:
                texts = self._next_step(scalars)
            except Exception as error:  # noqa: BLE001  the training must go on
                return self._give_up(f"recording to {self._writer.path} failed in probe.step() ({error!r})")
            except BaseException as error:
                with contextlib.suppress(ProbeWarning):
                    self._give_up(f"recording to {self._writer.path} was interrupted in probe.step() ({error!r})")
                raise
            self._closing = False
        self._writer.wait_for_room()
        for text in texts:
            self._say(text)

    def _next_step(self, scalars: dict[str, float]) -> list[str]:
        """Close the step and begin the next one; return what is to be said."""
        self._abandon(self._stack())
        if self._active:
            self._record_buffers()
            self._settle()
        because = self._triggers.ended(self.step_number, scalars)
        too_large = ""
        if self._active:
            self._scalars += [(self.step_number, name, value) for name, value in scalars.items()]
            self._end_step(StepState.CLOSED)
            too_large = self._shortage()
        self.step_number += 1
        self._release_leaves()
        self._begin_step(f"step {self.step_number} is recorded in full: {because}" if because else "")
        if self._writer.error is not None:
            self._give_up(f"writing {self._writer.path} failed ({self._writer.error})")
            return []
        no_loss = ""
        if self._triggers.needs_loss and "loss" not in scalars:
            no_loss = "on_loss_jump looks at the loss, but probe.step() was given none: probe.step(loss=...)"
        return [no_loss, too_large, self._because]

    def _shortage(self) -> str:
        """Say, when the first step has been recorded, if those to come will not fit on the disk."""
        if self._room_is_known:
            return ""
        self._room_is_known = True
        follows = self._config.wants_step(self.step_number + 1)  # then it has no initial parameters
        per_step = self._nbytes + len(self._calls) * CALLS.itemsize - (self._init_bytes if follows else 0)
        folder = self._writer.path.parent
        try:
            free = shutil.disk_usage(folder).free
        except OSError:
            return ""
        return shortage(per_step, self._config.steps_from(self.step_number + 1), free, str(folder))

    @_guarded
    def log(self, name: str, tensor: Any) -> None:
        """Record a tensor of the user's, and its gradient, at the module that is running."""
        if not self._active:
            return
        stack = self._stack()
        if stack:
            call, phase = stack[-1], Phase.FORWARD
        else:
            call = _Call(self.step_number, max(self._micro, 0), self._seq, 0, 0, -1, True, True, False, "", -1)
            phase = Phase.LOSS
        original = self._original_of(call) if call.recomputed else None
        if original is None:
            self._observe(phase, Role.VALUE, call.module, name, tensor, call, logged=True)
        if self._norms:
            return
        if original is None or not original.grad_enabled:
            seq = self._seq
            self._watch(tensor, lambda g: self._gradient(Role.GRAD_OUTPUT, call, name, seq, g, True), call)

    def log_number(self, name: str, value: float) -> None:
        """Record a number."""
        if self.running and self._active:
            self._scalars.append((self.step_number, name, value))

    def discard(self) -> None:
        """End the recording as if it had never begun."""
        self._end()

    def stop(self, state: StepState = StepState.CLOSED, *, one_step: bool = False) -> None:
        """Take every hook off, close the open step and the file; ``one_step`` when all may be meant as a single step."""
        path = self._writer.path
        interrupted = f"{path} is still being written: it will be complete when the process has ended"
        try:
            with self._lock:
                if not self.running:
                    return
                self._closing = True
                try:
                    text = self._last_step(state, one_step)
                except Exception as error:  # noqa: BLE001  the training must go on
                    text = f"the last step is not in {path}: probe.stop() failed ({error!r})"
                except BaseException as error:
                    interrupted = f"the last step is not in {path}: probe.stop() was interrupted ({error!r})"
                    raise
                finally:
                    self._end()
            self._writer.close()
        except BaseException as error:
            if not isinstance(error, Exception) and not self.running:
                with contextlib.suppress(ProbeWarning):
                    warn(interrupted)
            raise
        self._say(text)

    @property
    def inside_a_call(self) -> bool:
        """Tell whether a module is running, or was left by an interrupt since which the model has not run again."""
        return any(call.end < 0 for call in self._calls)

    def _last_step(self, state: StepState, one_step: bool) -> str:
        """Close the open step; return what is to be said."""
        if self._active:
            self._record_buffers()
            self._settle()
        never_stepped = self._never_stepped(one_step) if state is StepState.CLOSED else ""
        if never_stepped:
            self._notes.append((0, -1, never_stepped))
        if self._active and (self._calls or self._seq or self._scalars or self._notes):
            self._end_step(state)
        return never_stepped

    def _never_stepped(self, one_step: bool) -> str:
        """Say that steps were not told apart, unless what ran may well have been a single one."""
        count = max(self._forwards.values(), default=0)
        if self.step_number or count < 2 or self._updates < (2 if one_step else 0) or self._updates == 1:
            return ""
        return f"probe.step() was never called: all {count} forwards are in step 0; call it at the end of each step"

    def _note_unfinished_update(self) -> None:
        """Say that an optimizer began a step that it did not end."""
        if self._before:
            first, *others = [self._parameters[index].names[0] for index in self._before]
            name = f"{first} and {len(others)} more" if others else first
            self._note(f"an optimizer's step was not seen to its end: the update of {name} is not recorded", -1)

    def _end_step(self, state: StepState) -> None:
        self._note_unfinished_update()
        now = self._next_seq()
        for call in self._calls:
            if call.end < 0:
                call.end = now
        if self._because:
            self._notes.append((self.step_number, -1, self._because))
        if self._unsaid:
            self._notes.append(
                (self.step_number, -1, "not recorded because of an error inside probe that could not be said")
            )
            self._unsaid = False
        self._writer.end_step(
            self.step_number,
            calls=[call.as_row() for call in self._calls],
            scalars=self._scalars,
            notes=self._notes,
            groups=self._groups,
            wall_time=time.time() - self._began,
            state=state,
        )
        self._call_rows += len(self._calls)
        self._notes = []
        if not self._norms:  # they say nothing of the parameters that the step left
            self._last_recorded = self.step_number

    def _end(self) -> None:
        """End the recording: take every hook off, hold nothing of the model, let the file be finished.

        All of it a second time, should the first be interrupted.
        """
        try:
            self._end_once()
        finally:
            self._end_once()

    def _end_once(self) -> None:
        self.running = False
        self._take_hooks_off()
        self._forget()
        self._writer.finish()

    def _forget(self) -> None:
        """Hold nothing of the model any longer, nor memory for copies."""
        buffers.release()
        for held in (self._tensors, self._parameter_index):
            held.clear()
        self._calls = []
        self._release_leaves()
        self._before.clear()
        self._seen.clear()
        self._stacks = threading.local()

    def _take_hooks_off(self) -> None:
        for removal in [*self._removals, *self._removals_of_step]:
            with contextlib.suppress(Exception):  # the others are to be taken off all the same
                removal()
        self._removals, self._removals_of_step, self._unhooked = [], [], []

    def _release_leaves(self) -> None:
        """Take this step's hooks off the tensors that outlive it."""
        for removal in self._leaf_removals:
            removal()
        self._leaf_removals.clear()

    def _give_up(self, why: str) -> None:
        """End the recording because of a fault; the training goes on."""
        self._end()
        warn(f"{why}; the recording has stopped, your training goes on, and the complete steps in the file can be read")

    def _note(self, text: str, module: int) -> None:
        """Say once, and put into the file, what could not be recorded."""
        if len(self._said) >= _SAID - 1:
            text = "there is more that could not be recorded; it is not said any more"
        if text not in self._said:
            self._notes.append((self.step_number, module, text))
            self._say(text)

    def _say(self, text: str) -> None:
        if text and text not in self._said:
            self._said.add(text)
            warn(text)


def _parent_of(path: str, index_of: dict[str, int]) -> int:
    """Return the index of the module around a path; a module's own name may hold dots."""
    outer = path.rpartition(".")[0]
    while outer not in index_of:
        outer = outer.rpartition(".")[0]
    return index_of[outer]


def _module_info(named: NamedModule, prefix: str, index_of: dict[str, int], n_params: dict[str, int]) -> ModuleInfo:
    path = named.path
    parent = _parent_of(path, index_of) if path else (0 if prefix else -1)
    inside = f"{path}." if path else ""
    total = sum(n for owner, n in n_params.items() if owner == path or owner.startswith(inside))
    kind = type(named.module)
    try:
        file = inspect.getsourcefile(kind) or ""
        line = inspect.unwrap(kind.forward).__code__.co_firstlineno if file else 0
    except (OSError, TypeError, AttributeError):
        file, line = "", 0
    return ModuleInfo(joined(prefix, path), kind.__name__, parent, file, line, total)
