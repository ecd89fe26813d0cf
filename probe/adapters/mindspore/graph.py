"""MindSpore's graph of gradients: what one call contributes to the gradient of its input, and where a pass ends."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
from mindspore import Parameter, Tensor
from mindspore.nn import cell

from probe.adapters.mindspore.statistics import array_of, tensor_of
from probe.adapters.shared.contributions import NODES_LIMIT, Edge, Graph, Place

_WEIGHT = 1 << 63
"""weights have sequence numbers from here on: no operation made them"""

executor = cell._pynative_executor


class Clock:
    """Tells the sequence number of the next node, by a node of its own that nothing else is made from."""

    def __init__(self) -> None:
        self._hand = Parameter(Tensor(np.zeros(1, np.float32)), name="probe")

    def now(self) -> int:
        """Return a number that every node made from now on exceeds."""
        node = self._hand.view(1)._grad_node
        return -1 if node is None else node._sequence_nr()


def edge_of(tensor: Tensor) -> Edge | None:
    """Return where a tensor stands in the graph; None when it is not in it."""
    node = tensor._grad_node if tensor._requires_grad else None
    return None if node is None else (node._unique_id(), tensor._output_index)


def added(parts: Sequence[Tensor]) -> Tensor:
    """Return the sum of tensors, as a new one; sums of 16-bit numbers are taken in float32."""
    arrays = [array_of(part) for part in parts]
    dtype = arrays[0].dtype
    total = arrays[0].astype(np.promote_types(dtype, np.float32), copy=True)
    for array in arrays[1:]:
        total += array
    return tensor_of(total.astype(dtype, copy=False))


class _Graph(Graph):
    def crossings(self, roots: list[Any], wanted: Collection[Edge], start: int) -> dict[Edge, list[Place]]:
        found: dict[Edge, list[Place]] = {}
        met: set[int] = set()
        wanted_nodes = {node for node, _ in wanted}

        def inside(node: Any) -> bool:
            return node._unique_id() not in wanted_nodes and start < node._sequence_nr() < _WEIGHT

        stack = [root for root in roots if inside(root)]
        while stack:
            node = stack.pop()
            if node._unique_id() in met:
                continue
            met.add(node._unique_id())
            if len(met) > NODES_LIMIT:
                return {}
            for place, (source, number) in enumerate(node.next_functions):
                if source is None:
                    continue
                edge = source._unique_id(), number
                if edge in wanted:
                    found.setdefault(edge, []).append((node, place))
                elif inside(source):
                    stack.append(source)
        return found

    def runs(self) -> bool:
        executor.sync()  # raises what an operation of the program failed with: not for `added` to keep
        return True

    def added(self, parts: Sequence[Tensor]) -> Tensor:
        return added(parts)


GRAPH = _Graph()


class Backwards:
    """Backward passes, and the parameters that each gives a gradient to.

    MindSpore keeps no gradients at parameters: what hooks on the parameters see is added up here until it is used.
    The hooks are there only while backward runs, since ``mindspore.jit`` would compile them and fail; so it is
    the executor's own ``grad`` that is replaced.
    """

    def __init__(self, parameters: Sequence[Parameter], ended: Callable[[list[int]], None]) -> None:
        self._ended = ended
        self._parameters = list(parameters)
        self._plain = executor.grad
        self._running = False
        self._arrived: dict[int, Tensor | Exception] = {}
        self._sums: dict[int, Tensor | Exception] = {}
        self._replacement = self._grad
        executor.grad = self._replacement

    def remove(self) -> None:
        """Hook no backward pass any more."""
        if vars(executor).get("grad") is self._replacement:
            del executor.grad
        self._parameters = []
        self.forget()

    def sum_of(self, parameter: Parameter) -> Tensor | None:
        """Return what backward passes have added up for a parameter; raise what kept them from it."""
        found = self._sums.get(id(parameter))
        if isinstance(found, Exception):
            raise found
        return found

    def used(self, parameters: Sequence[Parameter]) -> None:
        """Begin anew for parameters whose gradients have been used."""
        for parameter in parameters:
            self._sums.pop(id(parameter), None)

    def forget(self) -> None:
        """Begin anew for all parameters."""
        self._sums.clear()

    def _grad(self, *args: Any, **kwargs: Any) -> Any:
        if self._running or not self._parameters:  # computing again what lies inside a pass
            return self._plain(*args, **kwargs)
        self._running = True
        handles = self._hook()
        try:
            result = self._plain(*args, **kwargs)
        except BaseException:
            self._arrived.clear()
            raise
        finally:
            self._running = False
            for handle in handles:
                handle.remove()
        self._finish()
        return result

    def _hook(self) -> list[Any]:
        handles = []
        for index, parameter in enumerate(self._parameters):
            if not isinstance(parameter, Parameter) or not parameter.requires_grad:
                continue
            try:  # not Parameter.register_hook: that makes compiled functions compile again
                handles.append(Tensor.register_hook(parameter, functools.partial(self._arrived.__setitem__, index)))
            except Exception as error:  # noqa: BLE001  it would end the training
                self._arrived[index] = error
        return handles

    def _finish(self) -> None:
        arrived, self._arrived = self._arrived, {}
        if arrived:
            executor.sync()
        for index, gradient in arrived.items():
            if gradient is None:
                continue
            key = id(self._parameters[index])
            before = self._sums.get(key)
            try:
                self._sums[key] = gradient if before is None else added([before, gradient])
            except Exception as error:  # noqa: BLE001  out of memory, mostly; it would end the training
                self._sums[key] = error
        if arrived:
            self._ended(sorted(arrived))
