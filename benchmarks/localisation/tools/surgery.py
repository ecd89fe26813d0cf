"""What faults are made of: wrapped forwards and autograd functions that pass back something else."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
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


def with_global(module: nn.Module, name: str, value: Callable[..., Any], space: ModuleType | None = None) -> None:
    """Let a module's forward find something else under a global name of its source file, or of `space`."""
    owner = sys.modules[type(module).__module__] if space is None else space

    def replaced(forward: Forward, *args: Any, **kwargs: Any) -> Any:
        kept = getattr(owner, name)
        setattr(owner, name, value)
        try:
            return forward(*args, **kwargs)
        finally:
            setattr(owner, name, kept)

    around(module, replaced)


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


class PassedBack(torch.autograd.Function):
    """Zeros, of which the gradient is that of a function: added to what is detached from `x`, only backward changes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.save_for_backward(x)
        ctx.function = function
        return torch.zeros_like(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            (found,) = torch.autograd.grad(ctx.function(x), x, gradient)
        return found, None


class TakenBack(torch.autograd.Function):
    """An output, and from what is passed back to the input the output's gradient is taken off: no residual."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, x: Tensor) -> Tensor:
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return gradient, -gradient


class RoundedGradient(torch.autograd.Function):
    """The identity, with a gradient that goes through bf16."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.bfloat16().to(gradient.dtype)


class ByHand(torch.optim.AdamW):
    """AdamW, written out, so that its quotient can be another one."""

    def quotient(self, state: dict[str, Tensor], group: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Return the two parts of what the learning rate is multiplied with."""
        raise NotImplementedError

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
                parameter.addcdiv_(*self.quotient(state, group), value=-group["lr"])


class Uncorrected(ByHand):
    """AdamW without the correction of its moments' bias."""

    def quotient(self, state: dict[str, Tensor], group: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Return the two parts of what the learning rate is multiplied with."""
        return state["exp_avg"], state["exp_avg_sq"].sqrt() + group["eps"]


class EpsInside(ByHand):
    """AdamW with eps under the root, as some frameworks have it."""

    def quotient(self, state: dict[str, Tensor], group: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Return the two parts of what the learning rate is multiplied with."""
        first, second = (1 - beta ** state["step"] for beta in group["betas"])
        return state["exp_avg"] / first, (state["exp_avg_sq"] / second + group["eps"]).sqrt()


class EpsUncorrected(ByHand):
    """AdamW with eps beside the root of the moment as it is kept, as TensorFlow has it."""

    def quotient(self, state: dict[str, Tensor], group: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Return the two parts of what the learning rate is multiplied with."""
        first, second = (1 - beta ** state["step"] for beta in group["betas"])
        return state["exp_avg"] / first * second.sqrt(), state["exp_avg_sq"].sqrt() + group["eps"]


class StepLate(ByHand):
    """AdamW that corrects the bias of its moments as if a step more had been made."""

    def quotient(self, state: dict[str, Tensor], group: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Return the two parts of what the learning rate is multiplied with."""
        first, second = (1 - beta ** (state["step"] + 1) for beta in group["betas"])
        return state["exp_avg"] / first, (state["exp_avg_sq"] / second).sqrt() + group["eps"]


class Derived(torch.autograd.Function):
    """An output that was made of what is detached from `x`, with the derivative of another function for `x`."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.save_for_backward(x)
        ctx.function = function
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            (found,) = torch.autograd.grad(ctx.function(x), x, gradient)
        return gradient, found, None
