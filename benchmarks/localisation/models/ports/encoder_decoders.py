"""T5 in own code, and Whisper as OpenAI cuts it."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.localisation.models.ports.blocks import RMSNorm, Sizes, attend, by_head

# T5: each stack reads its table of relative positions once; keys and values of cross attention are packed


def bucket(apart: Tensor, both_ways: bool, most: int) -> Tensor:
    """Return the number of a distance of keys from queries: small ones each, larger ones by their logarithm."""
    count, first = 32, torch.zeros_like(apart)
    if both_ways:
        count, first = 16, (apart > 0) * 16
        apart = apart.abs()
    else:
        apart = (-apart).clamp_min(0)
    exact = count // 2
    large = exact + (torch.log(apart.float() / exact) / math.log(most / exact) * (count - exact)).long()
    return first + torch.where(apart < exact, apart, large.clamp_max(count - 1))


class Positions(nn.Module):
    """What is added to the scores of every layer of a stack: by distance, and nothing for what is hidden."""

    def __init__(self, sizes: Sizes, both_ways: bool) -> None:
        super().__init__()
        self.table, self.both_ways, self.most = nn.Embedding(32, sizes.heads), both_ways, 128

    def forward(self, length: int, seen: Tensor | None) -> Tensor:
        apart = torch.arange(length) - torch.arange(length)[:, None]
        bias = self.table(bucket(apart, self.both_ways, self.most)).permute(2, 0, 1)[None]
        return bias.masked_fill((apart > 0) if seen is None else ~seen, torch.finfo(bias.dtype).min)


class PlainAttention(nn.Module):
    """Attention within a stack, not scaled."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.heads, inner, self.scale = sizes.heads, sizes.width, 1.0
        self.qkv, self.out = nn.Linear(sizes.width, 3 * inner, bias=False), nn.Linear(inner, sizes.width, bias=False)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        query, key, value = (by_head(part, self.heads) for part in self.qkv(x).chunk(3, -1))
        weights = F.softmax(query @ key.transpose(-1, -2) * self.scale + bias, -1)
        return self.out((weights.to(value.dtype) @ value).transpose(1, 2).flatten(2))


class CrossAttention(nn.Module):
    """Attention to the other stack."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.heads, inner = sizes.heads, sizes.width
        self.q, self.kv = nn.Linear(sizes.width, inner, bias=False), nn.Linear(sizes.width, 2 * inner, bias=False)
        self.out = nn.Linear(inner, sizes.width, bias=False)

    def forward(self, x: Tensor, memory: Tensor, seen: Tensor) -> Tensor:
        key, value = (by_head(part, self.heads) for part in self.kv(memory).chunk(2, -1))
        return self.out(attend(by_head(self.q(x), self.heads), key, value, attn_mask=seen, scale=1.0))


class T5Part(nn.Module):
    """A layer of either stack."""

    def __init__(self, sizes: Sizes, crosses: bool) -> None:
        super().__init__()
        self.norm1, self.attn = RMSNorm(sizes.width), PlainAttention(sizes)
        if crosses:
            self.norm2, self.cross = RMSNorm(sizes.width), CrossAttention(sizes)
        self.norm3, self.relu = RMSNorm(sizes.width), nn.ReLU()
        self.wi, self.wo = (
            nn.Linear(sizes.width, sizes.inner, bias=False),
            nn.Linear(sizes.inner, sizes.width, bias=False),
        )

    def forward(self, x: Tensor, bias: Tensor, memory: Tensor | None = None, seen: Tensor | None = None) -> Tensor:
        x = x + self.attn(self.norm1(x), bias)
        if memory is not None:
            x = x + self.cross(self.norm2(x), memory, seen)
        return x + self.wo(self.relu(self.wi(self.norm3(x))))


class OwnT5(nn.Module):
    """What `T5ForConditionalGeneration` computes."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.table = nn.Embedding(sizes.vocabulary, sizes.width)
        self.enc_positions, self.dec_positions = Positions(sizes, True), Positions(sizes, False)
        self.enc = nn.ModuleList(T5Part(sizes, False) for _ in range(sizes.layers))
        self.dec = nn.ModuleList(T5Part(sizes, True) for _ in range(sizes.layers))
        self.enc_norm, self.dec_norm = RMSNorm(sizes.width), RMSNorm(sizes.width)
        self.factor = sizes.width**-0.5
        self.copy: Tensor | None = None
        """in the head's place of the embedding's weight"""

    def forward(self, input_ids: Tensor, attention_mask: Tensor, decoder_input_ids: Tensor) -> Tensor:
        seen = attention_mask[:, None, None].bool()
        memory, bias = self.table(input_ids), self.enc_positions(input_ids.shape[1], seen)
        for part in self.enc:
            memory = part(memory, bias)
        memory, bias = self.enc_norm(memory), self.dec_positions(decoder_input_ids.shape[1], None)
        x = self.table(decoder_input_ids)
        for part in self.dec:
            x = part(x, bias, memory, seen)
        return F.linear(self.dec_norm(x) * self.factor, self.table.weight if self.copy is None else self.copy)


# Whisper


class MultiHeadAttention(nn.Module):
    """Attention that scales queries and keys alike."""

    def __init__(self, sizes: Sizes, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal, self.scale, width = sizes.heads, causal, sizes.head**-0.25, sizes.width
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor, xa: Tensor | None = None) -> Tensor:
        memory = x if xa is None else xa
        query, key = by_head(self.query(x), self.heads) * self.scale, by_head(self.key(memory), self.heads) * self.scale
        scores = query @ key.transpose(-1, -2)
        if self.causal:
            hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
            scores = scores.masked_fill(hidden, -math.inf)
        weights = F.softmax(scores.float(), -1).to(query.dtype)
        return self.out((weights @ by_head(self.value(memory), self.heads)).transpose(1, 2).flatten(2))


class ResidualAttentionBlock(nn.Module):
    """A layer of either half."""

    def __init__(self, sizes: Sizes, crosses: bool) -> None:
        super().__init__()
        width = sizes.width
        self.attn, self.attn_ln = MultiHeadAttention(sizes, causal=crosses), nn.LayerNorm(width)
        if crosses:
            self.cross_attn, self.cross_attn_ln = MultiHeadAttention(sizes), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, sizes.inner), nn.GELU(), nn.Linear(sizes.inner, width))
        self.mlp_ln = nn.LayerNorm(width)

    def forward(self, x: Tensor, xa: Tensor | None = None) -> Tensor:
        x = x + self.attn(self.attn_ln(x))
        if xa is not None:
            x = x + self.cross_attn(self.cross_attn_ln(x), xa)
        return x + self.mlp(self.mlp_ln(x))


class AudioEncoder(nn.Module):
    """Spectra to vectors."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width = sizes.width
        self.conv1, self.conv2 = nn.Conv1d(16, width, 3, padding=1), nn.Conv1d(width, width, 3, stride=2, padding=1)
        self.register_buffer("positional_embedding", torch.zeros(16, width))
        self.blocks = nn.ModuleList(ResidualAttentionBlock(sizes, False) for _ in range(sizes.layers))
        self.ln_post = nn.LayerNorm(width)

    def forward(self, mel: Tensor) -> Tensor:
        x = F.gelu(self.conv2(F.gelu(self.conv1(mel)))).transpose(1, 2) + self.positional_embedding
        for block in self.blocks:
            x = block(x)
        return self.ln_post(x)


class TextDecoder(nn.Module):
    """Vectors and tokens to the next tokens."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(sizes.vocabulary, sizes.width)
        self.positional_embedding = nn.Parameter(torch.zeros(24, sizes.width))
        self.blocks = nn.ModuleList(ResidualAttentionBlock(sizes, True) for _ in range(sizes.layers))
        self.ln, self.first = nn.LayerNorm(sizes.width), 0

    def forward(self, tokens: Tensor, xa: Tensor) -> Tensor:
        places = slice(self.first, self.first + tokens.shape[1])
        x = self.token_embedding(tokens) + self.positional_embedding[places]
        for block in self.blocks:
            x = block(x, xa)
        return self.ln(x) @ self.token_embedding.weight.T


class OwnWhisper(nn.Module):
    """What `WhisperForConditionalGeneration` computes."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.encoder, self.decoder = AudioEncoder(sizes), TextDecoder(sizes)

    def forward(self, mel: Tensor, tokens: Tensor) -> Tensor:
        return self.decoder(tokens, self.encoder(mel))
