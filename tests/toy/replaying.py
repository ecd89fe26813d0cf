"""numpy: running modules of the toy framework by themselves, and differentiating what they return."""

from __future__ import annotations

import contextlib
import copy
import heapq
from collections.abc import Iterator, Sequence

import numpy as np

from probe.adapters.replaying import Again, Replaying
from tests.toy import tensor as graph
from tests.toy.nn import Module
from tests.toy.tensor import Node, Tensor, operation


class NumpyReplaying(Replaying):
    """The verbs of `probe.adapters.replaying.Replaying` for `tests.toy.nn.Module`."""

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

    def added(self, a: Tensor, b: Tensor) -> Tensor:
        return Tensor(a.data + b.data)

    def write(self, tensor: Tensor, values: Tensor) -> None:
        tensor.become(operation(values.data, (values, lambda g: g)))

    def without_graph(self, tensor: Tensor) -> Tensor:
        return Tensor(tensor.data)

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
