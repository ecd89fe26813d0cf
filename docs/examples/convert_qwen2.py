"""Hugging Face Qwen2 names and layouts to those of ``megatron_gpt.GPTModel``, and back.

Both directions only rename, cut and concatenate, so they take weights and gradients alike.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from megatron_gpt import GPTModel, TransformerConfig
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

_TOP = {  # Hugging Face: Megatron
    "model.embed_tokens.weight": "embedding.word_embeddings.weight",
    "model.norm.weight": "decoder.final_layernorm.weight",
    "lm_head.weight": "output_layer.weight",
}
_PER_LAYER = {
    "input_layernorm.weight": "input_layernorm.weight",
    "self_attn.o_proj.weight": "self_attention.linear_proj.weight",
    "post_attention_layernorm.weight": "pre_mlp_layernorm.weight",
    "mlp.down_proj.weight": "mlp.linear_fc2.weight",
}


def megatron_config(config: Qwen2Config) -> TransformerConfig:
    """The same model in Megatron's words."""
    return TransformerConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        ffn_hidden_size=config.intermediate_size,
        num_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        num_query_groups=config.num_key_value_heads,
        layernorm_epsilon=config.rms_norm_eps,
        rotary_base=config.rope_parameters["rope_theta"],
        init_method_std=config.initializer_range,
    )


def megatron_from(hf: Qwen2ForCausalLM) -> GPTModel:
    """A ``GPTModel`` with the weights of ``hf``."""
    config = megatron_config(hf.config)
    model = GPTModel(config)
    model.load_state_dict(to_megatron(hf.state_dict(), config))
    return model


def fuse_qkv(q: Tensor, k: Tensor, v: Tensor, groups: int) -> Tensor:
    """One tensor whose rows go group by group: the group's query heads, its key, its value."""
    return torch.cat([x.unflatten(0, (groups, -1)) for x in (q, k, v)], dim=1).flatten(0, 1)


def split_qkv(qkv: Tensor, config: TransformerConfig) -> tuple[Tensor, ...]:
    """Undo :func:`fuse_qkv`: q, k and v."""
    heads, groups, head = config.num_attention_heads, config.num_query_groups, config.kv_channels
    parts = qkv.unflatten(0, (groups, -1)).split([heads // groups * head, head, head], dim=1)
    return tuple(part.flatten(0, 1) for part in parts)


def to_megatron(tensors: Mapping[str, Tensor], config: TransformerConfig) -> dict[str, Tensor]:
    """Tensors by Hugging Face's parameter names to tensors by Megatron's."""
    converted = {megatron: tensors[hf] for hf, megatron in _TOP.items()}
    for n in range(config.num_layers):
        source, target = f"model.layers.{n}.", f"decoder.layers.{n}."
        for hf, megatron in _PER_LAYER.items():
            converted[target + megatron] = tensors[source + hf]
        for kind in ("weight", "bias"):
            q, k, v = (tensors[f"{source}self_attn.{x}_proj.{kind}"] for x in "qkv")
            qkv = fuse_qkv(q, k, v, config.num_query_groups)
            converted[f"{target}self_attention.linear_qkv.{kind}"] = qkv
        gate_up = [tensors[f"{source}mlp.{x}_proj.weight"] for x in ("gate", "up")]
        converted[f"{target}mlp.linear_fc1.weight"] = torch.cat(gate_up)
    return converted


def to_huggingface(tensors: Mapping[str, Tensor], config: TransformerConfig) -> dict[str, Tensor]:
    """Undo :func:`to_megatron`."""
    converted = {hf: tensors[megatron] for hf, megatron in _TOP.items()}
    for n in range(config.num_layers):
        source, target = f"decoder.layers.{n}.", f"model.layers.{n}."
        for hf, megatron in _PER_LAYER.items():
            converted[target + hf] = tensors[source + megatron]
        for kind in ("weight", "bias"):
            parts = split_qkv(tensors[f"{source}self_attention.linear_qkv.{kind}"], config)
            for x, part in zip("qkv", parts, strict=True):
                converted[f"{target}self_attn.{x}_proj.{kind}"] = part
        gate, up = tensors[f"{source}mlp.linear_fc1.weight"].chunk(2)
        converted |= {f"{target}mlp.gate_proj.weight": gate, f"{target}mlp.up_proj.weight": up}
    return converted
