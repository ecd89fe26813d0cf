"""Encoders in own code: BERT in one level, ViT whose patches are cut before a Linear, ConvNeXt with channels last."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.localisation.models.ports.blocks import Sizes, attend, by_head

# BERT: embeddings, layers and head side by side


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


# ViT


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


# ConvNeXt: patches by Linears


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
