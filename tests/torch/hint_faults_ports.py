"""Faults of ports whose q, k and v, or gate and up, lie in one layer on one side; of split layers; of gradients behind backward."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.torch.hint_runs import HEADS, POSITIONS, WIDTH, Fault, Net, Of, Run, linear, named, stepping

SIZE = WIDTH // HEADS
PARTS = ("q_proj", "k_proj", "v_proj")


def angles() -> tuple[Tensor, Tensor]:
    turns = torch.arange(POSITIONS)[:, None] * 100.0 ** (-torch.arange(2) / 2)
    table = torch.cat([turns, turns], -1)
    return table.cos(), table.sin()


def turned(x: Tensor, cos: Tensor, sin: Tensor, how: str = "halves") -> Tensor:
    one, other = x.chunk(2, -1)
    pairs = torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)
    return x * cos + (pairs if how == "pairs" else torch.cat([-other, one], -1)) * sin


def apart(self: Of, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    q, k, v = (getattr(self, part)(x).unflatten(-1, (-1, SIZE)).transpose(1, 2) for part in PARTS)
    out = F.scaled_dot_product_attention(turned(q, cos, sin), turned(k, cos, sin), v, is_causal=True)
    return self.o_proj(out.transpose(1, 2).reshape(x.shape))


def in_one(how: str = "") -> Callable[..., Tensor]:
    """Return an attention whose q, k and v come out of one layer."""

    def computed(self: Of, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (-1, SIZE)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        if how == "order":
            q, k, v = q, v, k
        queries = q if how == "keys" else turned(q, cos, sin, how)
        keys = k if how == "queries" else turned(k, cos, sin, how)
        out = F.scaled_dot_product_attention(queries, keys, v, is_causal=True, scale=1.0 if how == "scale" else None)
        return self.out(out.transpose(1, 2).reshape(x.shape))

    return computed


def given_angles(attention: Callable[..., Tensor], **members: Any) -> Callable[[], nn.Module]:
    made = named("Attention", attention, **members)

    def make() -> nn.Module:
        outer = Of(lambda s, x: s.attention(x, *angles()), attention=made())
        return outer

    return make


def joined(net: Net) -> None:
    """Give what lies in one the weights that lie apart on the other side."""
    torch.manual_seed(2)
    apart = {
        name: torch.randn(WIDTH, WIDTH) / WIDTH**0.5 for name in (*PARTS, "o_proj", "gate_proj", "up_proj", "down_proj")
    }
    for name, module in net.tested.named_modules():
        last = name.rpartition(".")[2]
        several = {"qkv": PARTS, "out": ("o_proj",), "gate_up": ("gate_proj", "up_proj"), "down": ("down_proj",)}.get(
            last, (last,)
        )
        if isinstance(module, nn.Linear):
            module.weight.copy_(torch.cat([apart[part] for part in several]))
            module.bias.zero_()


def attention(hint: str, how: str, says: str) -> Fault:
    return Fault(
        hint,
        Run(given_angles(apart, **dict.fromkeys((*PARTS, "o_proj"), linear)), joined),
        Run(given_angles(in_one(how), qkv=lambda: nn.Linear(WIDTH, 3 * WIDTH), out=linear), joined),
        says,
    )


def gated(self: Of, x: Tensor) -> Tensor:
    return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


def gated_in_one(activation: Callable[[Tensor], Tensor], swapped: bool = False) -> Callable[..., Tensor]:
    def computed(self: Of, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, -1)
        gate, up = (up, gate) if swapped else (gate, up)
        return self.down(activation(gate) * up)

    return computed


def gate(hint: str, activation: Callable[[Tensor], Tensor], swapped: bool, says: str) -> Fault:
    members = dict.fromkeys(("gate_proj", "up_proj", "down_proj"), linear)
    one = {"gate_up": lambda: nn.Linear(WIDTH, 2 * WIDTH), "down": linear}
    return Fault(
        hint,
        Run(named("MLP", gated, **members), joined),
        Run(named("Feed", gated_in_one(activation, swapped), **one), joined),
        says,
    )


class OfTwoRanks(Run):
    """A run that is the first of two ranks."""

    def record(self, path: Path, task: str) -> Path:
        with mock.patch.dict(os.environ, {"RANK": "0", "WORLD_SIZE": "2"}):
            super().record(path, task)
        return path.with_name(f"{path.stem}.rank00000{path.suffix}")


class Sent(torch.autograd.Function):
    """Adds to a gradient what the other rank sends."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient + gradient.std() * torch.linspace(-1, 1, WIDTH).sin()


def row(adds: bool) -> Callable[[], nn.Module]:
    sent = torch.linspace(-1, 1, WIDTH).exp()
    return named("RowParallel", lambda s, x: x @ s.weight.T + (sent if adds else 0), weight=lambda: linear().weight)


def column(adds: bool) -> Callable[[], nn.Module]:
    return named(
        "ColumnParallel", lambda s, x: (Sent.apply(x) if adds else x) @ s.weight.T, weight=lambda: linear().weight
    )


def most_scaled(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if not name.startswith("embed"):
            parameter.grad.mul_(0.7)


PORTS = {
    "scale, q, k and v in one": attention("attention scale", "scale", "A's attention has scores divided by √head size, B's scores not divided"),
    "rotated queries, q, k and v in one": attention("rotary embeddings in attention", "queries", "B's rotary embeddings of queries alone"),
    "rotated keys, q, k and v in one": attention("rotary embeddings in attention", "keys", "B's rotary embeddings of keys alone"),
    "pairs with angles of halves": attention("rotary embeddings in attention", "pairs", "B's rotary embeddings of pairs with the angles of halves"),
    "k and v exchanged in one": attention("order of queries, keys and values", "order", "B's values for keys, keys for values (their order in one tensor)"),
    "another activation, gate and up in one": gate("activation", F.gelu, False, "A computes silu, B gelu by erf"),
    "gate and up exchanged in one": gate("gate and up", F.silu, True, "A multiplies silu of one tensor by the other, B silu of the other by the first"),
    "a sum over ranks is missing": Fault("output of one rank", OfTwoRanks(row(True)), OfTwoRanks(row(False)),
                                         "B returns x · Wᵀ of what this rank holds, A does not"),
    "a sum over ranks is missing in backward": Fault("gradient of one rank", OfTwoRanks(column(True)), OfTwoRanks(column(False)),
                                                     "B passes back what this rank's own weight and output's gradient give, A does not"),
    "most gradients scaled behind backward": Fault("scale of a used gradient", Run(linear), Run(linear, step=stepping(between=most_scaled)),
                                                   "look at clipping (which gradients are clipped together", ("tensor", "statistics")),
}  # fmt: skip
