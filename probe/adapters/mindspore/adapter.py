"""MindSpore: cells, hooks, gradients, optimizers, in PyNative mode. Tested against 2.10 on the CPU.

What of MindSpore this rests on stands in ``tests/mindspore/test_facts_mindspore.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import mindspore
import numpy as np
from mindspore import Parameter, Tensor, nn

from probe.adapters import base
from probe.adapters.base import Adapter, CallContext, Group, NamedModule, NamedTensor, TensorFacts
from probe.adapters.mindspore import calls, optimizers
from probe.adapters.mindspore.environment import environment
from probe.adapters.mindspore.graph import GRAPH, Backwards, Clock, edge_of, executor
from probe.adapters.mindspore.keeping import kept, kept_optimizer
from probe.adapters.mindspore.parallel import parallel
from probe.adapters.mindspore.statistics import DTYPES, MEASURING, array_of, name_of, tensor_of
from probe.adapters.shared import memory
from probe.adapters.shared.user_objects import attribute
from probe.numbers import buffers
from probe.numbers.layouts import class_names, layout_of
from probe.numbers.statistics import dtype_of

_RUNNING_STATISTICS = ("moving_mean", "moving_variance", "running_mean", "running_var", "num_batches_tracked")
"""parameters without gradient that are buffers"""
_COMPILERS = ("staging_specialize", "_fn", "jit_trace_wrap")
"""functions that ``mindspore.jit`` puts in the place of another, by its capture mode"""

_AROUND_NETWORKS = (nn.TrainOneStepCell, nn.ForwardValueAndGrad)
"""cells around a network that compute its gradients"""


class MindSporeAdapter(Adapter):
    """The verbs of `probe.adapters.base.Adapter` for ``mindspore.nn.Cell``."""

    framework = "mindspore"
    version = str(mindspore.__version__)
    forward = "construct"
    silent = "code that mindspore.jit compiles runs without hooks; leave mindspore.jit out while you record"

    def __init__(self) -> None:
        self._clock: Clock | None = None
        self._backwards: Backwards | None = None
        self._used: dict[int, Any] = {}
        """the gradients of an optimizer's step that has begun, by their parameters' ids"""

    # Models

    def classes(self) -> tuple[type, tuple[type, ...]]:
        return nn.Cell, optimizers.CLASSES

    def inside(self, module: nn.Cell) -> nn.Cell | None:
        if isinstance(module, _AROUND_NETWORKS):
            return module.network
        inner = attribute(module, "backbone_network")  # WithLossCell, and what takes its place, as its page says
        return inner if isinstance(inner, nn.Cell) else None

    def refusal(self, model: nn.Cell) -> str:
        if mindspore.get_context("mode") == mindspore.GRAPH_MODE:
            return (
                "MindSpore is in graph mode, in which no hooks run: call "
                "mindspore.set_context(mode=mindspore.PYNATIVE_MODE) before probe.start()"
            )
        return ""

    def modules(self, model: nn.Cell) -> Iterable[NamedModule]:
        for path, cell in _named_cells(model):
            inside = [name for name, child in cell._cells.items() if child is not None and name != "_recompute_cell"]
            yield NamedModule(path, cell, not inside or _is_compiled(cell))

    def parameters(self, model: nn.Cell) -> Iterable[NamedTensor]:
        found: dict[int, tuple[list[str], Tensor, nn.Cell, str]] = {}
        for name, tensor, owner, slot in _named_tensors(model, "", []):
            found.setdefault(id(tensor), ([], tensor, owner, slot))[0].append(name)
        for of_buffers in (False, True):
            for names, tensor, owner, slot in found.values():
                if self.is_tensor(tensor) and _is_buffer(slot, tensor) is of_buffers:
                    layout = layout_of("mindspore", class_names(type(owner)), slot)
                    yield NamedTensor(tuple(names), tensor, of_buffers, layout.axes, layout.name)

    def cautions(self, model: nn.Cell) -> Iterable[str]:
        for path, cell in _named_cells(model):
            name = path or "the model"
            if _is_compiled(cell):
                yield f"{name} is compiled by mindspore.jit: what runs inside it is not recorded"
            if any(not self.is_tensor(each) for each in cell._params.values() if each is not None):
                yield f"{name} has parameters without values: they are not recorded; run init_parameters_data() first"

    environment, parallel = staticmethod(environment), staticmethod(parallel)

    # Tensors

    def is_tensor(self, value: object) -> bool:
        return isinstance(value, Tensor) and name_of(value.dtype) in DTYPES and not value.has_init

    def unreadable(self, value: object) -> str:
        if isinstance(value, (mindspore.COOTensor, mindspore.CSRTensor, mindspore.RowTensor)):
            return f"sparse tensors ({type(value).__name__})"
        if not isinstance(value, Tensor):
            return ""
        return "tensors without values" if value.has_init else f"tensors of dtype {name_of(value.dtype)}"

    def facts(self, tensor: Tensor) -> TensorFacts:
        return TensorFacts(name_of(tensor.dtype), tuple(tensor.shape), self.requires_grad(tensor))

    def requires_grad(self, tensor: Tensor) -> bool:
        return tensor.requires_grad if isinstance(tensor, Parameter) else tensor._requires_grad

    def is_leaf(self, tensor: Tensor) -> bool:
        return tensor._is_leaf

    def version_of(self, tensor: Tensor) -> int | None:
        return None  # not all in-place writes change Tensor._version

    def sample_of(self, tensor: Tensor) -> bytes | None:
        is_on_cpu = mindspore.get_context("device_target") == "CPU"  # elsewhere all of it would be copied
        return memory.sample(array_of(tensor)) if is_on_cpu else None

    measure, summarize = staticmethod(MEASURING.measure), staticmethod(MEASURING.summarize)
    measure_update = staticmethod(MEASURING.measure_update)

    def values(self, tensor: Tensor) -> np.ndarray:
        array = array_of(tensor)
        copy = buffers.empty(array.shape, array.dtype)
        np.copyto(copy, array)
        return copy

    def assign(self, tensor: Tensor, values: np.ndarray) -> None:
        """Put values of its shape into a parameter or buffer, in place, cast to its dtype.

        Not by ``assign_value`` or ``set_data``: what was compiled before goes on with the memory of before.
        """
        tensor.copy_(tensor_of(values.astype(dtype_of(name_of(tensor.dtype)))))

    def snapshot(self, tensor: Tensor, spare: Tensor | None = None) -> Tensor:
        return tensor_of(array_of(tensor).copy())

    def keep(self, parameters: Sequence[Parameter]) -> base.Removal:
        return kept()

    keep_optimizer = staticmethod(kept_optimizer)

    # Hooks

    def surface(self) -> None:
        executor.sync()

    def context(self) -> CallContext:
        in_backward = executor.get_current_autodiff_engine_id() >= 0
        begins = bool(calls.entering) and calls.entering[-1].requires_grad and executor.enable_grad()
        return CallContext(executor.requires_grad() or begins, in_backward, "")

    on_call, on_any_call = staticmethod(calls.watch), staticmethod(calls.watch_any)

    def on_gradient(self, tensor: Tensor, found: base.Found) -> base.Removal | None:
        def arrived(gradient: Tensor | None) -> None:
            if gradient is not None:  # nothing was made of the tensor that the loss depends on
                found(gradient)

        return Tensor.register_hook(tensor, arrived).remove if self.requires_grad(tensor) else None

    def graph_edges(self, tensors: Sequence[Tensor]) -> list[object]:
        edges = [edge_of(tensor) for tensor in tensors]
        if self._clock is None:
            self._clock = Clock()
        start = self._clock.now()
        return [None if edge is None else (edge, start) for edge in edges]

    def on_call_gradient(
        self, edges: Sequence[object], outputs: Sequence[Tensor], found: Callable[[int, Tensor], None]
    ) -> dict[int, base.Removal | None]:
        nodes = (tensor._grad_node for tensor in outputs if tensor._requires_grad)
        return GRAPH.watch(edges, nodes, found)

    def on_parameter_gradients(
        self, parameters: Sequence[Parameter], ended: Callable[[list[int]], None]
    ) -> base.Removal:
        self._backwards = Backwards(parameters, ended)
        return self._backwards.remove

    def gradient(self, parameter: Parameter) -> Any:
        used = self._used.get(id(parameter))
        return self._backwards.sum_of(parameter) if used is None and self._backwards is not None else used

    def forget_gradients(self) -> None:
        if self._backwards is not None:
            self._backwards.forget()

    # Optimizers

    def on_update(self, optimizer: nn.Cell | None, before: base.BeforeUpdate, after: base.AfterUpdate) -> base.Removal:
        groups: list[Group] = []

        def begins(optimizer: nn.Cell, given: tuple[Any, ...]) -> None:
            self.surface()
            groups[:] = optimizers.groups_of(optimizer)
            self._used, why_not = optimizers.gradients_used(optimizer, given)
            try:
                before(groups, why_not)
            finally:
                self._used = {}

        def ended(optimizer: nn.Cell) -> None:
            done, groups[:] = list(groups), []
            if self._backwards is not None:
                self._backwards.used([parameter for group in done for parameter in group.parameters])
            after(done)

        return optimizers.watch_all(begins, ended) if optimizer is None else optimizers.watch(optimizer, begins, ended)

    groups_of, optimizer_state = staticmethod(optimizers.groups_of), staticmethod(optimizers.state_of)


def _named_cells(model: nn.Cell) -> Iterator[tuple[str, nn.Cell]]:
    """Yield every cell once, without what MindSpore puts into cells that it is to compute again in backward."""
    for path, cell in model.cells_and_names():
        if not f".{path}.".count("._recompute_cell."):
            yield path, cell


def _named_tensors(cell: nn.Cell, prefix: str, around: list[nn.Cell]) -> Iterator[tuple[str, Tensor, nn.Cell, str]]:
    """Yield every parameter and buffer under every one of its names, with the cell that holds it and its name there."""
    left_out = cell._lazy_non_persistent_buffers_set or ()  # the property would make a set where there is none
    for slot, tensor in [*cell._params.items(), *cell._buffers.items()]:
        if isinstance(tensor, Tensor) and slot not in left_out:
            yield f"{prefix}{slot}", tensor, cell, slot
    for name, child in cell._cells.items():
        if child is not None and name != "_recompute_cell" and not any(child is each for each in around):
            yield from _named_tensors(child, f"{prefix}{name}.", [*around, cell])


def _is_buffer(slot: str, tensor: Tensor) -> bool:
    """Tell running statistics, which MindSpore keeps as parameters without gradient, from frozen weights."""
    if not isinstance(tensor, Parameter):
        return True
    return not tensor.requires_grad and slot in _RUNNING_STATISTICS


def _is_compiled(cell: nn.Cell) -> bool:
    """Return True if ``mindspore.jit`` runs a cell."""
    code = getattr(cell.construct, "__code__", None)
    return code is not None and hasattr(cell.construct, "__wrapped__") and code.co_name in _COMPILERS
