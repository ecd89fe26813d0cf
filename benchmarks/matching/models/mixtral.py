"""Mixtral: experts as a list of MLPs, Megatron-style, against transformers' experts stacked in two tensors."""

from __future__ import annotations

import torch
from torch import nn
from transformers import MixtralConfig, MixtralForCausalLM

from benchmarks.matching.models.megatron import GPTModel, fused

CONFIG = MixtralConfig(
    vocab_size=48, hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=32, num_local_experts=4, num_experts_per_tok=2,
    rope_theta=10000.0, attn_implementation="eager", use_cache=False,
)  # fmt: skip


def pair() -> tuple[nn.Module, nn.Module, tuple[torch.Tensor, ...]]:
    a, b = GPTModel(CONFIG, experts=CONFIG.num_local_experts), MixtralForCausalLM(CONFIG)
    a.load_state_dict(fused(b.state_dict(), CONFIG))
    return a, b, (torch.randint(0, CONFIG.vocab_size, (2, 7)),)
