"""The faults, one line each: what is planted, in which phase it is first seen, how. More in the other modules of faults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.localisation.further_faults import FURTHER_FAULTS
from benchmarks.localisation.pairs.pair import Planted
from benchmarks.localisation.porting_faults import PORTING_FAULTS
from benchmarks.localisation.seventh_faults import SEVENTH_FAULTS
from benchmarks.localisation.sixth_faults import SIXTH_FAULTS
from benchmarks.localisation.tools import surgery
from benchmarks.localisation.tools.planting import (
    Fault,
    at,
    attribute,
    before_update,
    change_weight,
    function,
    given,
    hyper,
    knob,
)
from benchmarks.localisation.tools.training import Run

# Weights


def _one_element(module: nn.Module, size: float) -> None:
    def change(weight: Tensor) -> Tensor:
        weight.view(-1)[weight.numel() // 3] += size * weight.float().std()
        return weight

    change_weight(module, change)


@torch.no_grad()
def _gates(module: nn.LSTM, size: float) -> None:
    for parameter in module.parameters():
        parameter.copy_(torch.cat([parameter.chunk(4)[place] for place in (0, 2, 1, 3)]))


@torch.no_grad()
def _bias(module: nn.Module, change: Callable[[Tensor], Tensor]) -> None:
    module.bias.copy_(change(module.bias.clone()))


# What the model is given


def _one_token(ids: Tensor, size: float) -> Tensor:
    ids = ids.clone()
    ids[0, 3] = (ids[0, 3] + 1) % 90 + 2
    return ids


# Forward


def _eps(module: nn.Module, size: float) -> None:
    name = next(name for name in ("eps", "variance_epsilon") if hasattr(module, name))
    setattr(module, name, size)


def _unmasked(module: nn.Module, size: float) -> None:
    surgery.with_argument(module, "attention_mask", lambda mask: torch.zeros(1, 1, 1, 1, dtype=torch.float32))


def _rope(change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> Callable[[nn.Module, float], None]:
    return lambda module, size: surgery.with_argument(module, "position_embeddings", lambda pair: change(*pair))


def _theta(module: nn.Module, size: float) -> None:
    width = 2 * module.inv_freq.numel()
    module.inv_freq.copy_(size ** (-torch.arange(0, width, 2) / width))


def _twice(module: nn.Module, size: float) -> None:
    def forward(original: surgery.Forward, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        found = original(x, *args, **kwargs)
        return (found[0] + size * x, *found[1:]) if isinstance(found, tuple) else found + size * x

    surgery.around(module, forward)


def _in_bf16(module: nn.Module, size: float) -> None:
    def forward(original: surgery.Forward, x: Tensor) -> Tensor:
        bias = None if module.bias is None else module.bias.bfloat16()
        if isinstance(module, nn.Linear):
            return F.linear(x.bfloat16(), module.weight.bfloat16(), bias).to(x.dtype)
        return module._conv_forward(x.bfloat16(), module.weight.bfloat16(), bias).to(x.dtype)

    surgery.around(module, forward)


def _rounded(x: Tensor) -> Tensor:
    return x + (x.detach().bfloat16().to(x.dtype) - x.detach())


def _without_bias(module: nn.Module, size: float) -> None:
    surgery.on_output(module, lambda x: x - module.bias)


def _head_order(x: Tensor) -> Tensor:
    return x.unflatten(-1, (-1, 8)).roll(1, -2).flatten(-2)


# Backward


def _derivative(wrong: Callable[[Tensor], Tensor]) -> Callable[[nn.Module, float], None]:
    def change(module: nn.Module, size: float) -> None:
        surgery.around(module, lambda forward, x: surgery.WrongDerivative.apply(x, forward, wrong))

    return change


# Gradients


def _frozen(module: nn.Module, size: float) -> None:
    for parameter in module.parameters(recurse=False):
        parameter.requires_grad_(False)


def _weight_detached(module: nn.Linear, size: float) -> None:
    surgery.with_weight(module, Tensor.detach)


def _gradient_hook(module: nn.Module, size: float) -> None:
    module.weight.register_hook(lambda gradient: gradient * (1 + size))


def _gradient_lost(run: Run, planted: Planted) -> None:
    for parameter in run.model.get_submodule(planted.path).parameters():
        parameter.grad = torch.zeros_like(parameter)


def _not_clipped(run: Run, planted: Planted) -> None:
    run.setup = replace(run.setup, clip=0.0)


# The optimizer


def _uncorrected(run: Run, planted: Planted) -> None:
    run.optimizers = [surgery.Uncorrected(optimizer.param_groups) for optimizer in run.optimizers]


def _coupled(run: Run, planted: Planted) -> None:
    run.optimizers = [torch.optim.Adam(optimizer.param_groups, foreach=False) for optimizer in run.optimizers]
    for group in run.groups:
        group["decoupled_weight_decay"] = False


def _left_out(run: Run, planted: Planted) -> None:
    chosen = set(run.model.get_submodule(planted.path).parameters())
    for group in run.groups:
        group["params"] = [parameter for parameter in group["params"] if parameter not in chosen]


def _forgetful(run: Run, planted: Planted) -> None:
    for optimizer in run.optimizers:
        optimizer.state.clear()


def _schedule(run: Run, planted: Planted) -> None:
    run.schedule = lambda step: 1.0 if step < planted.step else 0.5 if planted.size is None else planted.size


def _noisy(x: Tensor, size: float) -> Tensor:
    generator = torch.Generator().manual_seed(7)
    noise = torch.randn(x.shape, generator=generator).to(x.dtype)
    return x + size * x.detach().float().std().to(x.dtype) * noise


def _one_row(x: Tensor, size: float) -> Tensor:
    factor = torch.ones(x.shape[:2], dtype=x.dtype)
    factor[0, min(2, x.shape[1] - 1)] = 1 + size
    return x * factor.reshape(*factor.shape, *[1] * (x.dim() - 2))


def _half_gradient(module: nn.Module, size: float) -> None:
    rows = torch.arange(module.weight.shape[0]) % 2
    module.weight.register_hook(lambda gradient: gradient * rows.reshape(-1, *[1] * (gradient.dim() - 1)))


_INIT, _FORWARD, _LOSS, _BACKWARD, _GRADIENT, _UPDATE = (
    ("init",), ("forward",), ("loss",), ("backward",), ("gradient",), ("update",),
)  # fmt: skip
_tanh = lambda x: F.gelu(x, approximate="tanh")  # noqa: E731

FAULTS: dict[str, Fault] = {
    # init
    "weight": Fault("a weight × (1 + size)", _INIT, at(lambda m, s: change_weight(m, lambda w: w * (1 + s)), 0.01)),
    "element": Fault("one element of a weight off by size standard deviations", _INIT, at(_one_element, 1.0)),
    "transposed": Fault("a square weight left transposed", _INIT, at(lambda m, s: change_weight(m, lambda w: w.T))),
    "rows": Fault("a weight's rows moved by one", _INIT, at(lambda m, s: change_weight(m, lambda w: w.roll(1, 0)))),
    "gates": Fault("LSTM gates in the order i, g, f, o", _INIT, at(_gates)),
    "bias": Fault("a bias of zeros", _INIT, at(lambda m, s: _bias(m, torch.zeros_like))),
    "bias_shift": Fault("a bias + size", _INIT, at(lambda m, s: _bias(m, lambda b: b + s), 0.01)),
    # inputs
    "token": Fault("one other token", _FORWARD, given(_one_token), True),
    "scaled_input": Fault("an input × (1 + size)", _FORWARD, given(lambda x, s: x * (1 + s), 0.01), True),
    "order": Fault("samples in another order", _FORWARD, given(lambda x, s: x.roll(1, 0)), True),
    "padding_mask": Fault("a padding mask of ones", _FORWARD, given(lambda x, s: torch.ones_like(x)), True),
    "noise_seed": Fault("other noise", _FORWARD, given(lambda x, s: x.flip(0)), True),
    # forward
    "eps": Fault("a norm's eps set to size", _FORWARD, at(_eps, 1e-5)),
    "scaled": Fault("an output × (1 + size)", _FORWARD, at(lambda m, s: surgery.on_output(m, lambda x: x * (1 + s)), 0.01)),
    "shifted": Fault("an output + size", _FORWARD, at(lambda m, s: surgery.on_output(m, lambda x: x + s), 0.01)),
    "channels": Fault("output channels moved by one", _FORWARD, at(lambda m, s: surgery.on_output(m, lambda x: x.roll(1, -1)))),
    "heads": Fault("attention heads in another order", _FORWARD, at(lambda m, s: surgery.on_first(m, _head_order))),
    "positions": Fault("positions moved by one", _FORWARD, at(lambda m, s: surgery.on_output(m, lambda x: x.roll(1, -2)))),
    "gelu": Fault("GELU in the place of another activation", _FORWARD, at(function(F.gelu))),
    "gelu_tanh": Fault("GELU's tanh form", _FORWARD, at(function(_tanh))),
    "quick_gelu": Fault("x·sigmoid(1.702 x) for GELU", _FORWARD, at(function(lambda x: x * torch.sigmoid(1.702 * x)))),
    "relu": Fault("ReLU in the place of another activation", _FORWARD, at(function(F.relu))),
    "relu6": Fault("ReLU that ends at size", _FORWARD, at(lambda m, s: surgery.around(m, lambda f, x: x.clamp(0, s)), 2.0)),
    "slope": Fault("LeakyReLU's slope", _FORWARD, at(attribute("negative_slope", lambda old, s: s), 0.21)),
    "mask": Fault("no attention mask", _FORWARD, at(_unmasked)),
    "scaling": Fault("attention's scale × (1 + size)", _FORWARD, at(attribute("scaling", lambda old, s: old * (1 + s)), 0.01)),
    "theta": Fault("rope's theta", ("forward", "init"), at(_theta, 5e5)),
    "rope_shift": Fault("rope's angles one position late", _FORWARD, at(_rope(lambda c, s: (c.roll(1, -2), s.roll(1, -2))))),
    "rope_sign": Fault("rope turned the other way", _FORWARD, at(_rope(lambda c, s: (c, -s)))),
    "dropout": Fault("a Dropout left on", _FORWARD, at(attribute("p", lambda old, s: s), 0.1)),
    "attention_dropout": Fault("attention's dropout left on", _FORWARD, at(attribute("attention_dropout", lambda o, s: s), 0.1)),
    "residual": Fault("size times the input added again", _FORWARD, at(_twice, 1.0)),
    "precision": Fault("one module computes in bf16", _FORWARD, at(_in_bf16)),
    "rounded": Fault("one output rounded to bf16", _FORWARD, at(lambda m, s: surgery.on_output(m, _rounded))),
    "no_bias": Fault("the bias is not added", _FORWARD, at(_without_bias)),
    "pool_padding": Fault("average pooling that does not count the padding", _FORWARD, at(attribute("count_include_pad", lambda o, s: False))),
    "border": Fault("padding that repeats the border", _FORWARD, at(lambda m, s: surgery.around(m, lambda f, x: F.conv2d(F.pad(x, (1, 1, 1, 1), mode="replicate"), m.weight, m.bias, m.stride)))),
    "bilinear": Fault("bilinear upsampling", _FORWARD, at(attribute("mode", lambda o, s: "bilinear"))),
    "eval": Fault("a module in eval mode", _FORWARD, at(lambda m, s: m.eval())),
    "momentum": Fault("BatchNorm's momentum", ("forward", "update"), at(attribute("momentum", lambda o, s: s), 0.2)),
    "top_k": Fault("one expert for each token", _FORWARD, at(attribute("top_k", lambda o, s: 1))),
    "groups": Fault("one group in a GroupNorm", _FORWARD, at(attribute("num_groups", lambda o, s: 1))),
    "bag_mean": Fault("the mean of a bag instead of its sum", _FORWARD, at(attribute("mode", lambda o, s: "mean"))),
    "dilation": Fault("a dilated convolution", _FORWARD, at(lambda m, s: (setattr(m, "dilation", (2, 2)), setattr(m, "padding", (2, 2))))),
    "softplus": Fault("Softplus with another beta", _FORWARD, at(attribute("beta", lambda o, s: s), 1.1)),
    "noisy": Fault("noise of size standard deviations on an output", _FORWARD, at(lambda m, s: surgery.on_output(m, lambda x: _noisy(x, s)), 1e-3)),
    "one_row": Fault("one token, or channel, of an output × (1 + size)", _FORWARD, at(lambda m, s: surgery.on_output(m, lambda x: _one_row(x, s)), 0.1)),
    "capped": Fault("an output that is cut off at ± size", _FORWARD, at(lambda m, s: surgery.on_output(m, lambda x: x.clamp(-s, s)), 1.0)),
    # loss
    "sum": Fault("the sum instead of the mean", _LOSS, knob(reduction=lambda s: "sum"), True),
    "label_shift": Fault("labels that are not moved by one", _LOSS, knob(shift=lambda s: False), True),
    "ignore_index": Fault("padding counts: ignore_index is another number", _LOSS, given(lambda t, s: t.clamp_min(0)), True),
    "smoothing": Fault("label smoothing", _LOSS, knob(0.1, smoothing=lambda s: s), True),
    "loss_scaled": Fault("the loss × (1 + size)", _LOSS, knob(0.01, loss_factor=lambda s: 1 + s), True),
    "loss_backward": Fault("the loss × (1 + size), for backward only", _LOSS, knob(0.5, backward_factor=lambda s: 1 + s), True),
    # backward
    "gradient": Fault("the input's gradient × (1 + size)", _BACKWARD, at(lambda m, s: surgery.on_first(m, lambda x: surgery.ScaledGradient.apply(x, 1 + s)), 0.01)),
    "output_gradient": Fault("everything that a module passes back × (1 + size)", _BACKWARD, at(lambda m, s: surgery.on_output(m, lambda x: surgery.ScaledGradient.apply(x, 1 + s)), 0.01)),
    "clamped": Fault("the input's gradient is cut off at a share of its largest", _BACKWARD, at(lambda m, s: surgery.on_first(m, lambda x: surgery.SignedGradient.apply(x, s)), 0.5)),
    "detached": Fault("nothing is passed back to the input", _BACKWARD, at(lambda m, s: surgery.on_first(m, Tensor.detach))),
    "derivative_gelu": Fault("the derivative of GELU", _BACKWARD, at(_derivative(F.gelu))),
    "derivative_tanh": Fault("the derivative of GELU's tanh form", _BACKWARD, at(_derivative(_tanh))),
    "derivative_identity": Fault("the derivative of the identity", _BACKWARD, at(_derivative(lambda x: x))),
    # gradients
    "weight_gradient": Fault("the weight's gradient × (1 + size)", _GRADIENT, at(lambda m, s: surgery.with_weight(m, lambda w: surgery.ScaledGradient.apply(w, 1 + s)), 0.01)),
    "gradient_hook": Fault("a hook that scales a parameter's gradient", _GRADIENT, at(_gradient_hook, 0.1)),
    "half_gradient": Fault("every other row of a weight's gradient is zero", _GRADIENT, at(_half_gradient)),
    "frozen": Fault("a frozen module", _GRADIENT, at(_frozen)),
    "weight_detached": Fault("a weight that is detached where it is used", _GRADIENT, at(_weight_detached)),
    "last_micro": Fault("gradients are cleared between micro-batches", _GRADIENT, knob(kept_micros=lambda s: slice(-1, None)), True),
    "not_cleared": Fault("gradients are never cleared", _GRADIENT, knob(clears=lambda s: False), True),
    # between backward and the optimizer
    "clip": Fault("clipping at a norm of size", ("update", "gradient"), before_update(lambda r, p: nn.utils.clip_grad_norm_(list(r.names), p.size)), True),
    "clip_value": Fault("clipping each element at size", ("update", "gradient"), before_update(lambda r, p: nn.utils.clip_grad_value_(list(r.names), p.size)), True),
    "not_clipped": Fault("no clipping", ("update", "gradient"), _not_clipped, True),
    "gradient_lost": Fault("a module's gradients are zero when the optimizer uses them", ("update", "gradient"), before_update(_gradient_lost)),
    # the optimizer
    "lr": Fault("the learning rate × (1 + size)", _UPDATE, hyper(0.1, lr=lambda old, s: old * (1 + s))),
    "decay": Fault("weight decay of size", _UPDATE, hyper(0.1, weight_decay=lambda old, s: s)),
    "no_decay": Fault("no weight decay", _UPDATE, hyper(0, weight_decay=lambda old, s: 0.0), True, True),
    "beta1": Fault("beta1 set to size", _UPDATE, hyper(0.8, betas=lambda old, s: (s, old[1]))),
    "beta2": Fault("beta2 set to size", _UPDATE, hyper(0.999, betas=lambda old, s: (old[0], s))),
    "adam_eps": Fault("Adam's eps set to size", _UPDATE, hyper(1e-3, eps=lambda old, s: s)),
    "maximize": Fault("the loss is maximised", _UPDATE, hyper(1, maximize=lambda old, s: True)),
    "amsgrad": Fault("AMSGrad", _UPDATE, hyper(1, amsgrad=lambda old, s: True)),
    "sgd_momentum": Fault("SGD's momentum set to size", _UPDATE, hyper(0.8, momentum=lambda old, s: s)),
    "nesterov": Fault("Nesterov's momentum", _UPDATE, hyper(1, nesterov=lambda old, s: True)),
    "dampening": Fault("dampening of size", _UPDATE, hyper(0.1, dampening=lambda old, s: s)),
    "uncorrected": Fault("Adam without bias correction", _UPDATE, _uncorrected, True),
    "coupled": Fault("weight decay inside Adam instead of beside it", _UPDATE, _coupled, True, True),
    "left_out": Fault("the optimizer was not given a module's parameters", _UPDATE, _left_out),
    "forgetful": Fault("the optimizer's state is lost", _UPDATE, _forgetful, True),
    "schedule": Fault("the learning rate × size from a step on", _UPDATE, _schedule, True),
    **PORTING_FAULTS,
    **FURTHER_FAULTS,
    **SIXTH_FAULTS,
    **SEVENTH_FAULTS,
}  # fmt: skip
