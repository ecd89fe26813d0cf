"""Three small mixtures of experts of transformers, and twenty faults in them."""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

LAYERS, FAULTY = 4, 2
_COMMON = {
    "vocab_size": 256, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": LAYERS, "num_attention_heads": 4,
    "max_position_embeddings": 256, "use_cache": False, "attn_implementation": "eager",
}  # fmt: skip


def qwen3(experts: str) -> nn.Module:
    sizes = {
        "moe_intermediate_size": 48,
        "num_experts": 16,
        "num_experts_per_tok": 2,
        "head_dim": 16,
        "num_key_value_heads": 2,
    }
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**_COMMON, **sizes, norm_topk_prob=True, experts_implementation=experts))


def mixtral(experts: str) -> nn.Module:
    sizes = {"num_local_experts": 8, "num_experts_per_tok": 2, "num_key_value_heads": 2}
    return MixtralForCausalLM(MixtralConfig(**_COMMON, **sizes, experts_implementation=experts))


def deepseek(experts: str) -> nn.Module:
    sizes = {
        "moe_intermediate_size": 48, "n_routed_experts": 16, "num_experts_per_tok": 3, "n_group": 4, "topk_group": 2,
        "n_shared_experts": 1, "first_k_dense_replace": 1, "num_key_value_heads": 4, "q_lora_rank": 32, "kv_lora_rank": 16,
        "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16, "routed_scaling_factor": 2.5,
    }  # fmt: skip
    return DeepseekV3ForCausalLM(DeepseekV3Config(**_COMMON, **sizes, experts_implementation=experts))


ARCHITECTURES = {"qwen3": qwen3, "mixtral": mixtral, "deepseek": deepseek}


def build(architecture: str, weights: str, dtype: torch.dtype, experts: str) -> nn.Module:
    """Return a model; ``weights="trained"``: vectors of the size that trained ones have, and routers that are sure of what they choose."""
    torch.manual_seed(0)
    model = ARCHITECTURES[architecture](experts)
    generator = torch.Generator().manual_seed(1)
    exact = {name: each.clone() for name, each in model.named_buffers() if name.endswith("inv_freq")}
    for name, each in [*model.named_parameters(), *model.named_buffers()]:
        if name.endswith("e_score_correction_bias"):
            each.copy_(0.02 * torch.randn(each.shape, generator=generator))
        elif weights == "trained" and each.dim() > 1:
            large = 4.0 if name.endswith("gate.weight") else 1.0
            size = 1.0 if "embed" in name else large * each.shape[-1] ** -0.5
            each.data = size * torch.randn(each.shape, generator=generator)
        elif weights == "trained" and name.endswith("norm.weight"):
            each.data = torch.exp(0.3 * torch.randn(each.shape, generator=generator))
        elif name.endswith("gate.weight"):
            each.data = 0.02 * torch.randn(each.shape, generator=generator)
    model = model.to(dtype)
    for name, value in exact.items():
        model.get_submodule(name.rpartition(".")[0]).inv_freq = value
    return model


@dataclass(frozen=True)
class Fault:
    """Something wrong in one model."""

    name: str
    architecture: str
    plant: Callable[[Any], None]
    """given the layer that it is planted in"""
    right: tuple[str, ...]
    """paths in the layer that may be named: the module, or where its code hands the result on"""


def _around(get: Callable[[Any], nn.Module], change: Callable[..., Any]) -> Callable[[Any], None]:
    """Return what lets ``change(forward, *args)`` take the place of a module's forward."""

    def plant(layer: Any) -> None:
        module = get(layer)
        plain = module.forward
        module.forward = types.MethodType(lambda self, *args, **kwargs: change(plain, *args, **kwargs), module)

    return plant


def _sets(get: Callable[[Any], Any], name: str, value: Any) -> Callable[[Any], None]:
    return lambda layer: setattr(get(layer), name, value)


def _experts(layer: Any) -> Any:
    return layer.mlp.experts


def _gate(layer: Any) -> Any:
    return layer.mlp.gate


def _attention(layer: Any) -> Any:
    return layer.self_attn


def _swapped(layer: Any) -> None:
    halves = layer.mlp.experts.gate_up_proj.shape[1] // 2

    def change(run: Callable[..., Any], x: Tensor, chosen: Tensor, weights: Tensor) -> Any:
        experts = layer.mlp.experts
        packed = experts.gate_up_proj
        del experts.gate_up_proj
        experts.gate_up_proj = packed.roll(halves, 1)
        try:
            return run(x, chosen, weights)
        finally:
            del experts.gate_up_proj
            experts.gate_up_proj = packed

    _around(_experts, change)(layer)


def _not_normalised(run: Callable[..., Any], x: Tensor) -> Any:
    logits, _, chosen = run(x)
    return logits, logits.float().softmax(-1).gather(-1, chosen).to(logits.dtype), chosen


def _biased_weights(layer: Any) -> None:
    """Weights from the scores with the bias that is for the choice alone."""
    gate = layer.mlp.gate

    def change(run: Callable[..., Any], x: Tensor) -> Any:
        logits, _, chosen = run(x)
        weights = (logits.sigmoid() + 10 * gate.e_score_correction_bias).gather(1, chosen)
        return logits, gate.routed_scaling_factor * weights / weights.sum(-1, keepdim=True), chosen

    _around(_gate, change)(layer)


def _ungrouped(layer: Any) -> None:
    layer.mlp.gate.topk_group = layer.mlp.gate.num_group


def _worst_second(run: Callable[..., Any], x: Tensor) -> Any:
    logits, _, _ = run(x)
    scores = logits.float().softmax(-1)
    values, chosen = scores.topk(3, -1)
    values, chosen = values[:, [0, 2]], chosen[:, [0, 2]]
    return logits, (values / values.sum(-1, keepdim=True)).to(logits.dtype), chosen


def _first_alone(run: Callable[..., Any], x: Tensor, chosen: Tensor, weights: Tensor) -> Any:
    return run(x, chosen, torch.cat([weights[:, :1], torch.zeros_like(weights[:, 1:])], -1))


def _dropped(run: Callable[..., Any], x: Tensor, chosen: Tensor, weights: Tensor) -> Any:
    """Tokens beyond what an expert has room for are dropped."""
    place = torch.nn.functional.one_hot(chosen, int(chosen.max()) + 1).flatten(0, 1).cumsum(0).view(*chosen.shape, -1)
    room = place.gather(-1, chosen[..., None])[..., 0] <= chosen.numel() / (int(chosen.max()) + 1)
    return run(x, chosen, weights * room)


FAULTS = (
    Fault("router: weights not normalised", "qwen3", _around(_gate, _not_normalised), ("mlp.gate", "mlp")),
    Fault("router: first and third best", "qwen3", _around(_gate, _worst_second), ("mlp.gate", "mlp")),
    Fault("router: weights with the bias of the choice", "deepseek", _biased_weights, ("mlp.gate", "mlp")),
    Fault("router: scale of the weights left out", "deepseek", _sets(_gate, "routed_scaling_factor", 1.0), ("mlp.gate", "mlp")),
    Fault("router: all groups", "deepseek", _ungrouped, ("mlp.gate", "mlp")),
    Fault("router: jitter left on", "mixtral", _around(_gate, lambda run, x: run(x * (0.5 + torch.rand(x.shape, generator=torch.Generator().manual_seed(5))).to(x.dtype))), ("mlp.gate", "mlp")),
    Fault("experts: gelu", "qwen3", _sets(_experts, "act_fn", nn.GELU()), ("mlp.experts.act_fn", "mlp.experts", "mlp")),
    Fault("experts: output times 1.05", "qwen3", _around(_experts, lambda run, *a: run(*a) * 1.05), ("mlp.experts", "mlp")),
    Fault("experts: gate and up exchanged", "mixtral", _swapped, ("mlp.experts", "mlp.experts.act_fn", "mlp")),
    Fault("experts: the first of the chosen alone", "mixtral", _around(_experts, _first_alone), ("mlp.experts", "mlp")),
    Fault("experts: weights left out", "qwen3", _around(_experts, lambda run, x, c, w: run(x, c, torch.full_like(w, 1 / w.shape[-1]))), ("mlp.experts", "mlp")),
    Fault("experts: tokens beyond a capacity dropped", "mixtral", _around(_experts, _dropped), ("mlp.experts", "mlp")),
    Fault("experts: number off by one", "deepseek", _around(_experts, lambda run, x, c, w: run(x, (c + 1) % 16, w)), ("mlp.experts", "mlp")),
    Fault("experts: input rounded to 4 steps", "mixtral", _around(_experts, lambda run, x, *a: run((x * 4 / x.abs().amax(-1, keepdim=True)).round() * x.abs().amax(-1, keepdim=True) / 4, *a)), ("mlp.experts", "mlp")),
    Fault("shared expert: twice", "deepseek", _around(lambda layer: layer.mlp.shared_experts, lambda run, x: 2 * run(x)), ("mlp.shared_experts", "mlp")),
    Fault("shared expert: gelu", "deepseek", lambda layer: setattr(layer.mlp.shared_experts, "act_fn", nn.GELU()), ("mlp.shared_experts.act_fn", "mlp.shared_experts", "mlp")),
    Fault("norm: eps 0.3", "mixtral", _sets(lambda layer: layer.post_attention_layernorm, "variance_epsilon", 0.3), ("post_attention_layernorm",)),
    Fault("norm: of the queries left out", "qwen3", _around(lambda layer: layer.self_attn.q_norm, lambda run, x: x), ("self_attn.q_norm",)),
    Fault("attention: tokens see those behind them", "mixtral", _around(_attention, lambda run, *a, **k: run(*a, **{**k, "attention_mask": None})), ("self_attn", "self_attn.o_proj")),
    Fault("attention: output times 0.9", "deepseek", _around(_attention, lambda run, *a, **k: (lambda out: (0.9 * out[0], *out[1:]))(run(*a, **k))), ("self_attn", "self_attn.o_proj")),
)  # fmt: skip
