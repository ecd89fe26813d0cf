"""What faults are made of: wrapped forwards and autograd functions that pass back something else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

Forward = Callable[..., Any]


def around(module: nn.Module, function: Callable[..., Any]) -> None:
    """Put ``function(forward, *args, **kwargs)`` in the place of a module's forward.

    Its recorded inputs stay what they were: the fault is inside.
    """
    forward = module.forward
    module.forward = lambda *args, **kwargs: function(forward, *args, **kwargs)


def on_output(module: nn.Module, change: Callable[[Tensor], Tensor]) -> None:
    """Change a module's output, or the first one of several."""

    def changed(forward: Forward, *args: Any, **kwargs: Any) -> Any:
        found = forward(*args, **kwargs)
        if isinstance(found, tuple):
            return (change(found[0]), *found[1:])
        return change(found)

    around(module, changed)


def on_inputs(module: nn.Module, change: Callable[[Tensor], Tensor]) -> None:
    """Change the floating-point arguments of a module before it uses them; all of them, by whatever name."""

    def changed(forward: Forward, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = tree_map_only(Tensor, lambda x: change(x) if x.is_floating_point() else x, (args, kwargs))
        return forward(*args, **kwargs)

    around(module, changed)


def on_first(module: nn.Module, change: Callable[[Tensor], Tensor]) -> None:
    """Change the first argument of a module before it uses it, by place or as ``hidden_states``."""

    def changed(forward: Forward, *args: Any, **kwargs: Any) -> Any:
        if args:
            return forward(change(args[0]), *args[1:], **kwargs)
        return forward(**{**kwargs, "hidden_states": change(kwargs["hidden_states"])})

    around(module, changed)


def with_argument(module: nn.Module, name: str, change: Callable[[Any], Any]) -> None:
    """Change one named argument of a module before it uses it."""
    around(module, lambda forward, *args, **kwargs: forward(*args, **{**kwargs, name: change(kwargs.get(name))}))


class ScaledGradient(torch.autograd.Function):
    """The identity, with a gradient that is too large."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.factor, None


class SignedGradient(torch.autograd.Function):
    """The identity, with a gradient that is cut off at a size."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, share: float) -> Tensor:
        ctx.share = share
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        most = float(gradient.abs().max()) * ctx.share
        return gradient.clamp(-most, most), None


class WrongDerivative(torch.autograd.Function):
    """One activation forward, another one's derivative backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, right: Callable[[Tensor], Tensor], wrong: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.save_for_backward(x)
        ctx.wrong = wrong
        return right(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            (found,) = torch.autograd.grad(ctx.wrong(x), x, gradient)
        return found, None, None


def with_weight(module: nn.Module, change: Callable[[Tensor], Tensor]) -> None:
    """Let a module compute with something made of its weight."""

    def forward(original: Forward, *args: Any, **kwargs: Any) -> Any:
        weight = module.weight
        module._parameters["weight"] = change(weight)
        try:
            return original(*args, **kwargs)
        finally:
            module._parameters["weight"] = weight

    around(module, forward)


class Uncorrected(torch.optim.AdamW):
    """AdamW without the correction of its moments' bias."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Update the parameters."""
        for group in self.param_groups:
            first, second = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["step"] = torch.tensor(0.0)
                    state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
                state["step"] += 1
                state["exp_avg"].lerp_(parameter.grad, 1 - first)
                state["exp_avg_sq"].mul_(second).addcmul_(parameter.grad, parameter.grad, value=1 - second)
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.addcdiv_(state["exp_avg"], state["exp_avg_sq"].sqrt() + group["eps"], value=-group["lr"])
