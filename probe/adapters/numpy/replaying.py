"""numpy: running modules of the toy framework by themselves, and differentiating what they return."""

from __future__ import annotations

import contextlib
import copy
import functools
import heapq
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from probe.adapters.numpy import tensor as graph
from probe.adapters.numpy.nn import Module
from probe.adapters.numpy.tensor import Node, Tensor, operation
from probe.adapters.replaying import Again, Called, Replaying, Run, call_replaced, own_function_replaced


class NumpyReplaying(Replaying):
    """The verbs of `probe.adapters.replaying.Replaying` for `probe.adapters.numpy.nn.Module`."""

    def intercepted(self, called: Called) -> AbstractContextManager[object]:
        plain = Module.__call__

        def call(module: Module, *args: Any, **kwargs: Any) -> Any:
            return called(module, functools.partial(plain, module), args, kwargs)

        return call_replaced(Module, call)

    def tensor(self, values: np.ndarray, like: Tensor | None, model: Module) -> Tensor:
        return Tensor(np.array(values, dtype=values.dtype if like is None else like.dtype, order="C"))

    def source(self, tensor: Tensor, learns: bool) -> tuple[Tensor, Tensor]:
        leaf = Tensor(tensor.data.copy(), learns and tensor.dtype.kind in "fcV")
        return leaf, operation(leaf.data.copy(), (leaf, lambda g: g)) if leaf.requires_grad else leaf

    def place(self, tensor: Tensor) -> Node | None:
        return tensor.node if tensor.requires_grad else None

    def pulled_back(
        self, again: Again, sources: Sequence[Tensor], wanted: Sequence[Node], parameters: Sequence[Tensor],
        targets: Sequence[Node], gradients: Sequence[Tensor],
    ) -> tuple[list[Tensor | None], list[Tensor | None], list[Tensor | None]]:  # fmt: skip
        nodes = [each.node for each in sources], wanted, [each.node for each in parameters]
        found = _gradients(targets, gradients, {node for some in nodes for node in some})
        of_sources, of_wanted, of_parameters = ([found.get(node) for node in some] for some in nodes)
        return of_sources, of_wanted, of_parameters

    @contextlib.contextmanager
    def under(self, grad: bool, autocast: str) -> Iterator[None]:
        before, graph._grad_enabled = graph._grad_enabled, grad
        try:
            yield
        finally:
            graph._grad_enabled = before

    def set_training(self, module: Module, training: bool) -> None:
        module.training = training

    def added(self, a: Tensor, b: Tensor) -> Tensor:
        return Tensor(a.data + b.data)

    def write(self, tensor: Tensor, values: Tensor) -> None:
        tensor.become(operation(values.data, (values, lambda g: g)))

    def without_graph(self, tensor: Tensor) -> Tensor:
        return Tensor(tensor.data)

    def around_forward(self, module: Module, called: Callable[[Run], Any]) -> Callable[[], None]:
        return own_function_replaced(module, "forward", called)

    def through(self, tensor: Tensor, values: Tensor | None, gradient: Tensor | None) -> Tensor:
        data = tensor.data if values is None else values.data
        return operation(data.copy(), (tensor, lambda g: g if gradient is None else gradient.data))

    def set_gradient(self, parameter: Tensor, gradient: Tensor | None) -> None:
        parameter.grad = gradient

    def wide(self, model: Module) -> Module:
        found = copy.deepcopy(model)
        for _, tensor, _ in found.named_tensors(Tensor):
            if tensor.dtype.kind in "fV":
                tensor.data = tensor.data.astype(np.float64)
        return found


def _gradients(targets: Sequence[Node], gradients: Sequence[Tensor], wanted: set[Node]) -> dict[Node, Tensor]:
    """Return what arrives at some nodes of the graph, and leave everything else as it is."""
    arrived: dict[Node, np.ndarray] = {}
    kept: dict[Node, Tensor] = {}
    for node, gradient in zip(targets, gradients, strict=True):
        arrived[node] = arrived[node] + gradient.data if node in arrived else gradient.data
    queue = [(-node.order, node) for node in arrived]
    heapq.heapify(queue)
    while queue:
        _, node = heapq.heappop(queue)
        gradient = arrived.pop(node)
        if node in wanted:
            kept[node] = Tensor(gradient)
        for parent, share_of in node.parents:
            share = share_of(gradient).astype(gradient.dtype, copy=False)
            if parent not in arrived:
                heapq.heappush(queue, (-parent.order, parent))
            arrived[parent] = arrived[parent] + share if parent in arrived else share
    return kept
