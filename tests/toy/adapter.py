"""numpy: the adapter for the framework in `tests.toy.nn`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from probe.adapters import base
from probe.adapters.base import Adapter, CallContext, Group, NamedModule, NamedTensor, TensorFacts
from probe.numbers import statistics
from probe.numbers.layouts import class_names, layout_of
from probe.numbers.packed import pack
from tests.toy.keeping import kept, kept_optimizer
from tests.toy.nn import (
    Buffer,
    Module,
    Optimizer,
    Parameter,
    call_pre_hooks,
    step_post_hooks,
    step_pre_hooks,
)
from tests.toy.tensor import Node, Tensor, backward_hooks, is_grad_enabled, next_number

Edge = tuple[Node, int]
"""where an input stands in the graph, and the number of the next node when its call began"""


class NumpyAdapter(Adapter):
    """The verbs of `probe.adapters.base.Adapter` for `tests.toy.nn.Module`."""

    framework = "numpy"
    version = np.__version__

    # Models

    def classes(self) -> tuple[type, tuple[type, ...]]:
        return Module, (Optimizer,)

    def modules(self, model: Module) -> Iterable[NamedModule]:
        first: dict[int, tuple[str, Module]] = {}
        for path, module in model.modules():
            first.setdefault(id(module), (path, module))
        for path, module in first.values():
            yield NamedModule(path, module, next(module.children(), None) is None)

    def parameters(self, model: Module) -> Iterable[NamedTensor]:
        for kind in (Parameter, Buffer):
            found: dict[int, tuple[list[str], Tensor, Module]] = {}
            for name, tensor, owner in model.named_tensors(kind):
                found.setdefault(id(tensor), ([], tensor, owner))[0].append(name)
            for names, tensor, owner in found.values():
                layout = layout_of("numpy", class_names(type(owner)), names[0].rpartition(".")[2])
                yield NamedTensor(tuple(names), tensor, kind is Buffer, layout.axes, layout.name)

    def model_config(self, model: Module) -> dict[str, object]:
        return dict(getattr(model, "config", {}))

    # Tensors

    def is_tensor(self, value: object) -> bool:
        return isinstance(value, Tensor)

    def requires_grad(self, tensor: Tensor) -> bool:
        return tensor.requires_grad

    def is_leaf(self, tensor: Tensor) -> bool:
        return tensor.node.leaf is not None

    def facts(self, tensor: Tensor) -> TensorFacts:
        return TensorFacts(str(tensor.dtype), tensor.shape, tensor.requires_grad)

    def version_of(self, tensor: Tensor) -> int | None:
        return tensor.version

    def measure(self, tensor: Tensor, axes: Sequence[int], known: bytes | None = None) -> bytes:
        return pack(statistics.measure(tensor.data, axes))

    def values(self, tensor: Tensor) -> np.ndarray:
        return np.array(tensor.data, order="C")

    def assign(self, tensor: Tensor, values: np.ndarray) -> None:
        tensor.data[...] = values

    def snapshot(self, tensor: Tensor, spare: Tensor | None = None) -> Tensor:
        return Tensor(tensor.data.copy())

    def keep(self, parameters: Sequence[Tensor]) -> base.Removal:
        return kept(parameters)

    def keep_optimizer(self, optimizer: Optimizer) -> base.Removal:
        return kept_optimizer(optimizer)

    def measure_update(self, after: Tensor, before: Tensor, axes: Sequence[int]) -> tuple[str, bytes, None]:
        name = "complex128" if after.dtype.kind == "c" else "float64"
        return name, pack(statistics.measure_update(after.data, before.data, axes)), None

    # Hooks

    def context(self) -> CallContext:
        return CallContext(is_grad_enabled(), recomputing=False, autocast="")

    def on_call(self, module: Module, before: base.Before, after: base.After) -> base.Removal:
        return _both(module.pre_hooks.add(before), module.post_hooks.add(after))

    def on_any_call(self, before: Callable[[Module], None]) -> base.Removal:
        return call_pre_hooks.add(before)

    def on_gradient(self, tensor: Tensor, found: base.Found) -> base.Removal | None:
        return tensor.node.hooks.add(found) if tensor.requires_grad else None

    def graph_edges(self, tensors: Sequence[Tensor]) -> list[object]:
        start = next_number()
        return [(tensor.node, start) if tensor.requires_grad else None for tensor in tensors]

    def on_call_gradient(
        self, edges: Sequence[object], outputs: Sequence[Tensor], found: Callable[[int, Tensor], None]
    ) -> dict[int, base.Removal]:
        wanted: dict[Node, list[int]] = {}
        for index, edge in enumerate(edges):
            if edge is not None:
                wanted.setdefault(edge[0], []).append(index)
        start = min((edge[1] for edge in edges if edge is not None), default=0)
        crossings = _crossings([tensor.node for tensor in outputs], wanted, start)
        return {
            wanted[node][0]: _collect(places, wanted[node][0], found)
            for node, places in crossings.items()
            if len(wanted[node]) == 1
        }

    def on_parameter_gradients(self, parameters: Sequence[Tensor], ended: Callable[[list[int]], None]) -> base.Removal:
        index_of = {id(parameter): index for index, parameter in enumerate(parameters)}

        def finish(leaves: list[Tensor]) -> None:
            ended(sorted(index_of[id(leaf)] for leaf in leaves if id(leaf) in index_of))

        return backward_hooks.add(finish)

    def gradient(self, parameter: Tensor) -> Tensor | None:
        return parameter.grad

    # Optimizers

    def on_update(
        self, optimizer: Optimizer | None, before: base.BeforeUpdate, after: base.AfterUpdate
    ) -> base.Removal:
        pre_hooks = step_pre_hooks if optimizer is None else optimizer.pre_hooks
        post_hooks = step_post_hooks if optimizer is None else optimizer.post_hooks
        return _both(pre_hooks.add(lambda o: before(_groups(o), "")), post_hooks.add(lambda o: after(_groups(o))))

    def optimizer_state(self, optimizer: Optimizer, parameter: Tensor) -> dict[str, Tensor]:
        state = optimizer.state.get(parameter, {})
        found: dict[str, Any] = {
            key: Tensor(np.array(value)) if type(value) is int else value for key, value in state.items()
        }
        return {key: value for key, value in found.items() if isinstance(value, Tensor)}

    def groups_of(self, optimizer: Any) -> list[Group]:
        return _groups(optimizer)


def _both(first: base.Removal, second: base.Removal) -> base.Removal:
    def remove() -> None:
        first()
        second()

    return remove


def _crossings(roots: list[Node], wanted: dict[Node, list[int]], start: int) -> dict[Node, list[tuple[Node, int]]]:
    """Find, for each wanted node, the (node, number of the parent) in the graph of a call that lead to it."""
    found: dict[Node, list[tuple[Node, int]]] = {}
    stack = [root for root in roots if root.order >= start]
    met = set(stack)
    while stack:
        node = stack.pop()
        for number, (parent, _) in enumerate(node.parents):
            if parent in wanted:
                found.setdefault(parent, []).append((node, number))
            elif parent.order >= start and parent not in met:
                met.add(parent)
                stack.append(parent)
    return found


def _collect(places: list[tuple[Node, int]], index: int, found: Callable[[int, Tensor], None]) -> base.Removal:
    """Gather the gradients that cross the given places; return what reports their sum."""
    parts: dict[int, np.ndarray] = {}

    def crossed(which: int, wanted: int, number: int, gradient: Tensor) -> None:
        if number == wanted:
            parts[which] = gradient.data

    for which, (node, number) in enumerate(places):
        node.shares.add(lambda n, g, which=which, number=number: crossed(which, number, n, g))

    def report() -> None:
        if parts:
            found(index, Tensor(sum(parts[key] for key in sorted(parts))))
            parts.clear()

    return report


def _groups(optimizer: Optimizer) -> list[Group]:
    return [
        Group(optimizer, type(optimizer).__name__, index, {k: v for k, v in group.items() if k != "params"},
              list(group["params"]))
        for index, group in enumerate(optimizer.param_groups)
    ]  # fmt: skip
