"""Arcee of transformers against a port with packed q, k, v and fused attention."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from ... import hub
from ... import plant as P
from ...spec import Clean, Fault, Model
from ...training import Training, call
from .shared import ROPE, OwnBlock, OwnLm, ported, turn


class PackedAttention(nn.Module):
    """Grouped-query attention with q, k and v in one product."""

    def __init__(self, size: int, heads: int, kept: int):
        super().__init__()
        self.heads, self.kept, self.head = heads, kept, size // heads
        self.qkv, self.proj = (
            nn.Linear(size, (heads + 2 * kept) * self.head, bias=False),
            nn.Linear(size, size, bias=False),
        )

    def split(self, packed):
        parts = packed.split([self.heads * self.head, self.kept * self.head, self.kept * self.head], -1)
        return (p.unflatten(-1, (-1, self.head)).transpose(1, 2) for p in parts)

    def forward(self, x):
        q, k, v = self.split(self.qkv(x))
        q, k = turn(q), turn(k)
        k, v = (t.repeat_interleave(self.heads // self.kept, 1) for t in (k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(mixed.transpose(1, 2).flatten(2))


class SquaredFf(nn.Module):
    """Widen, squared ReLU, narrow."""

    def __init__(self, size: int, wide: int):
        super().__init__()
        self.up, self.down = nn.Linear(size, wide, bias=False), nn.Linear(wide, size, bias=False)

    def forward(self, x):
        return self.down(F.relu(self.up(x)).square())


def arcee() -> Training:
    return hub.causal(
        "arcee",
        lambda T: T.ArceeForCausalLM(
            T.ArceeConfig(**hub.SMALL | ROPE | {"num_hidden_layers": 3, "rms_norm_eps": 1e-5})
        ),
    )


def own_arcee() -> Training:
    blocks = [OwnBlock(PackedAttention(32, 4, 2), SquaredFf(32, 48), 32, 1e-5) for _ in range(3)]

    def rename(held):
        new = {
            "tok.weight": held["model.embed_tokens.weight"],
            "final.scale": held["model.norm.weight"],
            "out.weight": held["lm_head.weight"],
        }
        for i in range(3):
            old, to = f"model.layers.{i}.", f"blocks.{i}."
            new[to + "attn.qkv.weight"] = torch.cat([held[f"{old}self_attn.{n}_proj.weight"] for n in "qkv"])
            new[to + "attn.proj.weight"] = held[old + "self_attn.o_proj.weight"]
            new[to + "ffn.up.weight"], new[to + "ffn.down.weight"] = (
                held[old + "mlp.up_proj.weight"],
                held[old + "mlp.down_proj.weight"],
            )
            new[to + "norm_a.scale"], new[to + "norm_b.scale"] = (
                held[old + "input_layernorm.weight"],
                held[old + "post_attention_layernorm.weight"],
            )
        return new

    return ported(arcee, OwnLm(50, 32, blocks, 1e-5), rename, call(tokens="tokens"))


def _interleaved_groups(self, packed):
    """The layout of Megatron: of every group its queries, its key and its value."""
    parts = packed.unflatten(-1, (self.kept, -1, self.head))
    q, k, v = parts[..., :2, :], parts[..., 2, :], parts[..., 3, :]
    return q.flatten(2, 3).transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)


def _kept_tiled(self, x):
    q, k, v = self.split(self.qkv(x))
    q, k = turn(q), turn(k)
    k, v = (t.repeat(1, self.heads // self.kept, 1, 1) for t in (k, v))
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return self.proj(mixed.transpose(1, 2).flatten(2))


ARCEE = Model(
    "arcee-packed",
    arcee,
    "Arcee of transformers against a port with packed q, k, v and fused attention",
    (
        Fault(
            "interleaved-groups",
            "heads",
            P.method("blocks.1.attn", "split", _interleaved_groups),
            "model.layers.1.self_attn",
            ("forward",),
            "the packed projection is read in groups",
            also=("model.layers.1.self_attn.?_proj",),
            planted="blocks.1.attn",
            mapped=True,
        ),
        Fault(
            "kept-tiled",
            "heads",
            P.rewritten("blocks.0.attn", _kept_tiled),
            "model.layers.0.self_attn",
            ("forward",),
            "key heads are tiled, not repeated",
            planted="blocks.0.attn",
        ),
        Fault(
            "relu-not-squared",
            "activation",
            P.rewritten("blocks.2.ffn", lambda self, x: self.down(F.relu(self.up(x)))),
            "model.layers.2.mlp",
            ("forward",),
            "the ReLU is not squared",
            also=("model.layers.2.mlp.act_fn", "model.layers.2.mlp.down_proj"),
            planted="blocks.2.ffn",
            mapped=True,
            dtype="autocast",
        ),
        Fault(
            "norm-eps",
            "eps",
            P.setting("blocks.1.norm_b", eps=1e-6),
            "model.layers.1.post_attention_layernorm",
            ("forward",),
            "RMS norm eps 1e-6 for 1e-5",
            planted="blocks.1.norm_b",
        ),
        Fault("lr", "lr", P.groups(lr=1.1e-3), "", ("update",), "a learning rate of 1.1e-3", planted=""),
        Fault(
            "value-rows",
            "permuted-weight",
            P.values("blocks.2.attn.qkv", "weight", lambda w: torch.cat([w[:48], w[56:], w[48:56]])),
            "model.layers.2.self_attn",
            ("init",),
            "the two value heads are swapped in the packed weight",
            also=("model.layers.2.self_attn.?_proj",),
            planted="blocks.2.attn.qkv",
            mapped=True,
        ),
    ),
    (
        Clean("port", "the port, without a mapping"),
        Clean("port-mapped", "the port, with a mapping", mapped=True),
        Clean("port-autocast", "the port under autocast", dtype="autocast", mapped=True),
        Clean("port-three-steps", "the port, three steps", steps=3),
        Clean("port-in-two", "the port with two micro-batches on both sides", P.in_two, P.in_two),
    ),
    port=own_arcee,
    mapping={
        "TopLayer": {"model.embed_tokens": "tok", "model.layers": "blocks", "model.norm": "final", "lm_head": "out"},
        "ArceeDecoderLayer": {
            "self_attn": "attn",
            "mlp": "ffn",
            "input_layernorm": "norm_a",
            "post_attention_layernorm": "norm_b",
        },
        "ArceeAttention": {"qkv": {"from": ["q_proj", "k_proj", "v_proj"]}, "o_proj": "proj"},
        "ArceeMLP": {"up_proj": "up", "down_proj": "down"},
        "ArceeRMSNorm": {"params": {"weight": "scale"}},
    },
)
