"""MindSpore: running cells by themselves, and differentiating what they return, in PyNative mode. Tested against 2.10 on the CPU."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from mindspore import Tensor, nn, ops, value_and_grad
from mindspore.nn.cell import _pynative_executor as executor

from probe.adapters.mindspore.statistics import array_of, name_of, tensor_of
from probe.adapters.replaying import Again, Replaying
from probe.numbers.statistics import dtype_of

_FLOATS = ("float16", "float32", "float64", "bfloat16", "complex64", "complex128")
_DIFFERENTIATED = ops.GradOperation(get_all=True, get_by_list=True, sens_param=True)


class _Through(nn.Cell):
    """Other values, with the place of a tensor in the graph."""

    def __init__(self, gradient: Tensor | None) -> None:
        super().__init__()
        self._gradient = gradient

    def construct(self, tensor: Tensor, values: Tensor) -> Tensor:
        """Return the values."""
        return values * 1

    def bprop(self, tensor: Tensor, values: Tensor, output: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Pass the gradient on, or the other one."""
        return gradient if self._gradient is None else self._gradient, ops.zeros_like(values)


class MindSporeReplaying(Replaying):
    """The verbs of `probe.adapters.replaying.Replaying` for ``mindspore.nn.Cell``.

    MindSpore differentiates functions, not results. So cells run without a graph, and once more where gradients are wanted.
    """

    runs_again = True
    forward = "construct"

    def tensor(self, values: np.ndarray, like: Tensor | None, model: nn.Cell | None) -> Tensor:
        return tensor_of(np.array(values if like is None else values.astype(dtype_of(name_of(like.dtype))), order="C"))

    def learns(self, tensor: Tensor) -> bool:
        return name_of(tensor.dtype) in _FLOATS

    def source(self, tensor: Tensor, learns: bool) -> tuple[Tensor, Tensor]:
        return tensor, tensor

    def place(self, tensor: Tensor) -> Tensor | None:
        return tensor if self.learns(tensor) else None

    def pulled_back(
        self, again: Again, sources: Sequence[Tensor], wanted: Sequence[Tensor], parameters: Sequence[Tensor],
        targets: Sequence[Tensor], gradients: Sequence[Tensor]
    ) -> tuple[list[Tensor | None], list[Tensor | None], list[Tensor | None]]:  # fmt: skip
        nothing: tuple[list[Any], list[Any], list[Any]] = (
            [None] * len(sources),
            [None] * len(wanted),
            [None] * len(parameters),
        )
        learning = [each for each in parameters if each.requires_grad]
        if not targets or not (sources or learning):
            return nothing

        def function(*given: Tensor) -> tuple[Tensor, ...]:
            return tuple(again(given[:-1]))

        last = Tensor(np.zeros(1, np.float32))  # there is always something to differentiate by
        try:
            of_sources, of_parameters = _DIFFERENTIATED(function, learning)(*sources, last, tuple(gradients))
        except BaseException:
            executor.clear_res()  # else it goes on as if it were inside the function
            raise
        found = {id(each): gradient for each, gradient in zip(learning, of_parameters, strict=True)}
        return list(of_sources[:-1]), nothing[1], [found.get(id(each)) for each in parameters]

    @contextlib.contextmanager
    def under(self, grad: bool, autocast: str) -> Iterator[None]:
        yield

    def set_training(self, module: nn.Cell, training: bool) -> None:
        module.add_flags(training=training)

    def without_graph(self, tensor: Tensor) -> Tensor:
        return tensor_of(array_of(tensor).copy())

    def through(self, tensor: Tensor, values: Tensor | None, gradient: Tensor | None) -> Tensor:
        return _Through(gradient)(tensor, tensor if values is None else values)

    def stepped(self, optimizer: nn.Cell, gradients: Sequence[tuple[Any, Tensor]]) -> None:
        found = {id(parameter): gradient for parameter, gradient in gradients}
        optimizer(tuple(found.get(id(each), ops.zeros_like(each)) for each in optimizer.parameters))

    def trained(
        self, model: nn.Cell, losses: Sequence[Callable[[], Tensor]], update: Any, backward: bool
    ) -> list[float]:  # fmt: skip
        if not backward:
            return [float(function()) for function in losses]
        trained = update.parameters if self.adapter.is_optimizer(update) else model.trainable_params()
        values, gradients = [], []
        for function in losses:
            loss, found = value_and_grad(function, None, list(trained))()
            values.append(float(loss))
            gradients = [a + b for a, b in zip(gradients, found, strict=True)] if gradients else list(found)
        if update is not None:
            update(tuple(gradients))
        return values
