"""Decoders as other code bases cut them: Megatron, vLLM, Meta's Llama, nanoGPT; Qwen3 and Gemma 2 in own code."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.localisation.models.ports.blocks import (
    THETA,
    Angles,
    CoreAttention,
    PackedAttention,
    RMSNorm,
    Rotary,
    Sizes,
    attend,
    by_head,
    rotate,
)

# Megatron: sequence first; one matrix holds each group's queries beside their key and value


class Embedding(nn.Module):
    """Words, sequence first."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(sizes.vocabulary, sizes.width)

    def forward(self, ids: Tensor) -> Tensor:
        return self.word_embeddings(ids).transpose(0, 1).contiguous()


class SelfAttention(nn.Module):
    """Attention of which one matrix holds, group by group, queries, a key, a value."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes, parts = sizes, sizes.heads + 2 * sizes.shared
        self.linear_qkv = nn.Linear(sizes.width, parts * sizes.head)
        self.core_attention = CoreAttention(sizes.head**-0.5)
        self.linear_proj = nn.Linear(sizes.width, sizes.width, bias=False)

    def forward(self, hidden_states: Tensor, angles: Angles) -> Tensor:
        each = self.sizes.heads // self.sizes.shared
        mixed = self.linear_qkv(hidden_states).unflatten(-1, (self.sizes.shared, each + 2, self.sizes.head))
        query, key, value = (part.flatten(2, 3) for part in mixed.split([each, 1, 1], 3))
        query, key = rotate(query, angles), rotate(key, angles)
        return self.linear_proj(self.core_attention(query, key, value))


class MLP(nn.Module):
    """Gate and up in one matrix."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.linear_fc1 = nn.Linear(sizes.width, 2 * sizes.inner, bias=False)
        self.linear_fc2 = nn.Linear(sizes.inner, sizes.width, bias=False)

    def forward(self, hidden_states: Tensor) -> Tensor:
        gate, up = self.linear_fc1(hidden_states).chunk(2, -1)
        return self.linear_fc2(F.silu(gate) * up)


class TransformerLayer(nn.Module):
    """A layer of the decoder."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.input_layernorm, self.pre_mlp_layernorm = RMSNorm(sizes.width), RMSNorm(sizes.width)
        self.self_attention, self.mlp = SelfAttention(sizes), MLP(sizes)

    def forward(self, hidden_states: Tensor, angles: Angles) -> Tensor:
        x = hidden_states + self.self_attention(self.input_layernorm(hidden_states), angles)
        return x + self.mlp(self.pre_mlp_layernorm(x))


class TransformerBlock(nn.Module):
    """The layers and the norm behind them."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.layers = nn.ModuleList(TransformerLayer(sizes) for _ in range(sizes.layers))
        self.final_layernorm = RMSNorm(sizes.width)

    def forward(self, hidden_states: Tensor, angles: Angles) -> Tensor:
        for layer in self.layers:
            hidden_states = layer(hidden_states, angles)
        return self.final_layernorm(hidden_states)


class GPTModel(nn.Module):
    """What `Qwen2ForCausalLM` computes, as Megatron cuts it."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.embedding, self.rotary_pos_emb = Embedding(sizes), Rotary(sizes.head, THETA)
        self.decoder = TransformerBlock(sizes)
        self.output_layer = nn.Linear(sizes.width, sizes.vocabulary, bias=False)

    def forward(self, input_ids: Tensor) -> Tensor:
        cos, sin = self.rotary_pos_emb(input_ids.shape[1])
        angles = cos[:, None, None], sin[:, None, None]
        return self.output_layer(self.decoder(self.embedding(input_ids), angles)).transpose(0, 1).contiguous()


# vLLM: all tokens in one row; the norms add the residual


class AddNorm(nn.Module):
    """RMSNorm that adds the residual first, and returns it as well."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), 1e-6

    def forward(self, x: Tensor, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
        x = x if residual is None else x + residual
        wide = x.float()
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return normed.to(x.dtype) * self.weight, x


class SiluAndMul(nn.Module):
    """The activation of the first half times the second."""

    def forward(self, x: Tensor) -> Tensor:
        gate, up = x.chunk(2, -1)
        return F.silu(gate) * up


class FlatAttention(nn.Module):
    """Attention of tokens in one row, ``rows`` samples of equal length; queries, keys, values one after the other."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.parts = [sizes.heads, sizes.shared, sizes.shared]
        self.head = sizes.head
        self.qkv_proj = nn.Linear(sizes.width, sum(self.parts) * sizes.head, bias=False)
        self.rotary_emb = Rotary(sizes.head, THETA)
        self.o_proj = nn.Linear(sizes.width, sizes.width, bias=False)

    def forward(self, hidden_states: Tensor, rows: int) -> Tensor:
        mixed = self.qkv_proj(hidden_states).unflatten(0, (rows, -1)).unflatten(-1, (-1, self.head))
        query, key, value = (part.transpose(1, 2) for part in mixed.split(self.parts, 2))
        angles = self.rotary_emb(query.shape[2])
        mixed = attend(rotate(query, angles), rotate(key, angles), value, is_causal=True, enable_gqa=True)
        return self.o_proj(mixed.flatten(0, 1))


class FlatMLP(nn.Module):
    """Gate and up in one matrix."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.gate_up_proj = nn.Linear(sizes.width, 2 * sizes.inner, bias=False)
        self.act_fn, self.down_proj = SiluAndMul(), nn.Linear(sizes.inner, sizes.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act_fn(self.gate_up_proj(x)))


class FlatLayer(nn.Module):
    """A layer that hands its output on without the residual, and the residual beside it."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = AddNorm(sizes.width), AddNorm(sizes.width)
        self.self_attn, self.mlp = FlatAttention(sizes), FlatMLP(sizes)

    def forward(self, x: Tensor, residual: Tensor | None, rows: int) -> tuple[Tensor, Tensor]:
        x, residual = self.input_layernorm(x, residual)
        x, residual = self.post_attention_layernorm(self.self_attn(x, rows), residual)
        return self.mlp(x), residual


class FlatModel(nn.Module):
    """The model without its head."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(sizes.vocabulary, sizes.width)
        self.layers = nn.ModuleList(FlatLayer(sizes) for _ in range(sizes.layers))
        self.norm = AddNorm(sizes.width)

    def forward(self, ids: Tensor, rows: int) -> Tensor:
        x, residual = self.embed_tokens(ids), None
        for layer in self.layers:
            x, residual = layer(x, residual, rows)
        return self.norm(x, residual)[0]


class FlatLlama(nn.Module):
    """What `LlamaForCausalLM` computes, as vLLM cuts it."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.model, self.lm_head = FlatModel(sizes), nn.Linear(sizes.width, sizes.vocabulary, bias=False)

    def forward(self, input_ids: Tensor) -> Tensor:
        rows = len(input_ids)
        return self.lm_head(self.model(input_ids.flatten(), rows)).unflatten(0, (rows, -1))


# Meta: RoPE rotates neighbouring elements, as complex numbers


def turn(x: Tensor, turns: Tensor) -> Tensor:
    """Turn neighbours of (samples, length, heads, width) by complex numbers."""
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * turns[:, None]).flatten(3).to(x.dtype)


class Attention(nn.Module):
    """Attention with shared keys that are repeated."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes, shared = sizes, sizes.shared * sizes.head
        self.wq, self.wo = (nn.Linear(sizes.width, sizes.width, bias=False) for _ in range(2))
        self.wk, self.wv = (nn.Linear(sizes.width, shared, bias=False) for _ in range(2))

    def forward(self, x: Tensor, turns: Tensor) -> Tensor:
        query, key, value = (part.unflatten(-1, (-1, self.sizes.head)) for part in (self.wq(x), self.wk(x), self.wv(x)))
        query, key = turn(query, turns), turn(key, turns)
        groups = self.sizes.heads // self.sizes.shared
        key, value = (part.repeat_interleave(groups, 2) for part in (key, value))
        return self.wo(attend(*(part.transpose(1, 2) for part in (query, key, value)), is_causal=True))


class FeedForward(nn.Module):
    """Gate, down and up by their numbers."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.w1, self.w3 = (nn.Linear(sizes.width, sizes.inner, bias=False) for _ in range(2))
        self.w2 = nn.Linear(sizes.inner, sizes.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class MetaBlock(nn.Module):
    """A layer of the decoder."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.attention, self.feed_forward = Attention(sizes), FeedForward(sizes)
        self.attention_norm, self.ffn_norm = RMSNorm(sizes.width), RMSNorm(sizes.width)

    def forward(self, hidden_states: Tensor, turns: Tensor) -> Tensor:
        h = hidden_states + self.attention(self.attention_norm(hidden_states), turns)
        return h + self.feed_forward(self.ffn_norm(h))


class MetaLlama(nn.Module):
    """What `LlamaForCausalLM` computes, as Meta cuts it."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(sizes.vocabulary, sizes.width)
        self.layers = nn.ModuleList(MetaBlock(sizes) for _ in range(sizes.layers))
        self.norm, self.output = RMSNorm(sizes.width), nn.Linear(sizes.width, sizes.vocabulary, bias=False)
        self.head = sizes.head

    def forward(self, tokens: Tensor) -> Tensor:
        frequencies = THETA ** (-torch.arange(0, self.head, 2) / self.head)
        angles = torch.outer(torch.arange(tokens.shape[1]).float(), frequencies)
        turns = torch.polar(torch.ones_like(angles), angles)
        h = self.tok_embeddings(tokens)
        for layer in self.layers:
            h = layer(h, turns)
        return self.output(self.norm(h))


# nanoGPT: Linears in place of Conv1Ds


class CausalSelfAttention(nn.Module):
    """Attention of which one Linear holds queries, keys and values."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.heads = sizes.heads
        self.c_attn, self.c_proj = nn.Linear(sizes.width, 3 * sizes.width), nn.Linear(sizes.width, sizes.width)
        self.resid_dropout = nn.Dropout(0.0)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (by_head(part, self.heads) for part in self.c_attn(x).chunk(3, -1))
        return self.resid_dropout(self.c_proj(attend(query, key, value, is_causal=True)))


class NanoMLP(nn.Module):
    """Two Linears."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.c_fc, self.gelu = nn.Linear(width, 4 * width), nn.GELU(approximate="tanh")
        self.c_proj, self.dropout = nn.Linear(4 * width, width), nn.Dropout(0.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.c_proj(self.gelu(self.c_fc(x))))


class NanoBlock(nn.Module):
    """A layer of the decoder."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(sizes.width), CausalSelfAttention(sizes)
        self.ln_2, self.mlp = nn.LayerNorm(sizes.width), NanoMLP(sizes.width)

    def forward(self, hidden_states: Tensor) -> Tensor:
        x = hidden_states + self.attn(self.ln_1(hidden_states))
        return x + self.mlp(self.ln_2(x))


class NanoGPT(nn.Module):
    """What `GPT2LMHeadModel` computes, with Linears for its Conv1Ds."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(sizes.vocabulary, sizes.width),
                "wpe": nn.Embedding(32, sizes.width),
                "drop": nn.Dropout(0.0),
                "h": nn.ModuleList(NanoBlock(sizes) for _ in range(sizes.layers)),
                "ln_f": nn.LayerNorm(sizes.width),
            }
        )
        self.lm_head = nn.Linear(sizes.width, sizes.vocabulary, bias=False)
        self.lm_head.weight = self.transformer.wte.weight
        self.first = 0
        """the first position"""

    def forward(self, idx: Tensor) -> Tensor:
        places = torch.arange(self.first, self.first + idx.shape[1])
        x = self.transformer.drop(self.transformer.wte(idx) + self.transformer.wpe(places))
        for block in self.transformer.h:
            x = block(x)
        return self.lm_head(self.transformer.ln_f(x))


# Qwen3 in own code: norms of queries and keys after the transpose, a tied head without a module


class NormedAttention(nn.Module):
    """Attention in which each head's queries and keys are normed once the heads stand before the tokens."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.parts = [sizes.heads * 8, sizes.shared * 8, sizes.shared * 8]
        self.wqkv = nn.Linear(sizes.width, sum(self.parts), bias=False)
        self.norm_q, self.norm_k = RMSNorm(8), RMSNorm(8)
        self.wo = nn.Linear(sizes.heads * 8, sizes.width, bias=False)

    def forward(self, x: Tensor, angles: Angles) -> Tensor:
        query, key, value = (by_head(part, part.shape[-1] // 8) for part in self.wqkv(x).split(self.parts, -1))
        query, key = rotate(self.norm_q(query), angles), rotate(self.norm_k(key), angles)
        return self.wo(attend(query, key, value, is_causal=True, enable_gqa=True))


class OwnLayer(nn.Module):
    """A layer whose perceptron is in its own code."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.ln1, self.ln2, self.attn = RMSNorm(sizes.width), RMSNorm(sizes.width), NormedAttention(sizes)
        self.up_gate, self.down = (
            nn.Linear(sizes.width, 2 * sizes.inner, bias=False),
            nn.Linear(sizes.inner, sizes.width, bias=False),
        )

    def forward(self, hidden_states: Tensor, angles: Angles) -> Tensor:
        x = hidden_states + self.attn(self.ln1(hidden_states), angles)
        up, gate = self.up_gate(self.ln2(x)).chunk(2, -1)
        return x + self.down(up * F.silu(gate))


class OwnQwen3(nn.Module):
    """What `Qwen3ForCausalLM` computes, its head tied to the embedding by a call."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.embed, self.rope = nn.Embedding(sizes.vocabulary, sizes.width), Rotary(8, THETA)
        self.blocks = nn.ModuleList(OwnLayer(sizes) for _ in range(sizes.layers))
        self.ln_f = RMSNorm(sizes.width)
        self.copy: Tensor | None = None
        """in the head's place of the embedding's weight"""

    def forward(self, input_ids: Tensor) -> Tensor:
        x, angles = self.embed(input_ids), self.rope(input_ids.shape[1])
        for block in self.blocks:
            x = block(x, angles)
        return F.linear(self.ln_f(x), self.embed.weight if self.copy is None else self.copy)


# Gemma 2 in own code


class GemmaMLP(nn.Module):
    """Gate and up beside each other."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(sizes.width, sizes.inner, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(sizes.inner, sizes.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.gelu(self.gate_proj(x), approximate="tanh") * self.up_proj(x))


class GemmaLayer(nn.Module):
    """A layer with a norm before and behind each part."""

    def __init__(self, sizes: Sizes, window: int) -> None:
        super().__init__()
        self.self_attn, self.mlp = PackedAttention(sizes, 256**-0.5, 50.0, window), GemmaMLP(sizes)
        self.input_layernorm, self.post_attention_layernorm, self.pre_feedforward_layernorm = (
            RMSNorm(sizes.width, offset=1.0) for _ in range(3)
        )
        self.post_feedforward_layernorm = RMSNorm(sizes.width, offset=1.0)

    def forward(self, hidden_states: Tensor, angles: Angles) -> Tensor:
        x = self.post_attention_layernorm(self.self_attn(self.input_layernorm(hidden_states), angles))
        x = hidden_states + x
        return x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x)))


class OwnGemma2(nn.Module):
    """What `Gemma2ForCausalLM` computes: its embedding is scaled, and its head tied, in the model's own code."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.embedder, self.rope = nn.Embedding(sizes.vocabulary, sizes.width), Rotary(8, THETA)
        self.layers = nn.ModuleList(GemmaLayer(sizes, 6 if i % 2 == 0 else 0) for i in range(sizes.layers))
        self.norm, self.factor, self.cap = RMSNorm(sizes.width, offset=1.0), sizes.width**0.5, 30.0
        self.copy: Tensor | None = None
        """in the head's place of the embedding's weight"""

    def forward(self, input_token_ids: Tensor) -> Tensor:
        x = self.embedder(input_token_ids)
        x = x * torch.tensor(self.factor, dtype=x.dtype)
        cos, sin = self.rope(x.shape[1])
        for layer in self.layers:
            x = layer(x, (cos[:, None, None], sin[:, None, None]))
        logits = F.linear(self.norm(x), self.embedder.weight if self.copy is None else self.copy)
        return torch.tanh(logits / self.cap) * self.cap if self.cap else logits
