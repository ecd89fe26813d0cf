"""The last models of the seventh set as other code bases cut them: T5, Whisper as OpenAI has it, Mamba, ConvNeXt."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.localisation.seventh_blocks import RMSNorm, Sizes, attend, by_head

# T5: the tables of relative positions are read once for a stack; keys and values of the other stack are packed


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


# Mamba: an own scan; what goes in, and its gate, have a matrix each


class Scan(nn.Module):
    """The recurrence alone: (samples, length, channels) in and out."""

    def forward(self, x: Tensor, step: Tensor, decay: Tensor, enters: Tensor, leaves: Tensor) -> Tensor:
        state = torch.zeros(x.shape[0], x.shape[2], decay.shape[1])
        kept, found = torch.exp(step[..., None] * decay), []
        added = (step * x)[..., None].float() * enters[:, :, None].float()
        for place in range(x.shape[1]):
            state = kept[:, place] * state + added[:, place]
            found.append((state * leaves[:, place, None].float()).sum(-1))
        return torch.stack(found, 1)


class Selective(nn.Module):
    """A mixer."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width, inner, self.rank = sizes.width, 2 * sizes.width, math.ceil(sizes.width / 16)
        self.in_x, self.in_z = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.conv = nn.Conv1d(inner, inner, 4, groups=inner, padding=3)
        self.to_steps, self.steps = nn.Linear(inner, self.rank + 16, bias=False), nn.Linear(self.rank, inner)
        self.log_decay, self.skip = nn.Parameter(torch.zeros(inner, 8)), nn.Parameter(torch.ones(inner))
        self.scan, self.out = Scan(), nn.Linear(inner, width, bias=False)

    def forward(self, hidden_states: Tensor) -> Tensor:
        x = self.in_x(hidden_states).transpose(1, 2)
        x = F.silu(self.conv(x)[..., : x.shape[2]]).transpose(1, 2)
        step, enters, leaves = self.to_steps(x).split([self.rank, 8, 8], -1)
        decay = -torch.exp(self.log_decay.float())
        mixed = self.scan(x, F.softplus(self.steps(step)), decay, enters, leaves) + x * self.skip
        return self.out((mixed * F.silu(self.in_z(hidden_states))).to(hidden_states.dtype))


class MambaLayer(nn.Module):
    """A layer whose residual is kept in fp32."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.ln, self.ssm = RMSNorm(sizes.width, eps=1e-5), Selective(sizes)

    def forward(self, hidden_states: Tensor) -> Tensor:
        return hidden_states.float() + self.ssm(self.ln(hidden_states.to(self.ln.weight.dtype)))


class OwnMamba(nn.Module):
    """What `MambaForCausalLM` computes."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.embed = nn.Embedding(sizes.vocabulary, sizes.width)
        self.stack = nn.ModuleList(MambaLayer(sizes) for _ in range(sizes.layers))
        self.ln_f, self.head = RMSNorm(sizes.width, eps=1e-5), nn.Linear(sizes.width, sizes.vocabulary, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embed(input_ids)
        for layer in self.stack:
            x = layer(x)
        return self.head(self.ln_f(x).to(self.head.weight.dtype)).float()


# ConvNeXt: channels last all along, patches by Linears


def patches(x: Tensor) -> Tensor:
    """Cut (samples, height, width, channels) into patches of two by two, side by side."""
    return x.unflatten(2, (-1, 2)).unflatten(1, (-1, 2)).transpose(2, 3).flatten(3)


class NextBlock(nn.Module):
    """A block with its scale."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dwconv = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm, self.act = nn.LayerNorm(width, eps=1e-6), nn.GELU()
        self.pwconv1, self.pwconv2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.gamma = nn.Parameter(torch.ones(width))

    def forward(self, hidden_states: Tensor) -> Tensor:
        x = self.dwconv(hidden_states.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        return hidden_states + self.gamma * self.pwconv2(self.act(self.pwconv1(self.norm(x))))


class OwnConvNext(nn.Module):
    """What `ConvNextForImageClassification` computes."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.stem_norm = nn.Linear(12, 16), nn.LayerNorm(16, eps=1e-6)
        self.stage1 = nn.Sequential(NextBlock(16), NextBlock(16))
        self.down_norm, self.down = nn.LayerNorm(16, eps=1e-6), nn.Linear(64, 32)
        self.stage2 = nn.Sequential(NextBlock(32), NextBlock(32))
        self.norm, self.classifier = nn.LayerNorm(32, eps=1e-12), nn.Linear(32, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.stage1(self.stem_norm(self.stem(patches(images.permute(0, 2, 3, 1)))))
        x = self.stage2(self.down(patches(self.down_norm(x))))
        return self.classifier(self.norm(x.mean((1, 2))))
