"""Qwen2: Megatron-style against transformers'."""

from __future__ import annotations

import torch
from torch import nn
from transformers import Qwen2Config, Qwen2ForCausalLM

from benchmarks.matching.models.megatron import GPTModel, fused

CONFIG = Qwen2Config(
    vocab_size=48, hidden_size=32, intermediate_size=56, num_hidden_layers=3, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=32, tie_word_embeddings=False, attn_implementation="eager",
    use_cache=False,
)  # fmt: skip


def pair() -> tuple[nn.Module, nn.Module, tuple[torch.Tensor, ...]]:
    a, b = GPTModel(CONFIG, bias=True), Qwen2ForCausalLM(CONFIG)
    for layer in b.model.layers:  # they begin as zeros: then all are alike
        for part in (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj):
            nn.init.normal_(part.bias, std=0.1)
    a.load_state_dict(fused(b.state_dict(), CONFIG))
    return a, b, (torch.randint(0, CONFIG.vocab_size, (2, 7)),)
