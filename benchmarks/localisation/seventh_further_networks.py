"""More models of the seventh set as other code bases cut them: nanoGPT, experts in stacks, Gemma 2, BERT, ViT."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.localisation.seventh_blocks import (
    Angles,
    CoreAttention,
    RMSNorm,
    Rotary,
    Sizes,
    attend,
    by_head,
    rotate,
)
from benchmarks.localisation.seventh_networks import THETA

# nanoGPT


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


# Experts in stacks


class Answer(NamedTuple):
    """What a model with experts returns."""

    logits: Tensor
    aux_loss: Tensor


class StackedExperts(nn.Module):
    """Every expert computes every token; weights of zero leave out those that were not chosen."""

    def __init__(self, sizes: Sizes, count: int) -> None:
        super().__init__()
        self.w1, self.w3 = (nn.Parameter(torch.empty(count, sizes.inner, sizes.width)) for _ in range(2))
        self.w2 = nn.Parameter(torch.empty(count, sizes.width, sizes.inner))

    def forward(self, x: Tensor, weights: Tensor) -> Tensor:
        gate, up = (torch.einsum("th,efh->tef", x, each) for each in (self.w1, self.w3))
        each = torch.einsum("tef,ehf->teh", F.silu(gate) * up, self.w2)
        return (each * weights[..., None].to(each.dtype)).sum(1)


class Experts(nn.Module):
    """A router and its experts; returns the router's logits as well."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(sizes.width, 4, bias=False), StackedExperts(sizes, 4)
        self.top, self.sums_to_one, self.softmax_first, self.moved = 2, True, True, 0

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
        flat = hidden_states.flatten(0, 1)
        logits = self.router(flat)
        scores = F.softmax(logits.float(), -1) if self.softmax_first else logits.float().sigmoid()
        best, chosen = scores.topk(self.top, -1)
        if self.sums_to_one:
            best = best / best.sum(-1, keepdim=True)
        weights = torch.zeros_like(scores).scatter(1, (chosen + self.moved) % 4, best)
        return self.experts(flat, weights).unflatten(0, hidden_states.shape[:2]), logits


class PackedAttention(nn.Module):
    """Attention with one matrix for queries, keys and values, one after the other; softmax in its own code."""

    def __init__(self, sizes: Sizes, scale: float, cap: float = 0.0, window: int = 0) -> None:
        super().__init__()
        self.parts, self.width = [sizes.heads, sizes.shared, sizes.shared], 8
        self.qkv_proj = nn.Linear(sizes.width, sum(self.parts) * 8, bias=False)
        self.core = CoreAttention(scale, cap=cap, window=window)
        self.o_proj = nn.Linear(sizes.heads * 8, sizes.width, bias=False)

    def forward(self, x: Tensor, angles: Angles) -> Tensor:
        mixed = self.qkv_proj(x).unflatten(-1, (-1, 8)).transpose(0, 1)
        query, key, value = mixed.split(self.parts, 2)
        return self.o_proj(self.core(rotate(query, angles), rotate(key, angles), value).transpose(0, 1))


class ExpertLayer(nn.Module):
    """A layer of the decoder; returns the router's logits as well."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.norm1, self.norm2 = RMSNorm(sizes.width), RMSNorm(sizes.width)
        self.attention, self.moe = PackedAttention(sizes, 8**-0.5), Experts(sizes)

    def forward(self, hidden_states: Tensor, angles: Angles) -> tuple[Tensor, Tensor]:
        x = hidden_states + self.attention(self.norm1(hidden_states), angles)
        found, logits = self.moe(self.norm2(x))
        return x + found, logits


class OwnMixtral(nn.Module):
    """What `MixtralForCausalLM` computes."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.words, self.rotary = nn.Embedding(sizes.vocabulary, sizes.width), Rotary(8, THETA)
        self.layers = nn.ModuleList(ExpertLayer(sizes) for _ in range(sizes.layers))
        self.norm, self.head = RMSNorm(sizes.width), nn.Linear(sizes.width, sizes.vocabulary, bias=False)

    def forward(self, input_ids: Tensor) -> Answer:
        x, routed = self.words(input_ids), []
        cos, sin = self.rotary(input_ids.shape[1])
        for layer in self.layers:
            x, logits = layer(x, (cos[:, None, None], sin[:, None, None]))
            routed.append(logits)
        return Answer(self.head(self.norm(x)), balance(torch.cat(routed)))


def balance(logits: Tensor) -> Tensor:
    """Return by how much the experts are used unequally: 2 (those that a token is given to) where they are not."""
    scores = F.softmax(logits, -1)
    given = F.one_hot(scores.topk(2, -1).indices, 4).sum(1).float().mean(0)
    return 4 * (given * scores.float().mean(0)).sum()


# Gemma 2


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


# BERT in one level


class FlatEncoderLayer(nn.Module):
    """A layer whose attention is in its own code."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.heads, width = sizes.heads, sizes.width
        self.qkv, self.out, self.norm1 = nn.Linear(width, 3 * width), nn.Linear(width, width), nn.LayerNorm(width)
        self.ff1, self.ff2, self.norm2 = (
            nn.Linear(width, sizes.inner),
            nn.Linear(sizes.inner, width),
            nn.LayerNorm(width),
        )
        for norm in (self.norm1, self.norm2):
            norm.eps = 1e-12

    def forward(self, hidden_states: Tensor, seen: Tensor | None) -> Tensor:
        query, key, value = (by_head(part, self.heads) for part in self.qkv(hidden_states).chunk(3, -1))
        x = self.norm1(hidden_states + self.out(attend(query, key, value, attn_mask=seen)))
        return self.norm2(x + self.ff2(F.gelu(self.ff1(x))))


class FlatBert(nn.Module):
    """What `BertForMaskedLM` computes: embeddings, layers and head side by side."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width = sizes.width
        self.tokens, self.positions = nn.Embedding(sizes.vocabulary, width), nn.Embedding(32, width)
        self.segments, self.norm = nn.Embedding(2, width), nn.LayerNorm(width, eps=1e-12)
        self.layers = nn.ModuleList(FlatEncoderLayer(sizes) for _ in range(sizes.layers))
        self.mlm_dense, self.mlm_norm = nn.Linear(width, width), nn.LayerNorm(width, eps=1e-12)
        self.mlm_bias = nn.Parameter(torch.zeros(sizes.vocabulary))
        self.masks, self.copy = True, None

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.tokens(input_ids) + self.segments(torch.zeros_like(input_ids))
        x = self.norm(x + self.positions(torch.arange(input_ids.shape[1])))
        seen = attention_mask[:, None, None].bool() if self.masks else None
        for layer in self.layers:
            x = layer(x, seen)
        x = self.mlm_norm(F.gelu(self.mlm_dense(x)))
        return F.linear(x, self.tokens.weight if self.copy is None else self.copy, self.mlm_bias)


# ViT whose patches are cut out before a Linear


class PatchLinear(nn.Module):
    """Cuts pictures into patches, channels last in each, and projects them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.proj = nn.Linear(3 * 4 * 4, width)

    def forward(self, pixels: Tensor) -> Tensor:
        patches = pixels.unflatten(3, (-1, 4)).unflatten(2, (-1, 4)).permute(0, 2, 4, 3, 5, 1)
        return self.proj(patches.flatten(3).flatten(1, 2))


class VitAttention(nn.Module):
    """Attention with one matrix, softmax in its own code."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.heads, self.scale = sizes.heads, sizes.head**-0.5
        self.qkv, self.proj = nn.Linear(sizes.width, 3 * sizes.width), nn.Linear(sizes.width, sizes.width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (by_head(part, self.heads) for part in self.qkv(x).chunk(3, -1))
        weights = F.softmax((query * self.scale) @ key.transpose(-1, -2), -1)
        return self.proj((weights.to(value.dtype) @ value).transpose(1, 2).flatten(2))


class VitBlock(nn.Module):
    """A layer of the encoder."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(sizes.width, eps=1e-12) for _ in range(2))
        self.attn = VitAttention(sizes)
        self.fc1, self.act, self.fc2 = (
            nn.Linear(sizes.width, sizes.inner),
            nn.GELU(),
            nn.Linear(sizes.inner, sizes.width),
        )

    def forward(self, hidden_states: Tensor) -> Tensor:
        x = hidden_states + self.attn(self.norm1(hidden_states))
        return x + self.fc2(self.act(self.fc1(self.norm2(x))))


class OwnViT(nn.Module):
    """What `ViTForImageClassification` computes."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.patch = PatchLinear(sizes.width)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, sizes.width))
        self.pos_embed = nn.Parameter(torch.zeros(1, 17, sizes.width))
        self.blocks = nn.ModuleList(VitBlock(sizes) for _ in range(sizes.layers))
        self.norm, self.head = nn.LayerNorm(sizes.width, eps=1e-12), nn.Linear(sizes.width, 10)

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.patch(pixels)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1) + self.pos_embed
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])
