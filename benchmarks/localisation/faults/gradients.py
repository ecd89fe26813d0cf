"""Faults of the gradients of parameters."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.localisation.pairs.pair import Planted
from benchmarks.localisation.tools import surgery
from benchmarks.localisation.tools.planting import GRADIENT, Fault, Plant, at, attribute, knob
from benchmarks.localisation.tools.run import Run


def _freeze(module: nn.Module, size: float) -> None:
    for parameter in module.parameters(recurse=False):
        parameter.requires_grad_(False)


def _detach_weight(module: nn.Linear, size: float) -> None:
    surgery.with_weight(module, Tensor.detach)


def _scale_gradient(module: nn.Module, size: float) -> None:
    module.weight.register_hook(lambda gradient: gradient * (1 + size))


def _zero_every_other_row(module: nn.Module, size: float) -> None:
    rows = torch.arange(module.weight.shape[0]) % 2
    module.weight.register_hook(lambda gradient: gradient * rows.reshape(-1, *[1] * (gradient.dim() - 1)))


def _untie_weight(module: nn.Module, size: float) -> None:
    copy = module.weight.detach().clone()
    surgery.with_weight(module, lambda weight: copy)


def _round_gradient(module: nn.Module, size: float) -> None:
    module.weight.register_hook(lambda gradient: gradient.bfloat16().to(gradient.dtype))


def _keep_last_micro(run: Run, planted: Planted) -> None:
    def forget(parameter: Tensor, counts: list[int]) -> None:
        counts[0] += 1
        if counts[0] % run.setup.micros:
            parameter.grad = None

    for parameter in run.model.get_submodule(planted.path).parameters():
        counts = [0]
        parameter.register_post_accumulate_grad_hook(lambda p, counts=counts: forget(p, counts))


def _keep_last_gradient(module: nn.Embedding, size: float) -> None:
    """Let only the last place of each token give its row a gradient."""

    def forward(original: surgery.Forward, ids: Tensor) -> Tensor:
        found = original(ids)
        flat = ids.flatten()
        later = (flat[:, None] == flat[None]).triu(1).any(1).reshape(ids.shape)
        return torch.where(later[..., None], found.detach(), found)

    surgery.around(module, forward)


def _accumulate_in_bf16(run: Run, planted: Planted) -> None:
    def narrow(parameter: Tensor) -> None:
        parameter.grad.copy_(parameter.grad.bfloat16())

    for parameter in run.model.get_submodule(planted.path).parameters():
        parameter.register_post_accumulate_grad_hook(narrow)


def _zero_first_expert(module: nn.Module, size: float) -> None:
    for parameter in module.parameters(recurse=False):
        parameter.register_hook(lambda gradient: torch.cat([0 * gradient[:1], gradient[1:]]))


def _detach_second_half(module: nn.Module, size: float) -> None:
    """Let the first half of the tokens give a norm's parameters their gradient."""

    def forward(original: surgery.Forward, x: Tensor) -> Tensor:
        first, second = x.tensor_split(2, 1)
        found, kept = original(first), dict(module._parameters)
        module._parameters.update({name: p if p is None else p.detach() for name, p in kept.items()})
        try:
            return torch.cat([found, original(second)], 1)
        finally:
            module._parameters.update(kept)

    surgery.around(module, forward)


def _hook_gradient(change: Callable[[Tensor, float], Tensor], default: float = 0.0) -> Plant:
    """Return what changes the gradient of a module's weight, or of the first of its own parameters."""

    def plant(module: nn.Module, size: float) -> None:
        parameter = getattr(module, "weight", None)
        parameter = next(module.parameters(recurse=False)) if parameter is None else parameter
        parameter.register_hook(lambda gradient: change(gradient, size))

    return at(plant, default)


def _zero_second_third(gradient: Tensor, size: float) -> Tensor:
    first, second, third = gradient.chunk(3)
    return torch.cat([first, torch.zeros_like(second), third])


def _in_fp8(gradient: Tensor, size: float) -> Tensor:
    scale = gradient.abs().max().clamp_min(1e-30) / torch.finfo(torch.float8_e5m2).max
    return (gradient / scale).to(torch.float8_e5m2).to(gradient.dtype) * scale


def _use_half_of_batch(module: nn.Linear, size: float) -> None:
    """Let the first half of the samples give a weight its gradient; what is passed back stays right."""

    def forward(original: surgery.Forward, x: Tensor) -> Tensor:
        weight = module.weight
        module._parameters["weight"] = weight.detach()
        try:
            found = original(x)
        finally:
            module._parameters["weight"] = weight
        kept = torch.arange(len(x)).lt(len(x) // 2).reshape(-1, *[1] * (x.dim() - 1))
        part = F.linear(x.detach() * kept, weight).to(found.dtype)
        return found + (part - part.detach())

    surgery.around(module, forward)


def _copy_tied_weight(module: nn.Module, size: float) -> None:
    """Let the head have a copy of the embedding's weight from now on."""
    embedding = next(child for child in module.children() if isinstance(child, nn.Embedding))
    module.copy = embedding.weight.detach().clone()


GRADIENT_FAULTS: dict[str, Fault] = {
    # factors, orders, precision
    "weight_gradient": Fault("the weight's gradient × (1 + size)", GRADIENT, at(lambda m, s: surgery.with_weight(m, lambda w: surgery.ScaledGradient.apply(w, 1 + s)), 0.01)),
    "gradient_hook": Fault("a hook that scales a parameter's gradient", GRADIENT, at(_scale_gradient, 0.1)),
    "half_gradient": Fault("every other row of a weight's gradient is zero", GRADIENT, at(_zero_every_other_row)),
    "bias_gradient": Fault("a bias's gradient × (1 + size)", GRADIENT, at(lambda m, s: m.bias.register_hook(lambda gradient: gradient * (1 + s)), -0.5)),
    "gradient_transposed": Fault("a square weight's gradient transposed", GRADIENT, at(lambda m, s: m.weight.register_hook(lambda gradient: gradient.T))),
    "reduced_narrow": Fault("a weight's gradient is reduced in bf16", GRADIENT, at(_round_gradient)),
    "accumulated_narrow": Fault("gradients are accumulated in bf16", GRADIENT, _accumulate_in_bf16),
    "flushed": Fault("elements of a weight's gradient below size of its largest are zero", GRADIENT, _hook_gradient(lambda g, s: g * (g.abs() >= s * g.abs().max()), 0.01)),
    "keys_lost": Fault("the middle third of a fused weight gets no gradient", GRADIENT, _hook_gradient(_zero_second_third)),
    "eight_bits": Fault("a weight's gradient in 8 bits", GRADIENT, _hook_gradient(_in_fp8)),
    "shards_exchanged": Fault("the halves of a weight's gradient exchanged", GRADIENT, _hook_gradient(lambda g, s: g.roll(len(g) // 2, 0))),
    # no gradient, or a part of it
    "frozen": Fault("a frozen module", GRADIENT, at(_freeze)),
    "weight_detached": Fault("a weight that is detached where it is used", GRADIENT, at(_detach_weight)),
    "padding_learns": Fault("padding's row of an embedding gets a gradient", GRADIENT, at(attribute("padding_idx", lambda old, s: None))),
    "by_frequency": Fault("an embedding's gradient divided by how often a token occurs", GRADIENT, at(attribute("scale_grad_by_freq", lambda old, s: True))),
    "untied": Fault("a tied weight that was copied instead", GRADIENT, at(_untie_weight)),
    "head_copied": Fault("a tied head that has a copy of the embedding's weight", GRADIENT, at(_copy_tied_weight)),
    "overwritten": Fault("a token's last place overwrites the gradients of the others", GRADIENT, at(_keep_last_gradient)),
    "expert_lost": Fault("the first expert gets no gradient", GRADIENT, at(_zero_first_expert)),
    "norm_partial": Fault("half of the tokens give a norm no gradient: a sum over ranks is missing", GRADIENT, at(_detach_second_half)),
    "half_of_batch": Fault("a weight's gradient is that of one half of the batch: not reduced over ranks", GRADIENT, at(_use_half_of_batch)),
    # micro-batches and steps
    "last_micro": Fault("gradients are cleared between micro-batches", GRADIENT, knob(kept_micros=lambda s: slice(-1, None)), True),
    "micro_missed": Fault("a module's gradient is that of the last micro-batch only", GRADIENT, _keep_last_micro),
    "not_cleared": Fault("gradients are never cleared", GRADIENT, knob(clears=lambda s: False), True),
}  # fmt: skip
