"""PaddlePaddle: putting back what a training step changes beside the weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import paddle

from probe.adapters.paddle.optimizer import inner
from probe.adapters.shared.keeping import kept as value_kept

_STATES = ("_accumulators", "_master_weights", "_auxiliary_vars", "_already_create_accumulator",
           "_accumulators_holder", "state")  # fmt: skip
"""attributes of optimizers that steps change; the learning rate is the program's own"""


def kept(parameters: Sequence[paddle.Tensor]) -> Callable[[], None]:
    """Return what puts gradients and the states of all random generators back as they are now."""
    gradients = [(parameter, _gradient_kept(parameter.grad)) for parameter in parameters if not parameter.stop_gradient]
    cpu = paddle.get_rng_state("cpu")
    cuda = paddle.get_cuda_rng_state() if paddle.is_compiled_with_cuda() else []

    def undo() -> None:
        for parameter, restored in gradients:
            gradient = restored()
            if gradient is None:
                parameter.clear_gradient(False)
            else:
                parameter.grad = gradient  # which copies where a backward pass has made another one
                if gradient.is_dense():
                    gradient._share_buffer_to(parameter._grad_ivar())
        paddle.set_rng_state(cpu, "cpu")
        if cuda:
            paddle.set_cuda_rng_state(cuda)

    return undo


def kept_optimizer(optimizer: Any) -> Callable[[], None]:
    """Return what puts an optimizer's states back: the same tensors, with the values that they have now."""
    own = inner(optimizer)
    states = [_kept(getattr(own, name)) for name in _STATES if hasattr(own, name)]

    def undo() -> None:
        for restored in states:
            restored()

    return undo


def _kept(value: Any) -> Callable[[], Any]:
    return value_kept(value, paddle.Tensor, _tensor_kept)


def _gradient_kept(gradient: paddle.Tensor | None) -> Callable[[], paddle.Tensor | None]:
    """Return what gives a gradient back as it is now, in its memory, which ``clear_gradient`` lets go of."""
    restored = _kept(gradient)
    if gradient is None or not gradient.is_dense():
        return restored
    memory = paddle.empty([0], gradient.dtype)
    gradient._share_buffer_to(memory)

    def in_place() -> paddle.Tensor:
        memory._share_buffer_to(gradient)
        return restored()  # type: ignore[no-any-return]

    return in_place


def _tensor_kept(value: paddle.Tensor) -> Callable[[], paddle.Tensor]:
    now = value.detach()._copy_to(value.place, True)

    def restored() -> paddle.Tensor:
        with paddle.no_grad():
            value.copy_(now, True)
        return value

    return restored
