"""A small GPT that is divided as Megatron divides one, and the faults that are planted in it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.ranks.layers import (
    ColumnParallelLinear,
    Group,
    RowParallelLinear,
    VocabParallelEmbedding,
    gather_all,
    rank,
    share,
    size,
)
from benchmarks.ranks.spec import FFN, HEADS, HIDDEN, LENGTH, VOCABULARY, Spec

Groups = Mapping[str, Group]
HEAD = HIDDEN // HEADS


class LayerNorm(nn.LayerNorm):
    """A norm that may work on a part of the sequence."""

    def __init__(self, sequence_parallel: bool) -> None:
        super().__init__(HIDDEN)
        for parameter in self.parameters():
            parameter.sequence_parallel = sequence_parallel


class Weights:
    """Draws the weights of the whole model, always in the same order."""

    def __init__(self, seed: int = 0) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, *shape: int, scale: float | None = None) -> Tensor:
        scale = 1 / math.sqrt(shape[-1]) if scale is None else scale
        return torch.randn(*shape, generator=self.generator) * scale


class CoreAttention(nn.Module):
    def __init__(self, cp: Group, zigzag: bool) -> None:
        super().__init__()
        self.cp, self.zigzag = cp, zigzag

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = (gather_all(each, self.cp, 0) for each in (k, v))
        at = positions(q.size(0), self.cp, self.zigzag)
        keys = torch.cat([positions(q.size(0), self.cp, self.zigzag, place) for place in range(size(self.cp))])
        scores = torch.einsum("sbhd,tbhd->bhst", q, k) / math.sqrt(HEAD)
        scores = scores.masked_fill(keys[None, :] > at[:, None], float("-inf"))
        return torch.einsum("bhst,tbhd->sbhd", scores.softmax(-1), v).flatten(2)


def positions(length: int, cp: Group, zigzag: bool, place: int | None = None) -> Tensor:
    """Return the positions that a rank has of a sequence."""
    place, count = rank(cp) if place is None else place, size(cp)
    if count == 1 or not zigzag:
        return torch.arange(place * length, (place + 1) * length)
    half = length // 2
    starts = place * half, (2 * count - 1 - place) * half
    return torch.cat([torch.arange(start, start + half) for start in starts])


class SelfAttention(nn.Module):
    def __init__(self, draw: Weights, spec: Spec, groups: Groups) -> None:
        super().__init__()
        tp, sp = groups["tp"], spec.sequence_parallel
        qkv = draw(HEADS, 3, HEAD, HIDDEN), draw(HEADS, 3, HEAD, scale=0.02)
        out = draw(HIDDEN, HIDDEN), draw(HIDDEN, scale=0.02)
        weight, bias = qkv[0].flatten(0, 2), qkv[1].flatten()
        self.linear_qkv = ColumnParallelLinear(weight, bias, tp, sp)
        if spec.fault == "order-of-qkv":
            weight, bias = qkv[0].transpose(0, 1).flatten(0, 2), qkv[1].transpose(0, 1).flatten()
            self.linear_qkv = ColumnParallelLinear(weight, bias, tp, sp)
        self.core_attention = CoreAttention(groups["cp"], spec.zigzag)
        self.linear_proj = RowParallelLinear(*out, tp, sp)

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.linear_qkv(x)
        q, k, v = mixed.view(*mixed.shape[:2], -1, 3, HEAD).unbind(3)
        return self.linear_proj(self.core_attention(q, k, v))


class MLP(nn.Module):
    def __init__(self, draw: Weights, spec: Spec, groups: Groups) -> None:
        super().__init__()
        tp, sp, parts = groups["tp"], spec.sequence_parallel, 2 if spec.gated else 1
        self.linear_fc1 = ColumnParallelLinear(
            draw(parts * FFN, HIDDEN), draw(parts * FFN, scale=0.02), tp, sp, parts=parts
        )
        self.act, self.gated = nn.GELU(), spec.gated
        self.linear_fc2 = RowParallelLinear(draw(HIDDEN, FFN), draw(HIDDEN, scale=0.02), tp, sp, spec.fault)

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear_fc1(x)
        if self.gated:
            gate, up = x.chunk(2, -1)
            return self.linear_fc2(self.act(gate) * up)
        return self.linear_fc2(self.act(x))


class Expert(nn.Module):
    def __init__(self, first: Tensor, second: Tensor) -> None:
        super().__init__()
        self.linear_fc1, self.linear_fc2 = nn.Linear(HIDDEN, FFN, bias=False), nn.Linear(FFN, HIDDEN, bias=False)
        self.linear_fc1.weight.data.copy_(first)
        self.linear_fc2.weight.data.copy_(second)
        for parameter in self.parameters():
            parameter.allreduce = False

    def forward(self, x: Tensor) -> Tensor:
        return self.linear_fc2(F.gelu(self.linear_fc1(x)))


class Experts(nn.Module):
    def __init__(self, draw: Weights, spec: Spec, group: Group) -> None:
        super().__init__()
        weights = [(draw(FFN, HIDDEN), draw(HIDDEN, FFN)) for _ in range(spec.experts)]
        count = spec.experts // size(group)
        self.first = rank(group) * count
        own = weights[self.first : self.first + count]
        if spec.fault == "order-of-experts" and rank(group) == size(group) - 1:
            own = own[::-1]
        self.local_experts = nn.ModuleList(Expert(*each) for each in own)

    def forward(self, x: Tensor, chosen: Tensor) -> Tensor:
        y = torch.zeros_like(x)
        for k, expert in enumerate(self.local_experts):
            at = (chosen == self.first + k).nonzero()[:, 0]
            if len(at):
                y = y.index_add(0, at, expert(x[at]))
        return y


class MoE(nn.Module):
    """Routes each token to one expert; tokens of all ranks of a group are gathered, and what experts return is added up."""

    def __init__(self, draw: Weights, spec: Spec, groups: Groups) -> None:
        super().__init__()
        self.group = groups["ep"]
        self.router = nn.Linear(HIDDEN, spec.experts, bias=False)
        self.router.weight.data.copy_(draw(spec.experts, HIDDEN))
        self.experts = Experts(draw, spec, self.group)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, 1)
        weights, chosen = self.router(flat).softmax(-1).max(-1)
        if size(self.group) == 1:
            return (self.experts(flat, chosen) * weights[:, None]).view_as(x)
        everything = gather_all(flat, self.group, 0)
        routed = gather_all(chosen.float(), self.group, 0).long()
        y = _add_and_share(self.experts(everything, routed), self.group)
        return (y * weights[:, None]).view_as(x)


def _add_and_share(y: Tensor, group: Group) -> Tensor:
    from benchmarks.ranks.layers import scatter_sequence

    return scatter_sequence(y, group)


class TransformerLayer(nn.Module):
    def __init__(self, draw: Weights, spec: Spec, groups: Groups, number: int) -> None:
        super().__init__()
        self.layer_number = number
        self.input_layernorm = LayerNorm(spec.sequence_parallel)
        self.self_attention = SelfAttention(draw, spec, groups)
        self.pre_mlp_layernorm = LayerNorm(spec.sequence_parallel)
        self.mlp = MoE(draw, spec, groups) if spec.experts else MLP(draw, spec, groups)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attention(self.input_layernorm(x))
        return x + self.mlp(self.pre_mlp_layernorm(x))


class Block(nn.Module):
    def __init__(self, layers: list[TransformerLayer], final: LayerNorm | None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        if final is not None:
            self.final_layernorm = final

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.final_layernorm(x) if hasattr(self, "final_layernorm") else x


class Embedding(nn.Module):
    def __init__(self, word: Tensor, position: Tensor, spec: Spec, groups: Groups) -> None:
        super().__init__()
        self.word_embeddings = VocabParallelEmbedding(word, groups["tp"], spec.sequence_parallel)
        self.position_embeddings = nn.Embedding(LENGTH, HIDDEN)
        self.position_embeddings.weight.data.copy_(position)
        self.position_embeddings.weight.sequence_parallel_grad = spec.sequence_parallel
        self.spec, self.groups = spec, groups

    def forward(self, ids: Tensor) -> Tensor:
        at = positions(ids.size(1), self.groups["cp"], self.spec.zigzag and self.spec.fault != "zigzag-forgotten")
        where = self.position_embeddings(at)[:, None]
        if self.spec.sequence_parallel:
            where = share(where, self.groups["tp"], 0)
        return self.word_embeddings(ids) + where


class GPTModel(nn.Module):
    """The layers of a stage; the first one has the embedding, the last one the head."""

    def __init__(self, spec: Spec, groups: Groups, stage: int = 0) -> None:
        super().__init__()
        draw = Weights(int(spec.fault == "other-checkpoint" and rank(groups["tp"]) > 0))
        word, position = draw(VOCABULARY, HIDDEN, scale=0.5), draw(LENGTH, HIDDEN, scale=0.5)
        count = spec.layers // spec.pp
        offset = 1 if spec.fault == "layer-offset" and stage else 0
        wanted = range(stage * count - offset, (stage + 1) * count - offset)
        layers = [TransformerLayer(draw, spec, groups, number + 1) for number in range(spec.layers)]
        head = draw(VOCABULARY, HIDDEN), torch.zeros(VOCABULARY)
        self.is_first, self.is_last = stage == 0, stage == spec.pp - 1
        if self.is_first:
            self.embedding = Embedding(word, position, spec, groups)
        self.decoder = Block([layers[k] for k in wanted], LayerNorm(spec.sequence_parallel) if self.is_last else None)
        if self.is_last:
            weight = word if spec.tied else head[0]
            self.output_layer = ColumnParallelLinear(weight, head[1], groups["tp"], spec.sequence_parallel)
            if spec.tied and self.is_first:
                self.output_layer.weight = self.embedding.word_embeddings.weight
        if spec.tied and spec.pp > 1 and (self.is_first or self.is_last):
            holder: Any = self.embedding.word_embeddings if self.is_first else self.output_layer
            holder.weight.shared_embedding = True

    def forward(self, x: Tensor) -> Tensor:
        x = self.embedding(x) if self.is_first else x
        x = self.decoder(x)
        return self.output_layer(x) if self.is_last else x
