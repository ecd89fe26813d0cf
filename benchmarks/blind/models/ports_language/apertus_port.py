"""Apertus of transformers against a port in Meta's names."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from ... import hub
from ... import plant as P
from ...spec import Clean, Fault, Model
from ...training import Training, call
from .shared import ROPE, OwnBlock, OwnLm, Rms, ported, turn


class Xielu(nn.Module):
    """x^2 and x above 0, expm1 below, with two learned slopes."""

    def __init__(self):
        super().__init__()
        self.above, self.below = (
            nn.Parameter(torch.zeros(1, dtype=torch.bfloat16)),
            nn.Parameter(torch.zeros(1, dtype=torch.bfloat16)),
        )
        self.edge = float(torch.tensor(-1e-6, dtype=torch.bfloat16))

    def forward(self, x):
        up, down = F.softplus(self.above), 0.5 + F.softplus(self.below)
        low = down * (torch.expm1(x.clamp(max=self.edge)) - x)
        return torch.where(x > 0, up * x * x, low) + 0.5 * x


class ApertusFf(nn.Module):
    """Widen, xIELU, narrow."""

    def __init__(self, size: int, wide: int):
        super().__init__()
        self.w1, self.w2, self.act = nn.Linear(size, wide, bias=False), nn.Linear(wide, size, bias=False), Xielu()

    def forward(self, x):
        return self.w2(self.act(self.w1(x)))


class NormedAttention(nn.Module):
    """Grouped-query attention with norms of queries and keys, written out."""

    def __init__(self, size: int, heads: int, kept: int, eps: float):
        super().__init__()
        self.heads, self.kept, self.head = heads, kept, size // heads
        self.wq, self.wk, self.wv = (nn.Linear(size, n * self.head, bias=False) for n in (heads, kept, kept))
        self.wo, self.qn, self.kn = nn.Linear(size, size, bias=False), Rms(self.head, eps), Rms(self.head, eps)

    def forward(self, x):
        q = turn(self.qn(self.wq(x).unflatten(-1, (-1, self.head))).transpose(1, 2)).unflatten(1, (self.kept, -1))
        k = turn(self.kn(self.wk(x).unflatten(-1, (-1, self.head))).transpose(1, 2))
        v = self.wv(x).unflatten(-1, (-1, self.head)).transpose(1, 2)
        scores = torch.einsum("bghqd,bgkd->bghqk", q, k) / self.head**0.5
        future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        weights = scores.float().masked_fill(future, -torch.inf).softmax(-1).to(v.dtype)
        return self.wo(torch.einsum("bghqk,bgkd->bqghd", weights, v).flatten(2))


def apertus() -> Training:
    return hub.causal(
        "apertus", lambda T: T.ApertusForCausalLM(T.ApertusConfig(**hub.SMALL | ROPE | {"rms_norm_eps": 1e-5}))
    )


def own_apertus() -> Training:
    blocks = [OwnBlock(NormedAttention(32, 4, 2, 1e-5), ApertusFf(32, 48), 32, 1e-5) for _ in range(2)]

    def rename(held):
        new = {
            "tok.weight": held["model.embed_tokens.weight"],
            "final.scale": held["model.norm.weight"],
            "out.weight": held["lm_head.weight"],
        }
        names = {
            "attn.wq.weight": "self_attn.q_proj.weight",
            "attn.wk.weight": "self_attn.k_proj.weight",
            "attn.wv.weight": "self_attn.v_proj.weight",
            "attn.wo.weight": "self_attn.o_proj.weight",
            "attn.qn.scale": "self_attn.q_norm.weight",
            "attn.kn.scale": "self_attn.k_norm.weight",
            "ffn.w1.weight": "mlp.up_proj.weight",
            "ffn.w2.weight": "mlp.down_proj.weight",
            "ffn.act.above": "mlp.act_fn.alpha_p",
            "ffn.act.below": "mlp.act_fn.alpha_n",
            "norm_a.scale": "attention_layernorm.weight",
            "norm_b.scale": "feedforward_layernorm.weight",
        }
        for i in range(2):
            new |= {f"blocks.{i}.{to}": held[f"model.layers.{i}.{old}"] for to, old in names.items()}
        return new

    return ported(apertus, OwnLm(50, 32, blocks, 1e-5), rename, call(tokens="tokens"))


def _norm_behind(self, x):
    q = self.qn(turn(self.wq(x).unflatten(-1, (-1, self.head)).transpose(1, 2))).unflatten(1, (self.kept, -1))
    k = self.kn(turn(self.wk(x).unflatten(-1, (-1, self.head)).transpose(1, 2)))
    v = self.wv(x).unflatten(-1, (-1, self.head)).transpose(1, 2)
    scores = torch.einsum("bghqd,bgkd->bghqk", q, k) / self.head**0.5
    future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
    weights = scores.float().masked_fill(future, -torch.inf).softmax(-1).to(v.dtype)
    return self.wo(torch.einsum("bghqk,bgkd->bqghd", weights, v).flatten(2))


def _one_ahead(self, x):
    q = turn(self.qn(self.wq(x).unflatten(-1, (-1, self.head))).transpose(1, 2)).unflatten(1, (self.kept, -1))
    k = turn(self.kn(self.wk(x).unflatten(-1, (-1, self.head))).transpose(1, 2))
    v = self.wv(x).unflatten(-1, (-1, self.head)).transpose(1, 2)
    scores = torch.einsum("bghqd,bgkd->bghqk", q, k) / self.head**0.5
    future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(2)
    weights = scores.float().masked_fill(future, -torch.inf).softmax(-1).to(v.dtype)
    return self.wo(torch.einsum("bghqk,bgkd->bqghd", weights, v).flatten(2))


def _cube(self, x):
    up, down = F.softplus(self.above), 0.5 + F.softplus(self.below)
    low = down * (torch.expm1(x.clamp(max=self.edge)) - x)
    return torch.where(x > 0, up * x * x + 0.5 * x, low)


APERTUS = Model(
    "apertus-port",
    apertus,
    "Apertus of transformers against a port in Meta's names",
    (
        Fault(
            "norm-behind-rotary",
            "norm-order",
            P.rewritten("blocks.1.attn", _norm_behind),
            "model.layers.1.self_attn",
            ("forward",),
            "queries and keys are rotated before they are normed",
            also=("model.layers.1.self_attn.?_norm",),
            planted="blocks.1.attn",
        ),
        Fault(
            "mask-one-ahead",
            "mask",
            P.rewritten("blocks.0.attn", _one_ahead),
            "model.layers.0.self_attn",
            ("forward",),
            "the next word is seen",
            planted="blocks.0.attn",
            mapped=True,
            dtype="autocast",
        ),
        Fault(
            "linear-below",
            "formula",
            P.rewritten("blocks.1.ffn.act", _cube),
            "model.layers.1.mlp.act_fn",
            ("forward",),
            "the linear term is missing below 0",
            also=("model.layers.1.mlp",),
            planted="blocks.1.ffn.act",
            mapped=True,
        ),
        Fault(
            "slope-frozen",
            "frozen",
            P.frozen("blocks.0.ffn.act"),
            "model.layers.0.mlp.act_fn",
            ("update",),
            "the activation's slopes are not in the optimizer",
            also=("model.layers.0.mlp",),
            planted="blocks.0.ffn.act",
        ),
        Fault(
            "pad-row",
            "missing-gradient",
            P.parameter_gradient("tok", "weight", lambda g: g * (torch.arange(50) != 7)[:, None]),
            "model.embed_tokens",
            ("gradient", "backward"),
            "one word's embedding gets no gradient",
            planted="tok",
        ),
    ),
    (
        Clean("port", "the port, without a mapping", steps=2),
        Clean("port-mapped", "the port, with a mapping", mapped=True),
        Clean(
            "port-loop",
            "the port, with a for-loop optimizer",
            P.optimizer(lambda m: torch.optim.AdamW(m.parameters(), lr=1e-3, weight_decay=0.05, foreach=False)),
            steps=2,
            mapped=True,
        ),
    ),
    port=own_apertus,
    mapping={
        "TopLayer": {"model.embed_tokens": "tok", "model.layers": "blocks", "model.norm": "final", "lm_head": "out"},
        "ApertusDecoderLayer": {
            "self_attn": "attn",
            "mlp": "ffn",
            "attention_layernorm": "norm_a",
            "feedforward_layernorm": "norm_b",
        },
        "ApertusAttention": {
            "q_proj": "wq",
            "k_proj": "wk",
            "v_proj": "wv",
            "o_proj": "wo",
            "q_norm": "qn",
            "k_norm": "kn",
        },
        "ApertusMLP": {"up_proj": "w1", "down_proj": "w2", "act_fn": "act"},
        "ApertusRMSNorm": {"params": {"weight": "scale"}},
        "XIELUActivation": {"params": {"alpha_p": "above", "alpha_n": "below"}},
    },
)
