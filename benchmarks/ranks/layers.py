"""Layers that are divided over ranks, as Megatron has them, with their collectives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

Group = Any


def size(group: Group) -> int:
    return 1 if group is None else dist.get_world_size(group)


def rank(group: Group) -> int:
    return 0 if group is None else dist.get_rank(group)


def reduced(x: Tensor, group: Group) -> Tensor:
    x = x.contiguous().clone()
    dist.all_reduce(x, group=group)
    return x


def gathered(x: Tensor, group: Group, axis: int) -> Tensor:
    parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(size(group))]
    dist.all_gather(parts, x.contiguous(), group=group)
    return torch.cat(parts, axis)


def share(x: Tensor, group: Group, axis: int) -> Tensor:
    return x.chunk(size(group), axis)[rank(group)].contiguous()


class _Collective(torch.autograd.Function):
    """Does one thing forward and another one backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, there: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.back = back
        return there(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.back(gradient), None, None


def _same(x: Tensor) -> Tensor:
    return x.view_as(x)


def copy_to(x: Tensor, group: Group, *, adds_back: bool = True) -> Tensor:
    """Identity; adds gradients up over ranks."""
    back = (lambda g: reduced(g, group)) if adds_back else _same
    return x if size(group) == 1 else _Collective.apply(x, _same, back)


def reduce_from(x: Tensor, group: Group) -> Tensor:
    """Add up over ranks; the gradient is the same for all."""
    return x if size(group) == 1 else _Collective.apply(x, lambda y: reduced(y, group), _same)


def gather_sequence(x: Tensor, group: Group) -> Tensor:
    """Gather the first axis; gradients are added up and divided again."""
    if size(group) == 1:
        return x
    return _Collective.apply(x, lambda y: gathered(y, group, 0), lambda g: share(reduced(g, group), group, 0))


def scatter_sequence(x: Tensor, group: Group) -> Tensor:
    """Add up over ranks and keep this rank's part of the first axis."""
    if size(group) == 1:
        return x
    return _Collective.apply(x, lambda y: share(reduced(y, group), group, 0), lambda g: gathered(g, group, 0))


def split_sequence(x: Tensor, group: Group) -> Tensor:
    """Keep this rank's part of the first axis; gradients are gathered."""
    return (
        x if size(group) == 1 else _Collective.apply(x, lambda y: share(y, group, 0), lambda g: gathered(g, group, 0))
    )


def gather_all(x: Tensor, group: Group, axis: int) -> Tensor:
    """Gather an axis; each rank has used all of it, so that gradients are added up."""
    if size(group) == 1:
        return x
    return _Collective.apply(x, lambda y: gathered(y, group, axis), lambda g: share(reduced(g, group), group, axis))


class ColumnParallelLinear(nn.Module):
    """Each rank has some of the outputs."""

    def __init__(self, weight: Tensor, bias: Tensor, group: Group, sequence_parallel: bool, *, parts: int = 1) -> None:
        super().__init__()
        own = [torch.cat([share(part, group, 0) for part in whole.chunk(parts, 0)]) for whole in (weight, bias)]
        self.weight, self.bias = nn.Parameter(own[0].clone()), nn.Parameter(own[1].clone())
        self.group, self.sequence_parallel, self.gather_output = group, sequence_parallel, False
        self.adds_back = True
        for parameter in (self.weight, self.bias):
            parameter.tensor_model_parallel, parameter.partition_dim, parameter.partition_stride = True, 0, parts

    def forward(self, x: Tensor) -> Tensor:
        x = (
            gather_sequence(x, self.group)
            if self.sequence_parallel
            else copy_to(x, self.group, adds_back=self.adds_back)
        )
        return F.linear(x, self.weight, self.bias)


class RowParallelLinear(nn.Module):
    """Each rank has some of the inputs, and the results are added up."""

    def __init__(self, weight: Tensor, bias: Tensor, group: Group, sequence_parallel: bool, fault: str = "") -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(share(weight, group, 1).clone()), nn.Parameter(bias.clone())
        self.group, self.sequence_parallel, self.input_is_parallel = group, sequence_parallel, True
        self.fault = fault
        self.weight.tensor_model_parallel, self.weight.partition_dim, self.weight.partition_stride = True, 1, 1
        self.bias.sequence_parallel = sequence_parallel

    def forward(self, x: Tensor) -> Tensor:
        y = F.linear(x, self.weight)
        if self.fault == "doubled-bias":
            y = y + self.bias
        if self.fault != "missing-all-reduce":
            y = scatter_sequence(y, self.group) if self.sequence_parallel else reduce_from(y, self.group)
        elif self.sequence_parallel:
            y = split_sequence(y, self.group)
        return y if self.fault == "doubled-bias" else y + self.bias


class VocabParallelEmbedding(nn.Module):
    """Each rank has some of the rows."""

    def __init__(self, weight: Tensor, group: Group, sequence_parallel: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(share(weight, group, 0).clone())
        self.group, self.reduce_scatter_embeddings = group, sequence_parallel
        self.weight.tensor_model_parallel, self.weight.partition_dim, self.weight.partition_stride = True, 0, 1

    def forward(self, ids: Tensor) -> Tensor:
        rows = self.weight.size(0)
        local = ids - rows * rank(self.group)
        outside = (local < 0) | (local >= rows)
        x = F.embedding(local.masked_fill(outside, 0), self.weight).masked_fill(outside[..., None], 0.0)
        x = x.transpose(0, 1).contiguous()
        return scatter_sequence(x, self.group) if self.reduce_scatter_embeddings else reduce_from(x, self.group)


def cross_entropy(logits: Tensor, labels: Tensor, group: Group) -> Tensor:
    """Return the loss of each token, of logits whose last axis is divided over ranks."""
    highest = logits.detach().max(-1).values
    if size(group) > 1:
        dist.all_reduce(highest, op=dist.ReduceOp.MAX, group=group)
    shifted = logits - highest[..., None]
    total = reduce_from(shifted.exp().sum(-1), group)
    rows = logits.size(-1)
    local = labels - rows * rank(group)
    outside = (local < 0) | (local >= rows)
    picked = shifted.gather(-1, local.masked_fill(outside, 0)[..., None])[..., 0].masked_fill(outside, 0.0)
    return total.log() - reduce_from(picked, group)
