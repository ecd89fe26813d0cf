"""Faults of the forward pass in what any module returns: factors, residuals, dropout, precision, sums over ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.localisation.tools import surgery
from benchmarks.localisation.tools.planting import FORWARD, Fault, at, attribute, config


def _add_input(module: nn.Module, size: float) -> None:
    def forward(original: surgery.Forward, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        found = original(x, *args, **kwargs)
        return (found[0] + size * x, *found[1:]) if isinstance(found, tuple) else found + size * x

    surgery.around(module, forward)


def _compute_in_bf16(module: nn.Module, size: float) -> None:
    def forward(original: surgery.Forward, x: Tensor) -> Tensor:
        bias = None if module.bias is None else module.bias.bfloat16()
        if isinstance(module, nn.Linear):
            return F.linear(x.bfloat16(), module.weight.bfloat16(), bias).to(x.dtype)
        return module._conv_forward(x.bfloat16(), module.weight.bfloat16(), bias).to(x.dtype)

    surgery.around(module, forward)


def _rounded_to_bf16(x: Tensor) -> Tensor:
    return x + (x.detach().bfloat16().to(x.dtype) - x.detach())


def _subtract_bias(module: nn.Module, size: float) -> None:
    surgery.on_output(module, lambda x: x - module.bias)


def _with_noise(x: Tensor, size: float) -> Tensor:
    generator = torch.Generator().manual_seed(7)
    noise = torch.randn(x.shape, generator=generator).to(x.dtype)
    return x + size * x.detach().float().std().to(x.dtype) * noise


def _scale_row(x: Tensor, size: float) -> Tensor:
    factor = torch.ones(x.shape[:2], dtype=x.dtype)
    factor[0, min(2, x.shape[1] - 1)] = 1 + size
    return x * factor.reshape(*factor.shape, *[1] * (x.dim() - 2))


def _take_residual_after_norm(module: nn.Module, size: float) -> None:
    """Let a layer's first residual begin behind its first norm."""
    norm = next(child for name, child in module.named_children() if "norm" in name or name.startswith("ln"))

    def forward(original: surgery.Forward, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        kept: list[Tensor] = []
        handle = norm.register_forward_hook(lambda module, args, output: kept.append(output))
        found = original(x, *args, **kwargs)
        handle.remove()
        return (found[0] - x + kept[0], *found[1:]) if isinstance(found, tuple) else found - x + kept[0]

    surgery.around(module, forward)


def _scale_logits(module: nn.Module, size: float) -> None:
    module.config.logits_scaling *= 1 + size


def _skip(module: nn.Module, size: float) -> None:
    surgery.around(module, lambda forward, x, *args, **kwargs: x.clone())


def _run_twice(module: nn.Module, size: float) -> None:
    surgery.around(module, lambda forward, x, *a, **k: forward(forward(x, *a, **k), *a, **k))


# Sums over ranks


def _sum_first_half(module: nn.Linear, size: float) -> None:
    kept = torch.arange(module.in_features) < module.in_features // 2
    surgery.on_first(module, lambda x: x * kept)


def _add_bias_again(module: nn.Module, size: float) -> None:
    surgery.on_output(module, lambda x: x + module.bias)


def _sum_in_bf16(module: nn.Linear, size: float) -> None:
    def forward(original: surgery.Forward, x: Tensor) -> Tensor:
        pairs = zip(x.chunk(2, -1), module.weight.chunk(2, 1), strict=True)
        total = sum(F.linear(each, weight).bfloat16() for each, weight in pairs).to(x.dtype)
        return total if module.bias is None else total + module.bias

    surgery.around(module, forward)


OUTPUT_FAULTS: dict[str, Fault] = {
    # any output
    "scaled": Fault("an output × (1 + size)", FORWARD, at(lambda m, s: surgery.on_output(m, lambda x: x * (1 + s)), 0.01)),
    "shifted": Fault("an output + size", FORWARD, at(lambda m, s: surgery.on_output(m, lambda x: x + s), 0.01)),
    "channels": Fault("output channels moved by one", FORWARD, at(lambda m, s: surgery.on_output(m, lambda x: x.roll(1, -1)))),
    "noisy": Fault("noise of size standard deviations on an output", FORWARD, at(lambda m, s: surgery.on_output(m, lambda x: _with_noise(x, s)), 1e-3)),
    "one_row": Fault("one token, or channel, of an output × (1 + size)", FORWARD, at(lambda m, s: surgery.on_output(m, lambda x: _scale_row(x, s)), 0.1)),
    "capped": Fault("an output that is cut off at ± size", FORWARD, at(lambda m, s: surgery.on_output(m, lambda x: x.clamp(-s, s)), 1.0)),
    "no_bias": Fault("the bias is not added", FORWARD, at(_subtract_bias)),
    "precision": Fault("one module computes in bf16", FORWARD, at(_compute_in_bf16)),
    "rounded": Fault("one output rounded to bf16", FORWARD, at(lambda m, s: surgery.on_output(m, _rounded_to_bf16))),
    # residuals, dropout, layers
    "residual": Fault("size times the input added again", FORWARD, at(_add_input, 1.0)),
    "residual_after_norm": Fault("a residual that begins behind the norm", FORWARD, at(_take_residual_after_norm)),
    "residual_factor": Fault("the residual branches' factor × (1 + size)", FORWARD, at(attribute("residual_multiplier", lambda old, s: old * (1 + s)), 1.0)),
    "dropout": Fault("a Dropout left on", FORWARD, at(attribute("p", lambda old, s: s), 0.1)),
    "drop_path": Fault("stochastic depth left on", FORWARD, at(attribute("drop_prob", lambda old, s: s), 0.5)),
    "layer_skipped": Fault("a layer that is left out between two stages", FORWARD, at(_skip)),
    "layer_twice": Fault("a layer that both stages run", FORWARD, at(_run_twice)),
    # logits
    "logit_scale": Fault("the logits' factor × (1 + size)", FORWARD, at(attribute("logit_scale", lambda old, s: old * (1 + s)), 1.0)),
    "log_scale": Fault("a scale that is used as its logarithm", FORWARD, at(lambda m, s: surgery.around(m, lambda forward, x: x * m.scale))),
    "logits_factor": Fault("the number that logits are divided by × (1 + size)", FORWARD, at(_scale_logits, 1.0)),
    "soft_cap": Fault("the logits' cap × (1 + size)", FORWARD, at(config("final_logit_softcapping", lambda old, s: old * (1 + s)), 14.0)),
    "logit_cap": Fault("the logits' cap set to size; 0 for none", FORWARD, at(attribute("cap", lambda old, s: s), 0.0)),
    # sums over ranks
    "first_part": Fault("a sum over half of the inputs: that of the other rank is missing", FORWARD, at(_sum_first_half)),
    "bias_twice": Fault("a bias that both ranks add", FORWARD, at(_add_bias_again)),
    "narrow_sum": Fault("the parts of a sum over ranks in bf16", FORWARD, at(_sum_in_bf16)),
}  # fmt: skip
