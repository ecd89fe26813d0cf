"""Qwen2.5-VL with the names and the nesting of MindSpeed-MM, which is made of Megatron's parts.

Activations lie ``[s, b, h]``; q, k and v are one projection, gate and up another; a linear layer returns its bias beside its output,
which the caller adds where it says ``skip_bias_add``. The classes are those of the printed model in msprobe's documentation; what they
compute is written anew.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

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

WithBias = tuple[Tensor, Tensor | None]


class ParallelLinear(nn.Module):
    """A linear layer of one rank."""

    def __init__(self, width: int, out: int, *, bias: bool = True, skip_bias_add: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out, width))
        self.bias = nn.Parameter(torch.empty(out)) if bias else None
        self.skip_bias_add = skip_bias_add

    def forward(self, x: Tensor) -> WithBias:
        if self.skip_bias_add:
            return functional.linear(x, self.weight), self.bias
        return functional.linear(x, self.weight, self.bias), None


class ColumnParallelLinear(ParallelLinear):
    pass


class RowParallelLinear(ParallelLinear):
    pass


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class IdentityOp(nn.Module):
    def forward(self, x: Tensor, *args: object) -> Tensor:
        return x


class IdentityFuncOp(IdentityOp):
    def forward(self, *args: object) -> Callable[..., Tensor]:  # type: ignore[override]
        return super().forward


class FusedScaleMaskSoftmax(nn.Module):
    def forward(self, scores: Tensor, hidden: Tensor) -> Tensor:
        return scores.masked_fill(hidden, -10000.0).softmax(-1)


class DotProductAttention(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.scale_mask_softmax = FusedScaleMaskSoftmax()
        self.attention_dropout = nn.Dropout(0.0)
        self.scale = size**-0.5

    def forward(self, q: Tensor, k: Tensor, v: Tensor, hidden: Tensor) -> Tensor:
        q, k, v = (each.permute(1, 2, 0, 3) for each in (q, *self.repeated(q, k, v)))
        weights = self.attention_dropout(self.scale_mask_softmax(q @ k.transpose(2, 3) * self.scale, hidden))
        return (weights @ v).permute(2, 0, 1, 3).flatten(2)

    def repeated(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        return tuple(each.repeat_interleave(q.shape[2] // k.shape[2], 2) for each in (k, v))


class Attention(nn.Module):
    """What both towers' attentions do."""

    def __init__(self, width: int, heads: int, groups: int, *, bias: bool, skip_bias_add: bool) -> None:
        super().__init__()
        self.heads, self.groups, self.is_interleaved = heads, groups, True
        size = width // heads
        self.core_attention = DotProductAttention(size)
        self.linear_proj = RowParallelLinear(width, width, bias=bias, skip_bias_add=skip_bias_add)
        self.linear_qkv = ColumnParallelLinear(width, width + 2 * groups * size)
        self.q_layernorm = IdentityOp()
        self.k_layernorm = IdentityOp()

    def forward(self, x: Tensor, hidden: Tensor, turns: Tensor) -> WithBias:
        q, k, v = self.separate(self.linear_qkv(x)[0])
        q, k = self.q_layernorm(q), self.k_layernorm(k)
        cos, sin = self.turned_by(turns)
        q, k = q * cos + rotated(q) * sin, k * cos + rotated(k) * sin
        return self.linear_proj(self.core_attention(q, k, v, hidden))

    def separate(self, mixed: Tensor) -> tuple[Tensor, ...]:
        """Return q, k and v ``[s, b, heads, size]``: group by group, or one after the other."""
        counts = self.heads // self.groups, 1, 1
        size = mixed.shape[-1] // (self.heads + 2 * self.groups)
        if self.is_interleaved:
            grouped = mixed.unflatten(-1, (self.groups, sum(counts), size)).split(counts, 3)
            return tuple(each.flatten(2, 3) for each in grouped)
        return tuple(
            part.unflatten(-1, (-1, size)) for part in mixed.split([each * self.groups * size for each in counts], -1)
        )

    def turned_by(self, turns: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = turns
        return cos[:, None, None], sin[:, None, None]


class Qwen2vlVitSelfAttention(Attention):
    pass


class Qwen2vlSelfAttention(Attention):
    sections: tuple[int, ...] = ()

    def turned_by(self, turns: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = (by_sections(each, self.sections).transpose(0, 1)[:, :, None] for each in turns)
        return cos, sin


class MLP(nn.Module):
    def __init__(self, width: int, hidden: int, out: int, *, gated: bool, bias: bool, skip_bias_add: bool) -> None:
        super().__init__()
        self.linear_fc1 = ColumnParallelLinear(width, hidden * (1 + gated), bias=bias, skip_bias_add=skip_bias_add)
        self.linear_fc2 = RowParallelLinear(hidden, out, bias=bias, skip_bias_add=skip_bias_add)
        self.is_gated, self.gelu = gated, "none"

    def forward(self, x: Tensor) -> WithBias:
        x, bias = self.linear_fc1(x)
        x = x if bias is None else x + bias
        if self.is_gated:
            gate, up = x.chunk(2, -1)
            return self.linear_fc2(functional.silu(gate) * up)
        return self.linear_fc2(functional.gelu(x, approximate=self.gelu))


class TransformerLayer(nn.Module):
    def __init__(self, attention: Attention, mlp: MLP, width: int, eps: float) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(width, eps)
        self.self_attention = attention
        self.pre_cross_attn_layernorm = IdentityOp()
        self.cross_attention = IdentityOp()
        self.cross_attn_bda = IdentityFuncOp()
        self.pre_mlp_layernorm = RMSNorm(width, eps)
        self.mlp = mlp

    def forward(self, x: Tensor, hidden: Tensor, turns: Tensor) -> Tensor:
        x = added(self.self_attention(self.input_layernorm(x), hidden, turns), x)
        crossed = self.cross_attention(self.pre_cross_attn_layernorm(x))
        x = self.cross_attn_bda(self.training, False)(crossed, x, 0.0)
        return added(self.mlp(self.pre_mlp_layernorm(x)), x)


def added(found: WithBias, residual: Tensor) -> Tensor:
    """Return what a block made, with the bias that it left out, beside what it was given."""
    y, bias = found
    return residual + (y if bias is None else y + bias)


class PatchEmbed(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.kernel = sizes.frames, sizes.patch, sizes.patch
        self.proj = nn.Conv3d(3, sizes.vision_width, self.kernel, self.kernel, bias=False)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.proj(pixels.view(-1, 3, *self.kernel)).flatten(1)


class VisionRotaryEmbedding(nn.Module):
    def __init__(self, size: int, theta: float) -> None:
        super().__init__()
        self.register_buffer("inv_freq", theta ** -(torch.arange(0, size, 2).float() / size), persistent=False)

    def forward(self, count: int) -> Tensor:
        return torch.outer(torch.arange(count).float(), self.inv_freq)


class Qwen2VLVisionTransformerBlock(nn.Module):
    def __init__(self, sizes: Sizes, skip_bias_add: bool) -> None:
        super().__init__()
        self.full_attention = set(sizes.full_attention)
        width, heads = sizes.vision_width, sizes.vision_heads
        self.layers = nn.ModuleList(
            TransformerLayer(
                Qwen2vlVitSelfAttention(width, heads, heads, bias=True, skip_bias_add=skip_bias_add),
                MLP(width, sizes.vision_hidden, width, gated=True, bias=True, skip_bias_add=skip_bias_add),
                width,
                sizes.eps,
            )
            for _ in range(sizes.vision_layers)
        )

    def forward(self, x: Tensor, of_window: Tensor, of_image: Tensor, turns: Tensor) -> Tensor:
        by_window, by_image = (of[:, None] != of for of in (of_window, of_image))
        for number, layer in enumerate(self.layers):
            x = layer(x, by_image if number in self.full_attention else by_window, turns)
        return x


class Qwen2VLViT(nn.Module):
    def __init__(self, sizes: Sizes, skip_bias_add: bool) -> None:
        super().__init__()
        self.sizes = sizes
        self.patch_embed = PatchEmbed(sizes)
        self.rotary_pos_emb = VisionRotaryEmbedding(sizes.vision_width // sizes.vision_heads // 2, sizes.vision_theta)
        self.blocks = Qwen2VLVisionTransformerBlock(sizes, skip_bias_add)

    def forward(self, pixels: Tensor, grids: tuple[Grid, ...]) -> tuple[Tensor, Tensor]:
        merge = self.sizes.merge
        x = self.patch_embed(pixels)
        table = self.rotary_pos_emb(max(map(max, grids)))
        order, of_window, of_image = windows(grids, merge, self.sizes.window)
        angles = window_by_window(table[patch_positions(grids, merge)].flatten(1), order, merge)
        angles = torch.cat([angles, angles], -1)
        x = window_by_window(x, order, merge)[:, None]
        return self.blocks(x, of_window, of_image, torch.stack([angles.cos(), angles.sin()])), order


class MultimodalProjector(nn.Module):
    def __init__(self, sizes: Sizes, skip_bias_add: bool) -> None:
        super().__init__()
        self.hidden = sizes.vision_width * sizes.merge**2
        self.layernorm = RMSNorm(sizes.vision_width, sizes.eps)
        self.encoder = MLP(self.hidden, self.hidden, sizes.width, gated=False, bias=True, skip_bias_add=skip_bias_add)

    def forward(self, x: Tensor) -> Tensor:
        y, bias = self.encoder(self.merged(self.layernorm(x)))
        return y if bias is None else y + bias

    def merged(self, x: Tensor) -> Tensor:
        """Return the patches of a square side by side."""
        return x.reshape(-1, self.hidden)


class VisionModel(nn.Module):
    def __init__(self, sizes: Sizes, skip_bias_add: bool) -> None:
        super().__init__()
        self.encoder = Qwen2VLViT(sizes, skip_bias_add)
        self.projector = MultimodalProjector(sizes, skip_bias_add)

    def forward(self, pixels: Tensor, grids: tuple[Grid, ...]) -> Tensor:
        x, order = self.encoder(pixels, grids)
        return self.projector(x)[torch.argsort(order)]


class VocabParallelEmbedding(nn.Module):
    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocabulary, width))

    def forward(self, tokens: Tensor) -> Tensor:
        return functional.embedding(tokens, self.weight)


class LanguageModelEmbedding(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.word_embeddings = VocabParallelEmbedding(sizes.vocabulary, sizes.width)
        self.embedding_dropout = nn.Dropout(0.0)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.embedding_dropout(self.word_embeddings(tokens).transpose(0, 1).contiguous())


class Qwen2VLRotaryEmbedding_llm(nn.Module):
    def __init__(self, size: int, theta: float) -> None:
        super().__init__()
        self.register_buffer("inv_freq", theta ** -(torch.arange(0, size, 2).float() / size), persistent=False)

    def forward(self, positions: Tensor) -> Tensor:
        angles = positions[..., None].float() * self.inv_freq
        angles = torch.cat([angles, angles], -1)
        return torch.stack([angles.cos(), angles.sin()])


class TransformerBlock(nn.Module):
    def __init__(self, sizes: Sizes, skip_bias_add: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            TransformerLayer(
                Qwen2vlSelfAttention(sizes.width, sizes.heads, sizes.groups, bias=False, skip_bias_add=skip_bias_add),
                MLP(sizes.width, sizes.hidden, sizes.width, gated=True, bias=False, skip_bias_add=skip_bias_add),
                sizes.width,
                sizes.eps,
            )
            for _ in range(sizes.text_layers)
        )
        for layer in self.layers:
            layer.self_attention.sections = sizes.sections
        self.final_layernorm = RMSNorm(sizes.width, sizes.eps)

    def forward(self, x: Tensor, hidden: Tensor, turns: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, hidden, turns)
        return self.final_layernorm(x)


class MMGPTModel(nn.Module):
    def __init__(self, sizes: Sizes, skip_bias_add: bool) -> None:
        super().__init__()
        self.embedding = LanguageModelEmbedding(sizes)
        self.rotary_pos_emb = Qwen2VLRotaryEmbedding_llm(sizes.width // sizes.heads, sizes.text_theta)
        self.decoder = TransformerBlock(sizes, skip_bias_add)
        self.output_layer = ColumnParallelLinear(sizes.width, sizes.vocabulary, bias=False)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        hidden = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
        x = self.decoder(x, hidden, self.rotary_pos_emb(positions))
        return self.output_layer(x)[0].transpose(0, 1).contiguous()


class VLMModel(nn.Module):
    def __init__(self, sizes: Sizes, skip_bias_add: bool) -> None:
        super().__init__()
        self.image_encoder = VisionModel(sizes, skip_bias_add)
        self.text_decoder = MMGPTModel(sizes, skip_bias_add)

    def forward(self, pixels: Tensor, grids: tuple[Grid, ...], tokens: Tensor, positions: Tensor) -> Tensor:
        features = self.image_encoder(pixels, grids)
        embedded = self.text_decoder.embedding(tokens).transpose(0, 1)
        embedded = embedded.masked_scatter((tokens == IMAGE)[..., None].expand_as(embedded), features)
        return self.text_decoder(embedded.transpose(0, 1).contiguous(), positions)


class Float16Module(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: object) -> Tensor:
        return self.module(*args)


class DistributedDataParallel(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, batch: Batch) -> Tensor:
        return self.module(batch.pixels, batch.grids, batch.tokens, batch.positions)


def mindspeed(
    sizes: Sizes, *, is_interleaved: bool = True, skip_bias_add: bool = False
) -> list[DistributedDataParallel]:
    """Return the model without weights, in a list as Megatron holds it.

    Parameters
    ----------
    is_interleaved
        q, k and v of the vision tower lie head by head, as Megatron's do; otherwise one after the other
    skip_bias_add
        linear layers leave their biases to their callers, as Megatron's do
    """
    vlm = VLMModel(sizes, skip_bias_add)
    for layer in vlm.image_encoder.encoder.blocks.layers:
        layer.self_attention.is_interleaved = is_interleaved
    return [DistributedDataParallel(Float16Module(vlm))]
