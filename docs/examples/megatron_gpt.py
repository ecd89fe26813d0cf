"""A GPT in plain PyTorch with the class names, the nesting and the tensor layouts of Megatron-core.

It stands for "the other code base" in the demo: the same mathematics as Hugging Face's Qwen2, written another
way. The differences that matter when two recordings are compared:

* other names and another nesting (``decoder.layers.0.self_attention.linear_proj``);
* activations are ``[s, b, h]`` (sequence, batch, hidden), not ``[b, s, h]``;
* the q, k and v projections are one matrix, and so are the MLP's gate and up;
* linear-like modules return ``(output, bias or None)``;
* the rotary module returns angles, where Qwen2's returns their cosines and sines.

One process holds the whole model: the "parallel" classes keep their names, and their weights are not split.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class TransformerConfig:
    """The numbers of a model, by Megatron's names."""

    vocab_size: int
    hidden_size: int
    ffn_hidden_size: int
    num_layers: int
    num_attention_heads: int
    num_query_groups: int
    """How many key/value heads there are; each serves a group of query heads."""
    layernorm_epsilon: float = 1e-6
    rotary_base: float = 10_000.0
    add_qkv_bias: bool = True
    init_method_std: float = 0.02

    @property
    def kv_channels(self) -> int:
        """Size of one head."""
        return self.hidden_size // self.num_attention_heads


class _ParallelLinear(nn.Module):
    """``x @ weight.T + bias``, returned as ``(output, None)``: nobody is asked to add the bias later."""

    def __init__(self, input_size: int, output_size: int, *, config: TransformerConfig, bias: bool = False):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(output_size, input_size) * config.init_method_std)
        self.bias = nn.Parameter(torch.zeros(output_size)) if bias else None

    def forward(self, input_: Tensor) -> tuple[Tensor, None]:
        """``[…, in]`` to ``[…, out]``."""
        return F.linear(input_, self.weight, self.bias), None


class ColumnParallelLinear(_ParallelLinear):
    """Linear whose outputs would be spread over the tensor-parallel ranks."""


class RowParallelLinear(_ParallelLinear):
    """Linear whose inputs would be spread over the tensor-parallel ranks."""


class VocabParallelEmbedding(nn.Module):
    """Token embedding whose rows would be spread over the tensor-parallel ranks."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        weight = torch.randn(config.vocab_size, config.hidden_size) * config.init_method_std
        self.weight = nn.Parameter(weight)

    def forward(self, input_: Tensor) -> Tensor:
        """``[b, s]`` to ``[b, s, h]``."""
        return F.embedding(input_, self.weight)


class LanguageModelEmbedding(nn.Module):
    """Token embeddings, turned to Megatron's order of axes."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.word_embeddings = VocabParallelEmbedding(config)

    def forward(self, input_ids: Tensor, position_ids: Tensor) -> Tensor:
        """``[b, s]`` to ``[s, b, h]``; positions are not used here: they enter by rotation."""
        return self.word_embeddings(input_ids).transpose(0, 1).contiguous()


class RotaryEmbedding(nn.Module):
    """The angle by which rotary attention turns each channel at each position."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        channels = torch.arange(0, config.kv_channels, 2, dtype=torch.float32)
        inv_freq = config.rotary_base ** (-channels / config.kv_channels)
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def forward(self, max_seq_len: int) -> Tensor:
        """Angles ``[s, 1, 1, d]`` of the first ``max_seq_len`` positions."""
        positions = torch.arange(max_seq_len, dtype=torch.float32, device=self.inv_freq.device)
        angles = torch.outer(positions, self.inv_freq)
        return torch.cat([angles, angles], dim=-1)[:, None, None, :]


def apply_rotary_pos_emb(t: Tensor, angles: Tensor) -> Tensor:
    """Rotate channel i of ``t`` [s, b, heads, d] against channel i + d/2."""
    first, second = t.chunk(2, dim=-1)
    return t * angles.cos() + torch.cat([-second, first], dim=-1) * angles.sin()


class RMSNorm(nn.Module):
    """Scale every hidden state to a root mean square of 1, then by ``weight``."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.eps = config.layernorm_epsilon
        self.weight = nn.Parameter(torch.ones(config.hidden_size))

    def forward(self, x: Tensor) -> Tensor:
        """``[…, h]`` to ``[…, h]``; the norm itself in float32."""
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)).type_as(x) * self.weight


class DotProductAttention(nn.Module):
    """Softmax attention over grouped keys and values."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.attn_mask_type = "causal"
        self.softmax_scale = 1 / math.sqrt(config.kv_channels)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor) -> Tensor:
        """``[s, b, heads or groups, d]`` to ``[s, b, h]``; the mask is True where a query must not look."""
        heads_per_group = query.size(2) // key.size(2)
        key = key.repeat_interleave(heads_per_group, dim=2)
        value = value.repeat_interleave(heads_per_group, dim=2)
        scores = torch.einsum("qbnd,kbnd->bnqk", query, key) * self.softmax_scale
        if self.attn_mask_type != "no_mask":
            scores = scores.masked_fill(attention_mask, torch.finfo(scores.dtype).min)
        probs = scores.float().softmax(dim=-1).type_as(scores)
        return torch.einsum("bnqk,kbnd->qbnd", probs, value).flatten(2)


class SelfAttention(nn.Module):
    """Grouped-query self-attention with one projection for q, k and v.

    The rows of ``linear_qkv`` go group by group: the group's query heads, then its key, then its value.
    """

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.groups, self.head = config.num_query_groups, config.kv_channels
        self.heads_per_group = config.num_attention_heads // config.num_query_groups
        qkv_size = (self.heads_per_group + 2) * self.groups * self.head
        self.core_attention = DotProductAttention(config)
        self.linear_proj = RowParallelLinear(config.hidden_size, config.hidden_size, config=config)
        self.linear_qkv = ColumnParallelLinear(config.hidden_size, qkv_size, config=config, bias=config.add_qkv_bias)

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor, rotary_pos_emb: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """``[s, b, h]`` to ``[s, b, h]``, with the bias that the caller is to add (Qwen2 has none)."""
        mixed_qkv, _ = self.linear_qkv(hidden_states)
        per_group = mixed_qkv.unflatten(-1, (self.groups, self.heads_per_group + 2, self.head))
        query = per_group[..., :-2, :].flatten(2, 3)  # [s, b, heads, d]; key and value [s, b, groups, d]
        key, value = per_group[..., -2, :], per_group[..., -1, :]
        query = apply_rotary_pos_emb(query, rotary_pos_emb)
        key = apply_rotary_pos_emb(key, rotary_pos_emb)
        return self.linear_proj(self.core_attention(query, key, value, attention_mask))


class MLP(nn.Module):
    """``fc2(act(gate) * up)``; ``linear_fc1`` gives gate and up at once, gate first."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.activation_func: Callable[[Tensor], Tensor] = F.silu
        self.linear_fc1 = ColumnParallelLinear(config.hidden_size, 2 * config.ffn_hidden_size, config=config)
        self.linear_fc2 = RowParallelLinear(config.ffn_hidden_size, config.hidden_size, config=config)

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor | None]:
        """``[s, b, h]`` to ``[s, b, h]``, with the bias that the caller is to add (Qwen2 has none)."""
        gate, up = self.linear_fc1(hidden_states)[0].chunk(2, dim=-1)
        return self.linear_fc2(self.activation_func(gate) * up)


class TransformerLayer(nn.Module):
    """Attention and MLP, each behind a norm and around a residual."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.input_layernorm = RMSNorm(config)
        self.self_attention = SelfAttention(config)
        self.pre_mlp_layernorm = RMSNorm(config)
        self.mlp = MLP(config)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor, rotary_pos_emb: Tensor) -> tuple[Tensor, None]:
        """``[s, b, h]`` to ``[s, b, h]``; the None is Megatron's cross-attention context."""
        attention, _ = self.self_attention(
            self.input_layernorm(hidden_states), attention_mask=attention_mask, rotary_pos_emb=rotary_pos_emb
        )
        hidden_states = hidden_states + attention
        mlp, _ = self.mlp(self.pre_mlp_layernorm(hidden_states))
        return hidden_states + mlp, None


class TransformerBlock(nn.Module):
    """All layers and the norm behind them."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.layers = nn.ModuleList(TransformerLayer(config) for _ in range(config.num_layers))
        self.final_layernorm = RMSNorm(config)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor, rotary_pos_emb: Tensor) -> Tensor:
        """``[s, b, h]`` to ``[s, b, h]``."""
        for layer in self.layers:
            hidden_states, _ = layer(
                hidden_states=hidden_states, attention_mask=attention_mask, rotary_pos_emb=rotary_pos_emb
            )
        return self.final_layernorm(hidden_states)


class GPTModel(nn.Module):
    """The language model: embedding, decoder, output layer."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.config = config
        self.embedding = LanguageModelEmbedding(config)
        self.rotary_pos_emb = RotaryEmbedding(config)
        self.decoder = TransformerBlock(config)
        self.output_layer = ColumnParallelLinear(config.hidden_size, config.vocab_size, config=config)

    def forward(self, input_ids: Tensor, position_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Token ids ``[b, s]`` to logits ``[b, s, v]``."""
        hidden_states = self.decoder(
            hidden_states=self.embedding(input_ids=input_ids, position_ids=position_ids),
            attention_mask=attention_mask,
            rotary_pos_emb=self.rotary_pos_emb(input_ids.size(1)),
        )
        logits, _ = self.output_layer(hidden_states)
        return logits.transpose(0, 1).contiguous()


def left_to_right(input_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Position ids ``[b, s]`` and causal mask ``[1, 1, s, s]`` (True = hidden) for ``input_ids`` [b, s]."""
    length = input_ids.size(1)
    positions = torch.arange(length, device=input_ids.device).expand_as(input_ids)
    mask = torch.ones(1, 1, length, length, dtype=torch.bool, device=input_ids.device).triu(diagonal=1)
    return positions, mask
