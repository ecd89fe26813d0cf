"""Faults of the backward pass: what a module passes back to its inputs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.localisation.faults.attention import eager_attention
from benchmarks.localisation.faults.layers import gelu_tanh
from benchmarks.localisation.faults.norms import normalized, subtracts_mean
from benchmarks.localisation.tools import surgery
from benchmarks.localisation.tools.planting import BACKWARD, Fault, at, called_function

_softmax = F.softmax


def _use_derivative(wrong: Callable[[Tensor], Tensor]) -> Callable[[nn.Module, float], None]:
    def change(module: nn.Module, size: float) -> None:
        surgery.around(module, lambda forward, x: surgery.WrongDerivative.apply(x, forward, wrong))

    return change


def _silu_with_constant_gate(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x).detach()


def _detach_gate(module: nn.Module, size: float) -> None:
    surgery.around(module, lambda forward, x: surgery.WrongDerivative.apply(x, forward, _silu_with_constant_gate))


def _detach_statistics(module: nn.Module, size: float) -> None:
    def frozen(x: Tensor) -> Tensor:
        return normalized(module, x, centred=subtracts_mean(module), detached=True)

    surgery.around(module, lambda forward, x: forward(x.detach()) + surgery.PassedBack.apply(x, frozen))


def _detach_residual(module: nn.Module, size: float) -> None:
    def forward(original: surgery.Forward, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        found = original(x, *args, **kwargs)
        if isinstance(found, tuple):
            return (surgery.TakenBack.apply(found[0], x), *found[1:])
        return surgery.TakenBack.apply(found, x)

    surgery.around(module, forward)


class _SoftmaxWithoutSum(torch.autograd.Function):
    """A softmax whose backward leaves out the sum over all weights."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor) -> Tensor:
        found = F.softmax(scores, dim=-1, dtype=torch.float32)
        ctx.save_for_backward(found)
        return found

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (found,) = ctx.saved_tensors
        return gradient * found


def _rotate_gradient_forward(module: nn.Module, size: float) -> None:
    """Let rope turn what is passed back by the same angle instead of the opposite one."""
    right = sys.modules[type(module).__module__].apply_rotary_pos_emb

    def turn(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *rest: Any, **more: Any) -> tuple[Tensor, Tensor]:
        found = right(q.detach(), k.detach(), cos, sin, *rest, **more)
        return (
            surgery.Derived.apply(found[0], q, lambda x: right(x, x, cos, -sin, *rest, **more)[0]),
            surgery.Derived.apply(found[1], k, lambda x: right(x, x, cos, -sin, *rest, **more)[1]),
        )

    surgery.with_global(module, "apply_rotary_pos_emb", turn)


def _detach_outputs(module: nn.Module, size: float) -> None:
    def forward(original: surgery.Forward, *args: Any, **kwargs: Any) -> Any:
        return tuple(each.detach() for each in original(*args, **kwargs))

    surgery.around(module, forward)


def _detached_softmax(x: Tensor, dim: int = -1, dtype: torch.dtype | None = None) -> Tensor:
    return _softmax(x, dim, dtype=dtype).detach()


# The derivative of another function


def _pass_back(wrong: Callable[[nn.Module, surgery.Forward, Tensor], Tensor]) -> Callable[[nn.Module, float], None]:
    """Return what lets a module pass back the derivative of another function of its first argument."""

    def plant(module: nn.Module, size: float) -> None:
        def forward(original: surgery.Forward, x: Tensor) -> Any:
            found = original(x.detach())
            first = found[0] if isinstance(found, tuple) else found
            derived = surgery.Derived.apply(first, x, lambda each: wrong(module, original, each))
            return (derived, *found[1:]) if isinstance(found, tuple) else derived

        surgery.around(module, forward)

    return plant


def _half_of_outputs(module: nn.Linear, forward: surgery.Forward, x: Tensor) -> Tensor:
    rows = torch.arange(module.out_features) < module.out_features // 2
    return F.linear(x, module.weight.detach() * rows[:, None])


def _norm_without_weight(module: nn.Module, forward: surgery.Forward, x: Tensor) -> Tensor:
    return normalized(module, x, centred=subtracts_mean(module)) / module.weight.detach()


def _truncated(module: nn.Module, forward: surgery.Forward, x: Tensor) -> Tensor:
    first, second = x.tensor_split(2, 1)
    before, state = forward(first)
    return torch.cat([before, forward(second, state.detach())[0]], 1)


def _norm_with_constant_mean(module: nn.Module, forward: surgery.Forward, x: Tensor) -> Tensor:
    """Return a norm that takes the mean for a constant."""
    wide = x.float()
    centred = wide - wide.mean(-1, keepdim=True).detach() * subtracts_mean(module)
    eps = next(getattr(module, name) for name in ("eps", "variance_epsilon") if hasattr(module, name))
    found = centred * (centred.square().mean(-1, keepdim=True) + eps).rsqrt()
    return (found * module.weight.detach()).to(x.dtype)


def _convolution_with_flipped_kernel(module: nn.Module, forward: surgery.Forward, x: Tensor) -> Tensor:
    weight = module.weight.detach().flip(2, 3)
    return F.conv2d(x, weight, None, module.stride, module.padding, module.dilation, module.groups)


def _linear_with_bf16_weight(module: nn.Module, forward: surgery.Forward, x: Tensor) -> Tensor:
    weight = module.weight.detach()
    return F.linear(x, weight.bfloat16().to(weight.dtype))


BACKWARD_FAULTS: dict[str, Fault] = {
    # factors
    "gradient": Fault("the input's gradient × (1 + size)", BACKWARD, at(lambda m, s: surgery.on_first(m, lambda x: surgery.ScaledGradient.apply(x, 1 + s)), 0.01)),
    "output_gradient": Fault("everything that a module passes back × (1 + size)", BACKWARD, at(lambda m, s: surgery.on_output(m, lambda x: surgery.ScaledGradient.apply(x, 1 + s)), 0.01)),
    "clamped": Fault("the input's gradient is cut off at a share of its largest", BACKWARD, at(lambda m, s: surgery.on_first(m, lambda x: surgery.SignedGradient.apply(x, s)), 0.5)),
    "narrow_gradient": Fault("the input's gradient is passed on in bf16", BACKWARD, at(lambda m, s: surgery.on_first(m, surgery.RoundedGradient.apply))),
    # nothing is passed back
    "detached": Fault("nothing is passed back to the input", BACKWARD, at(lambda m, s: surgery.on_first(m, Tensor.detach))),
    "statistics_detached": Fault("a norm's backward that takes its statistics for constants", BACKWARD, at(_detach_statistics)),
    "residual_detached": Fault("nothing is passed back through the residual", BACKWARD, at(_detach_residual)),
    "scores_detached": Fault("nothing is passed back through the experts' scores", BACKWARD, at(_detach_outputs)),
    "softmax_detached": Fault("nothing is passed back through a softmax in a module's own code", BACKWARD, called_function("softmax", _detached_softmax)),
    # another derivative
    "derivative_gelu": Fault("the derivative of GELU", BACKWARD, at(_use_derivative(F.gelu))),
    "derivative_tanh": Fault("the derivative of GELU's tanh form", BACKWARD, at(_use_derivative(gelu_tanh))),
    "derivative_identity": Fault("the derivative of the identity", BACKWARD, at(_use_derivative(lambda x: x))),
    "gate_detached": Fault("SiLU's derivative with its sigmoid as a constant", BACKWARD, at(_detach_gate)),
    "unsummed": Fault("a softmax's backward without the sum over all weights", BACKWARD, eager_attention(_SoftmaxWithoutSum.apply)),
    "turned_again": Fault("rope turns gradients by the same angle instead of the opposite one", BACKWARD, at(_rotate_gradient_forward)),
    "half_passed": Fault("half of the outputs pass nothing back: a sum over ranks is missing", BACKWARD, at(_pass_back(_half_of_outputs))),
    "unweighted": Fault("a norm's backward without its weight", BACKWARD, at(_pass_back(_norm_without_weight))),
    "truncated": Fault("nothing is passed back through the state in the middle of a sequence", BACKWARD, at(_pass_back(_truncated))),
    "mean_kept": Fault("LayerNorm's backward without the mean's term", BACKWARD, at(_pass_back(_norm_with_constant_mean))),
    "not_turned": Fault("a convolution's backward with the kernel turned round", BACKWARD, at(_pass_back(_convolution_with_flipped_kernel))),
    "narrow_weight": Fault("the input's gradient from a weight in bf16", BACKWARD, at(_pass_back(_linear_with_bf16_weight))),
    "mean_passed": Fault("a maximum that passes back to all alike", BACKWARD, at(_pass_back(lambda m, f, x: F.adaptive_avg_pool1d(x, 1)))),
}  # fmt: skip
