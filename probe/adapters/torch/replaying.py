"""PyTorch: running modules by themselves, and differentiating what they return. Tested against 2.13."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge, saved_tensors_hooks

from probe.adapters.replaying import Again, Replaying
from probe.adapters.torch.seeding import to_tensor


def _as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


class _Through(torch.autograd.Function):
    """Other values, with the place of a tensor in the graph."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, values: torch.Tensor | None, gradient: torch.Tensor | None
    ) -> torch.Tensor:
        ctx.gradient = gradient
        return tensor.clone() if values is None else values.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return gradient if ctx.gradient is None else ctx.gradient.clone(), None, None


class TorchReplaying(Replaying):
    """The verbs of `probe.adapters.replaying.Replaying` for ``torch.nn.Module``."""

    def tensor(self, values: np.ndarray, like: torch.Tensor | None, model: torch.nn.Module) -> torch.Tensor:
        is_wide = values.dtype.name == "bfloat16" and like is not None and like.dtype is not torch.bfloat16
        found = to_tensor(values.astype(np.float32) if is_wide else values, model)
        return found if like is None else found.to(like.device, like.dtype)

    def source(self, tensor: torch.Tensor, learns: bool) -> tuple[torch.Tensor, torch.Tensor]:
        leaf = tensor.detach()
        if not learns or not (leaf.is_floating_point() or leaf.is_complex()):
            return leaf, leaf
        leaf = leaf.requires_grad_()
        return leaf, leaf.clone() if torch.is_grad_enabled() else leaf.detach().clone()

    def place(self, tensor: torch.Tensor) -> GradientEdge | None:
        return get_gradient_edge(tensor) if tensor.requires_grad else None

    def pulled_back(
        self, again: Again, sources: Sequence[torch.Tensor], wanted: Sequence[GradientEdge],
        parameters: Sequence[torch.Tensor], targets: Sequence[GradientEdge], gradients: Sequence[torch.Tensor]
    ) -> tuple[list[torch.Tensor | None], list[torch.Tensor | None], list[torch.Tensor | None]]:  # fmt: skip
        inputs = [*sources, *wanted, *(each for each in parameters if each.requires_grad)]
        if not targets or not inputs:
            return [None] * len(sources), [None] * len(wanted), [None] * len(parameters)
        found = iter(torch.autograd.grad(list(targets), inputs, list(gradients), retain_graph=True, allow_unused=True))
        of_sources, of_wanted = [next(found) for _ in sources], [next(found) for _ in wanted]
        return of_sources, of_wanted, [next(found) if each.requires_grad else None for each in parameters]

    @contextlib.contextmanager
    def under(self, grad: bool, autocast: str) -> Iterator[None]:
        dtype = getattr(torch, autocast or "bfloat16")
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.set_grad_enabled(grad))
            stack.enter_context(saved_tensors_hooks(_as_it_is, _as_it_is))  # checkpointing around it is no part of it
            for device in ("cpu", "cuda"):
                is_there = device == "cpu" or torch.cuda.is_available()
                if is_there and (autocast or torch.is_autocast_enabled(device)):
                    stack.enter_context(torch.autocast(device, dtype, enabled=bool(autocast)))
            yield

    def write(self, tensor: torch.Tensor, values: torch.Tensor) -> None:
        tensor.copy_(values)

    def without_graph(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach()

    def through(self, tensor: torch.Tensor, values: torch.Tensor | None, gradient: torch.Tensor | None) -> torch.Tensor:
        return _Through.apply(tensor, values, gradient)

    def become(self, tensor: torch.Tensor, leaf: torch.Tensor) -> bool:
        if tensor._is_view() or tensor.is_leaf or tensor.dtype != leaf.dtype or not leaf.requires_grad:
            return False
        tensor.detach_().copy_(leaf)
        return True

    def set_gradient(self, parameter: torch.Tensor, gradient: torch.Tensor | None) -> None:
        parameter.grad = gradient

    def wide(self, model: torch.nn.Module) -> torch.nn.Module:
        return copy.deepcopy(model).double()
