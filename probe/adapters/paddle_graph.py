"""What one call contributes to the gradient of its input: hooks on the nodes of PaddlePaddle's graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import CellType
from typing import Any

import numpy as np
import paddle
from paddle.nn import Layer

from probe.adapters.paddle_statistics import copy_of

_EDGE_LIMIT = 256

HOOKABLE = frozenset(
    f"{name}GradNode"
    for name in (
        "Abs", "Add", "BatchNorm", "Bilinear", "Bmm", "Cast", "Celu", "Clip", "Conv2dTranspose", "Conv3d", "Cos",
        "CrossEntropyWithSoftmax", "Cumsum", "DepthwiseConv2d", "Divide", "Dropout", "Elu", "Erf", "Exp", "Expand",
        "Flatten", "Gather", "Gelu", "GroupNorm", "Hardshrink", "Hardsigmoid", "Hardswish", "Hardtanh", "HuberLoss",
        "InstanceNorm", "KldivLoss", "LayerNorm", "LeakyRelu", "Log", "LogSoftmax", "Logsigmoid", "Logsumexp",
        "MaskedFill", "Matmul", "Max", "Maximum", "Mean", "MeanAll", "Mish", "Multiply", "NearestInterp", "NllLoss",
        "PNorm", "Pad3d", "Pool2d", "Pow", "Prelu", "Relu", "Relu6", "Reshape", "Roll", "Rsqrt", "Scale", "Selu",
        "Sigmoid", "SigmoidCrossEntropyWithLogits", "Silu", "Sin", "Slice", "Softmax", "Softplus", "Split",
        "SplitWithNum", "Sqrt", "Square", "Squeeze", "Subtract", "Sum", "Swiglu", "Swish", "TakeAlongAxis", "Tanh",
        "Tile", "Transpose", "Tril", "Unfold", "Unsqueeze", "Where",
    )
) | {"Conv2dGradNodeFinal"}  # fmt: skip
"""nodes that may be hooked: each of their gradients is a single tensor. A hook on a node that gives a list of them
(concat, stack) ends the process"""

Found = Callable[[int, paddle.Tensor], None]


def edges_of(tensors: Sequence[paddle.Tensor]) -> list[object]:
    """Return for each tensor the node that its gradient goes to; None where it needs none, or is one of several
    that go to the same node: which of its outputs a tensor is cannot be asked for."""
    nodes = [None if tensor.stop_gradient else _node_of(tensor) for tensor in tensors]
    names = [None if node is None else node.node_ptr() for node in nodes]
    return [
        node if name is not None and names.count(name) == 1 else None for node, name in zip(nodes, names, strict=True)
    ]


def reaches_others(module: Layer) -> bool:
    """Tell whether a layer can get at tensors with a graph that are not handed to it: in attributes, or in a closure.

    When a node was made cannot be asked for. So in the graph of such a layer's output, what the layer did with its
    input cannot be told from what was done with the same tensor outside.
    """
    cells = getattr(type(module).forward, "__closure__", None) or ()
    around = [cell.cell_contents for cell in cells if _is_filled(cell)]
    around += [other for each in around if isinstance(each, Layer) for other in vars(each).values()]
    return any(_has_graph(value) for value in (*vars(module).values(), *around))


def _is_filled(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _has_graph(value: object) -> bool:
    if isinstance(value, paddle.Tensor):
        return not value.is_leaf
    if isinstance(value, (list, tuple)):
        return any(isinstance(each, paddle.Tensor) and not each.is_leaf for each in value)
    if isinstance(value, dict):
        return any(isinstance(each, paddle.Tensor) and not each.is_leaf for each in value.values())
    return False


def _node_of(tensor: paddle.Tensor) -> Any:
    """Return the node behind a tensor; for a leaf its accumulator, which only a user of it knows."""
    node = tensor.grad_fn
    if node is not None:
        return node
    with paddle.enable_grad():
        return tensor.reshape(tensor.shape).grad_fn.next_functions[0]


def watch(
    edges: Sequence[object], outputs: Sequence[paddle.Tensor], found: Found
) -> dict[int, Callable[[], None] | None]:
    """Do what `probe.adapters.base.Adapter.on_call_gradient` says."""
    wanted = {edge.node_ptr(): index for index, edge in enumerate(edges) if edge is not None}
    possible: dict[int, Callable[[], None] | None] = {}
    if not wanted:
        return possible
    made = [
        node for node in [None if tensor.stop_gradient else tensor.grad_fn for tensor in outputs] if node is not None
    ]
    for name, places in _crossings(made, wanted).items():
        if all(node.name() in HOOKABLE for node, _ in places):
            possible[wanted[name]] = _collect(places, wanted[name], found)
    return possible


def _crossings(roots: list[Any], wanted: dict[int, int]) -> dict[int, list[tuple[Any, int]]]:
    """Find, for each wanted node, the (node, number of its edge) in the graph of a call that lead to it.

    Where more than _EDGE_LIMIT nodes are met, nothing is returned: the graph goes on behind the call.
    """
    found: dict[int, list[tuple[Any, int]]] = {}
    met: set[int] = set()
    stack = [root for root in roots if root.node_ptr() not in wanted]
    while stack:
        node = stack.pop()
        if node.node_ptr() in met:
            continue
        met.add(node.node_ptr())
        if len(met) > _EDGE_LIMIT:
            return {}
        for place, edge in enumerate(node.next_functions):
            if edge is None:
                continue
            if edge.node_ptr() in wanted:
                found.setdefault(edge.node_ptr(), []).append((node, place))
            else:
                stack.append(edge)
    return found


def _collect(places: list[tuple[Any, int]], index: int, found: Found) -> Callable[[], None] | None:
    """Watch the gradients that cross the given places; if they are several, return what reports their sum."""
    if len(places) == 1:
        ((node, place),) = places
        node._register_post_hook(_Crossing(node, place, lambda gradient: found(index, gradient)))
        return None
    parts: dict[int, Any] = {}
    count = len(places)  # the hooks must not hold the nodes

    def report() -> None:
        arrived = [parts[key] for key in sorted(parts)]
        parts.clear()
        if arrived:
            try:
                total: object = _sum(arrived)
            except Exception as error:  # noqa: BLE001  out of memory, mostly; the recorder says what is missing
                total = error
            found(index, total)

    def keep(which: int, gradient: Any) -> None:
        # the others are added to it in place
        parts[which] = gradient if isinstance(gradient, Exception) else copy_of(gradient)
        if len(parts) == count:
            report()

    for which, (node, place) in enumerate(places):
        node._register_post_hook(_Crossing(node, place, lambda gradient, which=which: keep(which, gradient)))
    return report


class _Crossing:
    """A hook for a node. It must give back what it is given, whatever happens, and must not hold the node."""

    def __init__(self, node: Any, place: int, found: Callable[[Any], None]) -> None:
        self._edges = [edge is not None for edge in node.next_functions]
        self._place, self._found = place, found

    def __call__(self, outputs: tuple[Any, ...], inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        try:
            gradient = self._gradient(outputs)
            if gradient is not None:
                self._found(gradient)
        except Exception:  # noqa: BLE001  nothing may get out of a hook: it would end the backward pass
            pass
        return outputs

    def _gradient(self, outputs: tuple[Any, ...]) -> Any:
        """Return the gradient of the watched edge: edges are numbered without the places that never have one."""
        if len(outputs) == len(self._edges):
            chosen = outputs[self._place]
            return chosen if chosen._is_initialized() else None
        given = [each for each in outputs if each._is_initialized()]
        if len(given) != sum(self._edges):
            return LookupError("PaddlePaddle does not say which of the gradients of an operation is the input's")
        return given[sum(self._edges[: self._place])]


def _sum(parts: list[Any]) -> paddle.Tensor:
    """Add gradients up, in float32 at least."""
    for part in parts:
        if isinstance(part, Exception):
            raise part
    dtype = parts[0].dtype
    total = parts[0].astype(np.float32 if dtype.itemsize < 4 else dtype)
    for part in parts[1:]:
        total = total + part.astype(total.dtype)
    total = total.astype(dtype)
    return paddle.to_tensor(total.view(np.uint16) if dtype.name == "bfloat16" else total, place=paddle.CPUPlace())
