"""PaddlePaddle: running layers by themselves, and differentiating what they return. Tested against 3.3."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import paddle
from paddle.nn import Layer

from probe.adapters.paddle.seeding import to_tensor
from probe.adapters.replaying import Again, Replaying


class _Through(paddle.autograd.PyLayer):
    """Other values, with the place of a tensor in the graph."""

    @staticmethod
    def forward(
        ctx: Any, tensor: paddle.Tensor, values: paddle.Tensor, gradient: paddle.Tensor | None
    ) -> paddle.Tensor:
        ctx.gradient = gradient
        return values.detach().clone()

    @staticmethod
    def backward(ctx: Any, gradient: paddle.Tensor) -> tuple[paddle.Tensor, None]:
        return gradient if ctx.gradient is None else ctx.gradient.clone()


class PaddleReplaying(Replaying):
    """The verbs of `probe.adapters.replaying.Replaying` for ``paddle.nn.Layer``."""

    def tensor(self, values: np.ndarray, like: paddle.Tensor | None, model: Layer | None) -> paddle.Tensor:
        found = to_tensor(values, model)
        return found if like is None or found.dtype == like.dtype else found.astype(like.dtype)

    def source(self, tensor: paddle.Tensor, learns: bool) -> tuple[paddle.Tensor, paddle.Tensor]:
        leaf = tensor.detach()
        if not learns or not (leaf.is_floating_point() or leaf.is_complex()):
            return leaf, leaf
        leaf.stop_gradient = False
        return leaf, leaf.clone()

    def place(self, tensor: paddle.Tensor) -> paddle.Tensor | None:
        if tensor.stop_gradient:
            return None
        tensor.retain_grads()
        return tensor

    def pulled_back(
        self, again: Again, sources: Sequence[paddle.Tensor], wanted: Sequence[paddle.Tensor],
        parameters: Sequence[paddle.Tensor], targets: Sequence[paddle.Tensor], gradients: Sequence[paddle.Tensor],
    ) -> tuple[list[Any], list[Any], list[Any]]:  # fmt: skip
        """Pull back by a backward pass, since ``paddle.grad`` passes over the hooks of parameters.

        Gradients at parameters are taken away: `probe.replaying.keeping.kept` puts the user's back.
        """
        learning = [each for each in parameters if not each.stop_gradient]
        everything = {id(each): each for each in (*sources, *wanted, *learning)}
        for each in everything.values():
            each.clear_gradient(False)
        given: dict[int, tuple[Any, Any]] = {}
        for target, gradient in zip(targets, gradients, strict=True):
            before = given.get(id(target))
            given[id(target)] = target, gradient if before is None else before[1] + gradient
        if given:
            ends, arrived = zip(*given.values(), strict=True)
            paddle.autograd.backward(list(ends), list(arrived), retain_graph=True)
        found = {key: _taken(each) for key, each in everything.items()}
        return tuple([found.get(id(each)) for each in some] for some in (sources, wanted, parameters))  # type: ignore[return-value]

    @contextlib.contextmanager
    def under(self, grad: bool, autocast: str) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            stack.enter_context(paddle.enable_grad() if grad else paddle.no_grad())
            if autocast or self.adapter.context().autocast:
                stack.enter_context(paddle.amp.auto_cast(bool(autocast), dtype=autocast or "bfloat16"))
            yield

    def without_graph(self, tensor: paddle.Tensor) -> paddle.Tensor:
        return tensor.detach()

    def through(
        self, tensor: paddle.Tensor, values: paddle.Tensor | None, gradient: paddle.Tensor | None
    ) -> paddle.Tensor:  # fmt: skip
        if tensor.stop_gradient:
            return tensor if values is None else values
        return _Through.apply(tensor, tensor if values is None else values, gradient)

    def set_gradient(self, parameter: paddle.Tensor, gradient: paddle.Tensor | None) -> None:
        if gradient is None:
            parameter.clear_gradient(False)
        else:
            parameter.grad = gradient

    def clear(self, optimizer: Any) -> None:
        optimizer.clear_grad()

    def wide(self, model: Layer) -> Layer:
        return copy.deepcopy(model).astype("float64")


def _taken(tensor: paddle.Tensor) -> paddle.Tensor | None:
    """Return the gradient of a tensor, which it has no longer."""
    gradient = tensor._grad_ivar()
    if gradient is None or not gradient._is_initialized():
        return None
    found = gradient.detach().clone()
    tensor.clear_gradient(False)
    return found
