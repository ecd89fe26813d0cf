"""Qwen2.5-VL with the names and the nesting of transformers 4.49, as LLaMA-Factory trains it.

The classes are those of the printed model in msprobe's documentation; what they compute is written anew, and a test holds it
against transformers' own.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.reference_trees.sizes import (
    IMAGE,
    Batch,
    Grid,
    Sizes,
    by_sections,
    patch_positions,
    rotated,
    window_by_window,
    windows,
)

Turns = tuple[Tensor, Tensor]
"""cosines and sines"""


class Qwen2RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.variance_epsilon = eps

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))


class Gated(nn.Module):
    def __init__(self, width: int, hidden: int, bias: bool) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, hidden, bias)
        self.up_proj = nn.Linear(width, hidden, bias)
        self.down_proj = nn.Linear(hidden, width, bias)
        self.act_fn = nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class Qwen2_5_VLMLP(Gated):
    pass


class Qwen2MLP(Gated):
    pass


class Qwen2_5_VisionPatchEmbed(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.kernel = sizes.frames, sizes.patch, sizes.patch
        self.proj = nn.Conv3d(3, sizes.vision_width, self.kernel, self.kernel, bias=False)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.proj(pixels.view(-1, 3, *self.kernel)).flatten(1)


class Qwen2_5_VisionRotaryEmbedding(nn.Module):
    def __init__(self, size: int, theta: float) -> None:
        super().__init__()
        self.register_buffer("inv_freq", theta ** -(torch.arange(0, size, 2).float() / size), persistent=False)

    def forward(self, count: int) -> Tensor:
        return torch.outer(torch.arange(count).float(), self.inv_freq)


class Qwen2_5_VLVisionSdpaAttention(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.heads = sizes.vision_heads
        self.qkv = nn.Linear(sizes.vision_width, 3 * sizes.vision_width)
        self.proj = nn.Linear(sizes.vision_width, sizes.vision_width)

    def forward(self, x: Tensor, part_of: Tensor, turns: Turns) -> Tensor:
        q, k, v = self.qkv(x).view(len(x), 3, self.heads, -1).permute(1, 2, 0, 3)
        cos, sin = turns
        q, k = q * cos + rotated(q) * sin, k * cos + rotated(k) * sin
        y = scaled_dot_product_attention(q, k, v, part_of[:, None] == part_of)
        return self.proj(y.transpose(0, 1).flatten(1))


class Qwen2_5_VLVisionBlock(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.norm1 = Qwen2RMSNorm(sizes.vision_width, sizes.eps)
        self.norm2 = Qwen2RMSNorm(sizes.vision_width, sizes.eps)
        self.attn = Qwen2_5_VLVisionSdpaAttention(sizes)
        self.mlp = Qwen2_5_VLMLP(sizes.vision_width, sizes.vision_hidden, bias=True)

    def forward(self, x: Tensor, part_of: Tensor, turns: Turns) -> Tensor:
        x = x + self.attn(self.norm1(x), part_of, turns)
        return x + self.mlp(self.norm2(x))


class Qwen2_5_VLPatchMerger(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.hidden = sizes.vision_width * sizes.merge**2
        self.ln_q = Qwen2RMSNorm(sizes.vision_width, sizes.eps)
        self.mlp = nn.Sequential(nn.Linear(self.hidden, self.hidden), nn.GELU(), nn.Linear(self.hidden, sizes.width))

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp(self.ln_q(x).view(-1, self.hidden))


class Qwen2_5_VisionTransformerPretrainedModel(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.patch_embed = Qwen2_5_VisionPatchEmbed(sizes)
        self.rotary_pos_emb = Qwen2_5_VisionRotaryEmbedding(
            sizes.vision_width // sizes.vision_heads // 2, sizes.vision_theta
        )
        self.blocks = nn.ModuleList(Qwen2_5_VLVisionBlock(sizes) for _ in range(sizes.vision_layers))
        self.merger = Qwen2_5_VLPatchMerger(sizes)

    def forward(self, pixels: Tensor, grids: tuple[Grid, ...]) -> Tensor:
        merge = self.sizes.merge
        x = self.patch_embed(pixels)
        order, of_window, of_image = windows(grids, merge, self.sizes.window)
        table = self.rotary_pos_emb(max(map(max, grids)))
        angles = window_by_window(table[patch_positions(grids, merge)].flatten(1), order, merge)
        x, angles = window_by_window(x, order, merge), torch.cat([angles, angles], -1)
        turns = angles.cos(), angles.sin()
        for number, block in enumerate(self.blocks):
            x = block(x, of_image if number in self.sizes.full_attention else of_window, turns)
        return self.merger(x)[torch.argsort(order)]


class Qwen2_5_VLRotaryEmbedding(nn.Module):
    def __init__(self, size: int, theta: float) -> None:
        super().__init__()
        self.register_buffer("inv_freq", theta ** -(torch.arange(0, size, 2).float() / size), persistent=False)

    def forward(self, x: Tensor, positions: Tensor) -> Turns:
        angles = positions[..., None].float() * self.inv_freq
        angles = torch.cat([angles, angles], -1)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


class Qwen2_5_VLSdpaAttention(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        size = sizes.width // sizes.heads
        self.q_proj = nn.Linear(sizes.width, sizes.width)
        self.k_proj = nn.Linear(sizes.width, sizes.groups * size)
        self.v_proj = nn.Linear(sizes.width, sizes.groups * size)
        self.o_proj = nn.Linear(sizes.width, sizes.width, bias=False)
        self.rotary_emb = Qwen2_5_VLRotaryEmbedding(size, sizes.text_theta)

    def forward(self, x: Tensor, turns: Turns) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = (
            each(x).view(batch, length, -1, self.sizes.width // self.sizes.heads).transpose(1, 2)
            for each in (self.q_proj, self.k_proj, self.v_proj)
        )
        cos, sin = (by_sections(each, self.sizes.sections)[:, None] for each in turns)
        q, k = q * cos + rotated(q) * sin, k * cos + rotated(k) * sin
        k, v = (each.repeat_interleave(self.sizes.heads // self.sizes.groups, 1) for each in (k, v))
        return self.o_proj(scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class Qwen2_5_VLDecoderLayer(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.self_attn = Qwen2_5_VLSdpaAttention(sizes)
        self.mlp = Qwen2MLP(sizes.width, sizes.hidden, bias=False)
        self.input_layernorm = Qwen2RMSNorm(sizes.width, sizes.eps)
        self.post_attention_layernorm = Qwen2RMSNorm(sizes.width, sizes.eps)

    def forward(self, x: Tensor, turns: Turns) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), turns)
        return x + self.mlp(self.post_attention_layernorm(x))


class Qwen2_5_VLModel(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(sizes.vocabulary, sizes.width)
        self.layers = nn.ModuleList(Qwen2_5_VLDecoderLayer(sizes) for _ in range(sizes.text_layers))
        self.norm = Qwen2RMSNorm(sizes.width, sizes.eps)
        self.rotary_emb = Qwen2_5_VLRotaryEmbedding(sizes.width // sizes.heads, sizes.text_theta)

    def forward(self, embedded: Tensor, positions: Tensor) -> Tensor:
        turns = self.rotary_emb(embedded, positions)
        for layer in self.layers:
            embedded = layer(embedded, turns)
        return self.norm(embedded)


class Qwen2_5_VLForConditionalGeneration(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.visual = Qwen2_5_VisionTransformerPretrainedModel(sizes)
        self.model = Qwen2_5_VLModel(sizes)
        self.lm_head = nn.Linear(sizes.width, sizes.vocabulary, bias=False)

    def forward(self, pixels: Tensor, grids: tuple[Grid, ...], tokens: Tensor, positions: Tensor) -> Tensor:
        embedded = self.model.embed_tokens(tokens)
        features = self.visual(pixels, grids)
        embedded = embedded.masked_scatter((tokens == IMAGE)[..., None].expand_as(embedded), features)
        return self.lm_head(self.model(embedded, positions))


class DeepSpeedEngine(nn.Module):
    """Holds the model, as the engine of that name does."""

    def __init__(self, module: Qwen2_5_VLForConditionalGeneration) -> None:
        super().__init__()
        self.module = module

    def forward(self, batch: Batch) -> Tensor:
        return self.module(batch.pixels, batch.grids, batch.tokens, batch.positions)


def llamafactory(sizes: Sizes) -> DeepSpeedEngine:
    """Return the model with weights that tell all of them apart: biases are no zeros, scales no ones."""
    torch.manual_seed(0)
    model = DeepSpeedEngine(Qwen2_5_VLForConditionalGeneration(sizes))
    for name, weight in model.named_parameters():
        if weight.dim() == 1:
            nn.init.normal_(weight, mean=0.0 if name.endswith("bias") else 1.0, std=0.1)
    return model
