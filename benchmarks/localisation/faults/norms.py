"""Faults of the forward pass in norms: eps, statistics, weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.localisation.tools import surgery
from benchmarks.localisation.tools.planting import FORWARD, STATISTICS, Fault, at, attribute, function


def normalized(
    module: nn.Module, x: Tensor, *, centred: bool, outside: bool = False, less: int = 0, detached: bool = False
) -> Tensor:
    """Return a LayerNorm or RMSNorm by hand; ``less`` is taken off the number that the variance is divided by."""
    eps = next(getattr(module, name) for name in ("eps", "variance_epsilon") if hasattr(module, name))
    wide = x.float()
    mean = wide.mean(-1, keepdim=True) * centred
    squares = (wide - mean).square().sum(-1, keepdim=True) / (x.shape[-1] - less)
    width = squares.sqrt() + eps if outside else (squares + eps).sqrt()
    if detached:
        mean, width = mean.detach(), width.detach()
    found = module.weight * ((wide - mean) / width).to(x.dtype)
    bias = getattr(module, "bias", None)
    return found if bias is None else found + bias


def subtracts_mean(module: nn.Module) -> bool:
    """Tell whether a norm takes the mean off."""
    return "LayerNorm" in type(module).__name__


def _wrong_norm(**options: Any) -> Callable[[nn.Module, float], None]:
    """Return what computes a norm by hand and wrongly; ``other``: LayerNorm for RMSNorm, and the other way."""
    other = options.pop("other", False)

    def plant(module: nn.Module, size: float) -> None:
        centred = subtracts_mean(module) != other
        surgery.around(module, lambda forward, x: normalized(module, x, centred=centred, **options))

    return plant


def _bias_running_variance(module: nn.Module, size: float) -> None:
    def forward(original: surgery.Forward, x: Tensor) -> Tensor:
        before = module.running_var.clone()
        found = original(x)
        number = x.numel() // x.shape[1]
        kept = before * (1 - module.momentum)
        module.running_var = kept + (module.running_var - kept) * (number - 1) / number
        return found

    surgery.around(module, forward)


def _set_eps(module: nn.Module, size: float) -> None:
    name = next(name for name in ("eps", "variance_epsilon") if hasattr(module, name))
    setattr(module, name, size)


def _round_statistics(module: nn.Module, size: float) -> None:
    def forward(original: surgery.Forward, x: Tensor) -> Tensor:
        right = normalized(module, x, centred=subtracts_mean(module))
        wide = x.float()
        spread = (wide - wide.mean(-1, keepdim=True) * subtracts_mean(module)).square().mean(-1, keepdim=True).sqrt()
        bias = getattr(module, "bias", None)
        factor = (spread / spread.bfloat16()).to(x.dtype)
        return right * factor if bias is None else (right - bias) * factor + bias

    surgery.around(module, forward)


def _normalize_over_tokens(module: nn.Module, size: float) -> None:
    def forward(original: surgery.Forward, x: Tensor) -> Tensor:
        wide = x.float()
        found = (wide - wide.mean(1, keepdim=True)) * (wide.var(1, keepdim=True, correction=0) + module.eps).rsqrt()
        return (found * module.weight + module.bias).to(x.dtype)

    surgery.around(module, forward)


def _normalize_half_batches(module: nn.Module, size: float) -> None:
    surgery.around(module, lambda forward, x: torch.cat([forward(part) for part in x.tensor_split(2)]))


NORM_FAULTS: dict[str, Fault] = {
    "eps": Fault("a norm's eps set to size", FORWARD, at(_set_eps, 1e-5)),
    "eval": Fault("a module in eval mode", FORWARD, at(lambda m, s: m.eval())),
    "momentum": Fault("BatchNorm's momentum", STATISTICS, at(attribute("momentum", lambda o, s: s), 0.2)),
    "groups": Fault("one group in a GroupNorm", FORWARD, at(attribute("num_groups", lambda o, s: 1))),
    "eps_outside": Fault("eps outside the root", FORWARD, at(_wrong_norm(outside=True))),
    "other_norm": Fault("RMSNorm for LayerNorm, or the other way", FORWARD, at(_wrong_norm(other=True))),
    "unbiased": Fault("a norm that divides by n - 1", FORWARD, at(_wrong_norm(less=1))),
    "biased": Fault("running variance without the correction of its bias", STATISTICS, at(_bias_running_variance)),
    "identity": Fault("a module that does nothing", FORWARD, at(function(lambda x: x.clone()))),
    "offset_lost": Fault("a norm's weight without the one that is added to it", FORWARD, at(lambda m, s: surgery.with_weight(m, lambda w: w - 1))),
    "narrow_statistics": Fault("a norm's statistics in bf16", FORWARD, at(_round_statistics)),
    "over_tokens": Fault("a norm over the tokens instead of the channels", FORWARD, at(_normalize_over_tokens)),
    "half_batches": Fault("batch normalisation of each half of the batch by itself: ranks are not synchronised", FORWARD, at(_normalize_half_batches)),
    "offset_zero": Fault("a norm's weight without the one that is added to it", FORWARD, at(attribute("offset", lambda old, s: 0.0))),
}  # fmt: skip
