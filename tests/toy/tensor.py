"""Tensors of the numpy framework: arrays with a graph, and functions of them.

Everything is computed on one thread in a fixed order, and what kernels of a CPU or a BLAS round in their own ways is computed in
float64 and rounded: the same program gives the same bits twice, on any machine.
"""

from __future__ import annotations

import contextlib
import functools
import heapq
import itertools
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

Removal = Callable[[], None]
_BLOCK = 8
"""products that are added up before the sum is rounded to float32"""
_numbers = itertools.count()
_grad_enabled = True


def next_number() -> int:
    """Return a number that is higher than that of every node so far."""
    return next(_numbers)


class Hooks(dict[int, Callable[..., object]]):
    """Functions that are called in the order in which they were added."""

    def add(self, hook: Callable[..., object]) -> Removal:
        """Add a function; return what takes it off again."""
        key = next(_numbers)
        self[key] = hook
        return lambda: self.pop(key, None) and None

    def __call__(self, *args: object) -> None:
        for hook in list(self.values()):
            hook(*args)


backward_hooks = Hooks()
"""called at the end of every backward pass with the leaves that it gave gradients to"""


@contextlib.contextmanager
def no_grad() -> Iterator[None]:
    """Build no graph inside the block."""
    global _grad_enabled
    before, _grad_enabled = _grad_enabled, False
    try:
        yield
    finally:
        _grad_enabled = before


def is_grad_enabled() -> bool:
    """Return True if operations build a graph."""
    return _grad_enabled


# Tensors


class Node:
    """A place in the graph: how a tensor came about, and who wants to see its gradient.

    Parameters
    ----------
    parents
        what it was computed from, each with the function from this gradient to the parent's share of it
    leaf
        the tensor that was made by no operation: its gradient is kept
    """

    def __init__(
        self,
        parents: Sequence[tuple[Node, Callable[[np.ndarray], np.ndarray]]] = (),
        leaf: Tensor | None = None,
    ) -> None:
        self.order = next(_numbers)
        self.parents = parents
        self.leaf = None if leaf is None else weakref.ref(leaf)
        self.hooks = Hooks()
        """called with the complete gradient"""
        self.shares = Hooks()
        """called with (number of the parent, gradient that goes there)"""


class Tensor:
    """An array that knows how it was made."""

    def __init__(self, data: object, requires_grad: bool = False, node: Node | None = None) -> None:
        self.data = np.asarray(data)
        self.requires_grad = requires_grad
        self.grad: Tensor | None = None
        self.version = 0
        self.node = node or Node(leaf=self)

    shape = property(lambda self: self.data.shape)
    dtype = property(lambda self: self.data.dtype)

    def item(self) -> float:
        """Return the only element."""
        return self.data.item()

    def backward(self, gradient: np.ndarray | None = None) -> None:
        """Give every leaf that this tensor was computed from its gradient."""
        found = {self.node: np.ones_like(self.data) if gradient is None else gradient}
        queue = [(-self.node.order, self.node)]
        leaves = []
        with no_grad():
            while queue:
                _, node = heapq.heappop(queue)
                gradient = found.pop(node)
                node.hooks(Tensor(gradient))
                leaf = node.leaf and node.leaf()
                if leaf is not None:
                    leaves.append(leaf)
                    _accumulate(leaf, gradient)
                for number, (parent, share_of) in enumerate(node.parents):
                    share = share_of(gradient).astype(gradient.dtype, copy=False)
                    node.shares(number, Tensor(share))
                    if parent not in found:
                        heapq.heappush(queue, (-parent.order, parent))
                    found[parent] = found[parent] + share if parent in found else share
        backward_hooks(leaves)

    def become(self, other: Tensor) -> Tensor:
        """Take the values of another tensor and its place in the graph: what operations in place do."""
        if self.requires_grad and self.node.leaf and _grad_enabled:
            raise RuntimeError("a leaf that requires a gradient cannot be written in place")
        self.data[...] = other.data
        self.version += 1
        self.node, self.requires_grad = other.node, other.requires_grad
        return self

    def __add__(self, other: object) -> Tensor:
        b = _tensor(other, self)
        mine, other_shape = (
            self.shape,
            b.shape,
        )  # a function must not hold a tensor: its node would keep it alive
        return operation(self.data + b.data, (self, lambda g: _fitted(g, mine)), (b, lambda g: _fitted(g, other_shape)))

    def __mul__(self, other: object) -> Tensor:
        b = _tensor(other, self)
        x, y = self.data, b.data
        return operation(x * y, (self, lambda g: _fitted(g * y, x.shape)), (b, lambda g: _fitted(g * x, y.shape)))

    def __matmul__(self, other: Tensor) -> Tensor:
        x, y = self.data, other.data
        return operation(
            matmul(x, y),
            (self, lambda g: _fitted(matmul(g, y.swapaxes(-1, -2)), x.shape)),
            (other, lambda g: _fitted(matmul(x.swapaxes(-1, -2), g), y.shape)),
        )

    def __pow__(self, power: float) -> Tensor:
        x = self.data
        return operation(_power(x, power), (self, lambda g: g * power * _power(x, power - 1)))

    def __getitem__(self, index: Any) -> Tensor:
        index = index.data if isinstance(index, Tensor) else index

        def spread(g: np.ndarray) -> np.ndarray:
            whole = np.zeros(shape, g.dtype)
            np.add.at(whole, index, g)
            return whole

        shape = self.shape
        return operation(self.data[index], (self, spread))

    def __neg__(self) -> Tensor:
        return self * -1.0

    def __sub__(self, other: object) -> Tensor:
        return self + -_tensor(other, self)

    def __truediv__(self, other: object) -> Tensor:
        return self * _tensor(other, self) ** -1.0

    __radd__, __rmul__ = __add__, __mul__

    def sum(self, axis: int | None = None, keepdims: bool = False) -> Tensor:
        """Add up along one axis, or all."""

        def spread(g: np.ndarray) -> np.ndarray:
            return np.broadcast_to(g if axis is None or keepdims else np.expand_dims(g, axis), shape)

        shape = self.shape
        return operation(self.data.sum(axis, keepdims=keepdims), (self, spread))

    def mean(self, axis: int | None = None, keepdims: bool = False) -> Tensor:
        """Average along one axis, or all."""
        total = self.sum(axis, keepdims)
        return total * (total.data.size / self.data.size)

    def reshape(self, *shape: int) -> Tensor:
        """Give the same elements another shape."""
        before = self.shape
        return operation(self.data.reshape(shape), (self, lambda g: g.reshape(before)))

    def swapaxes(self, a: int, b: int) -> Tensor:
        """Exchange two axes."""
        return operation(self.data.swapaxes(a, b), (self, lambda g: g.swapaxes(a, b)))


def operation(data: np.ndarray, *sources: tuple[Tensor, Callable[[np.ndarray], np.ndarray]]) -> Tensor:
    """Return the result of an operation, given what it came from and each one's share of a gradient."""
    data = np.asarray(data, dtype=sources[0][0].dtype)
    parents = [(tensor.node, share) for tensor, share in sources if tensor.requires_grad]
    return Tensor(data, True, Node(parents)) if parents and _grad_enabled else Tensor(data)


def matmul(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return x @ y; float32 is added up block by block, so that it does not depend on the BLAS."""
    if x.dtype != np.float32 or y.dtype != np.float32 or min(x.ndim, y.ndim) < 2 or not x.shape[-1]:
        return x @ y
    wide_x, wide_y = x.astype(np.float64), y.astype(np.float64)
    blocks = (slice(first, first + _BLOCK) for first in range(0, x.shape[-1], _BLOCK))
    return functools.reduce(np.add, ((wide_x[..., at] @ wide_y[..., at, :]).astype(np.float32) for at in blocks))


def _rounded(function: Callable[[np.ndarray], np.ndarray], x: np.ndarray) -> np.ndarray:
    return function(x.astype(np.float64)).astype(x.dtype)


def _power(x: np.ndarray, power: float) -> np.ndarray:
    return _rounded(lambda wide: wide**power, x)


def _tensor(value: object, like: Tensor) -> Tensor:
    return value if isinstance(value, Tensor) else Tensor(np.asarray(value, dtype=like.dtype))


def _fitted(gradient: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Undo broadcasting: add up along what was stretched."""
    gradient = gradient.sum(tuple(range(gradient.ndim - len(shape))))
    stretched = tuple(i for i, size in enumerate(shape) if size == 1 and gradient.shape[i] != 1)
    return gradient.sum(stretched, keepdims=True) if stretched else gradient


def _accumulate(leaf: Tensor, gradient: np.ndarray) -> None:
    if leaf.grad is None:
        leaf.grad = Tensor(gradient.copy())
    else:
        leaf.grad.data += gradient


# Functions


def exp(x: Tensor) -> Tensor:
    """Return e to the power of each element."""
    y = _rounded(np.exp, x.data)
    return operation(y, (x, lambda g: g * y))


def log(x: Tensor) -> Tensor:
    """Return the natural logarithm of each element."""
    value = x.data
    return operation(_rounded(np.log, value), (x, lambda g: g / value))


def relu(x: Tensor, inplace: bool = False) -> Tensor:
    """Return max(x, 0)."""
    positive = x.data > 0
    y = operation(np.where(positive, x.data, np.zeros_like(x.data)), (x, lambda g: g * positive))
    return x.become(y) if inplace else y


def tanh(x: Tensor) -> Tensor:
    """Return the hyperbolic tangent of each element."""
    y = _rounded(np.tanh, x.data)
    return operation(y, (x, lambda g: g * (1 - y * y)))


def silu(x: Tensor) -> Tensor:
    """Return x · sigmoid(x)."""
    return x * (tanh(x * 0.5) + 1.0) * 0.5


def gelu(x: Tensor) -> Tensor:
    """Return the Gaussian error linear unit, by its tanh approximation."""
    return x * (tanh((x + x * x * x * 0.044715) * (2 / np.pi) ** 0.5) + 1.0) * 0.5


def softmax(x: Tensor) -> Tensor:
    """Return the softmax over the last axis."""
    e = exp(x - x.data.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean of −log p(label) over all rows of ``logits`` [..., classes]."""
    shifted = logits - logits.data.max(-1, keepdims=True)
    rows = (shifted - log(exp(shifted).sum(-1, keepdims=True))).reshape(-1, logits.shape[-1])
    return -rows[np.arange(rows.shape[0]), labels.data.reshape(-1)].mean()
