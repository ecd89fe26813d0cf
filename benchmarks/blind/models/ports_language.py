"""Language models and their ports: transformers against implementations written from scratch."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from .. import hub
from .. import plant as P
from ..spec import HERE, Sides, model
from ..training import Training, batches, call, ids, next_token_loss, normal, threads, uniform

# What several of these models share.


ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}


def ported(
    build: Callable[[], Training], own: nn.Module, rename: Callable[[dict], dict], predict: Any = None
) -> Training:
    """Side B: the same data and loss, with another model that gets the first one's weights."""
    training = build()
    own.load_state_dict(rename(training.model.state_dict()))
    return dataclasses.replace(training, model=own.train(), predict=predict or training.predict)


class Rms(nn.Module):
    """RMS norm in float32."""

    def __init__(self, size: int, eps: float):
        super().__init__()
        self.scale, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x):
        h = x.float()
        return (h * torch.rsqrt(h.square().mean(-1, keepdim=True) + self.eps)).to(x.dtype) * self.scale


def turn(x, theta: float = 10000.0):
    """Rotary positions for [batch, heads, time, size]."""
    half = x.shape[-1] // 2
    angle = torch.arange(x.shape[-2]).float()[:, None] * (
        1.0 / theta ** (torch.arange(0, 2 * half, 2).float() / (2 * half))
    )
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class OwnBlock(nn.Module):
    """Pre-norm block."""

    def __init__(self, attn: nn.Module, ffn: nn.Module, size: int, eps: float):
        super().__init__()
        self.norm_a, self.attn, self.norm_b, self.ffn = Rms(size, eps), attn, Rms(size, eps), ffn

    def forward(self, x):
        x = x + self.attn(self.norm_a(x))
        return x + self.ffn(self.norm_b(x))


class OwnLm(nn.Module):
    """Embedding, blocks, norm, output."""

    def __init__(self, words: int, size: int, blocks: list[nn.Module], eps: float):
        super().__init__()
        self.tok, self.blocks = nn.Embedding(words, size), nn.ModuleList(blocks)
        self.final, self.out = Rms(size, eps), nn.Linear(size, words, bias=False)

    def forward(self, tokens):
        x = self.tok(tokens)
        for block in self.blocks:
            x = block(x)
        return self.out(self.final(x))


# Arcee of transformers against a port with packed q, k, v and fused attention.


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
    return hub.causal("arcee", hub.of("arcee"))


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


ARCEE = model(
    "arcee-packed",
    arcee,
    {
        "interleaved-groups": P.method(HERE, "split", _interleaved_groups),
        "kept-tiled": P.rewritten(HERE, _kept_tiled),
        "relu-not-squared": P.rewritten(HERE, lambda self, x: self.down(F.relu(self.up(x)))),
        "norm-eps": P.setting(HERE, eps=1e-6),
        "lr": P.groups(lr=1.1e-3),
        "value-rows": P.values(HERE, "weight", lambda w: torch.cat([w[:48], w[56:], w[48:56]])),
        "port-in-two": Sides(P.in_two, a=P.in_two),
    },
    port=own_arcee,
)


# Apertus of transformers against a port in Meta's names.


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
    return hub.causal("apertus", hub.of("apertus"))


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


APERTUS = model(
    "apertus-port",
    apertus,
    {
        "norm-behind-rotary": P.rewritten(HERE, _norm_behind),
        "mask-one-ahead": P.rewritten(HERE, _one_ahead),
        "linear-below": P.rewritten(HERE, _cube),
        "slope-frozen": P.frozen(HERE),
        "pad-row": P.parameter_gradient(HERE, "weight", lambda g: g * (torch.arange(50) != 7)[:, None]),
        "port-loop": P.optimizer(
            lambda m: torch.optim.AdamW(m.parameters(), lr=1e-3, weight_decay=0.05, foreach=False)
        ),
    },
    port=own_apertus,
)


# ImageGPT of transformers (Conv1D) against a port with three linear layers and no attention module.


class PixelNorm(nn.Module):
    """A norm without a mean: x / sqrt(mean(x^2) + eps)."""

    def __init__(self, size: int, eps: float):
        super().__init__()
        self.gain, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x):
        return x / torch.sqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.gain


class PixelLayer(nn.Module):
    """Attention with three products and quick GELU, without an attention module of its own."""

    def __init__(self, size: int, heads: int, eps: float):
        super().__init__()
        self.heads = heads
        self.before, self.behind = PixelNorm(size, eps), PixelNorm(size, eps)
        self.q, self.k, self.v, self.o = (nn.Linear(size, size) for _ in range(4))
        self.wide, self.narrow = nn.Linear(size, 4 * size), nn.Linear(4 * size, size)

    def attend(self, x):
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        return self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))

    def forward(self, x):
        x = x + self.attend(self.before(x))
        h = self.wide(self.behind(x))
        return x + self.narrow(h * torch.sigmoid(1.702 * h))


class Pixels(nn.Module):
    """The port's root."""

    def __init__(self, words: int, places: int, size: int, depth: int):
        super().__init__()
        self.pixel, self.place = nn.Embedding(words, size), nn.Embedding(places, size)
        self.layer = nn.ModuleList(PixelLayer(size, 4, 1e-5) for _ in range(depth))
        self.norm, self.predict = PixelNorm(size, 1e-5), nn.Linear(size, words - 1, bias=False)

    def forward(self, tokens):
        x = self.pixel(tokens) + self.place(torch.arange(tokens.shape[1]))
        for layer in self.layer:
            x = layer(x)
        return self.predict(self.norm(x))


def imagegpt() -> Training:
    def data(g):
        seen = ids(g, 3, 16, below=32)
        return {"tokens": seen, "labels": seen}

    model = hub.made(hub.of("imagegpt"))
    return Training(
        model, lambda m, b: m(input_ids=b["tokens"], use_cache=False), next_token_loss, batches(data, "imagegpt")
    )


def own_imagegpt() -> Training:
    def rename(held):
        new = {
            "pixel.weight": held["transformer.wte.weight"],
            "place.weight": held["transformer.wpe.weight"],
            "norm.gain": held["transformer.ln_f.weight"],
            "predict.weight": held["lm_head.weight"],
        }
        for i in range(2):
            old, to = f"transformer.h.{i}.", f"layer.{i}."
            for kind in ("weight", "bias"):
                parts = held[old + "attn.c_attn." + kind].T.contiguous().chunk(3)
                new |= {f"{to}{n}.{kind}": part for n, part in zip("qkv", parts, strict=True)}
                for mine, theirs in {"o": "attn.c_proj", "wide": "mlp.c_fc", "narrow": "mlp.c_proj"}.items():
                    new[f"{to}{mine}.{kind}"] = held[f"{old}{theirs}.{kind}"].T.contiguous()
            new[to + "before.gain"], new[to + "behind.gain"] = held[old + "ln_1.weight"], held[old + "ln_2.weight"]
        return new

    return ported(imagegpt, Pixels(33, 16, 24, 2), rename, call(tokens="tokens"))


def _gelu(self, x):
    x = x + self.attend(self.before(x))
    return x + self.narrow(F.gelu(self.wide(self.behind(x))))


def _centred(self, x):
    x = x - x.mean(-1, keepdim=True)
    return x / torch.sqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.gain


IMAGEGPT = model(
    "imagegpt-port",
    imagegpt,
    {
        "gelu": P.rewritten(HERE, _gelu),
        "centred-norm": P.rewritten(HERE, _centred),
        "key-not-transposed": P.values(HERE, "weight", lambda w: w.T),
        "query-bias": P.values(HERE, "bias", torch.zeros_like),
        "places-reversed": P.around(HERE, lambda f, x: f(x.flip(0))),
    },
    port=own_imagegpt,
)


# Decision transformer of transformers against one on torch's encoder layers.


class Trajectory(nn.Module):
    """A decision transformer on torch's own encoder layers."""

    def __init__(self, size: int, depth: int):
        super().__init__()
        self.time = nn.Embedding(30, size)
        self.want, self.see, self.do = nn.Linear(1, size), nn.Linear(5, size), nn.Linear(3, size)
        self.norm_in = nn.LayerNorm(size)
        self.body = nn.ModuleList(
            nn.TransformerEncoderLayer(size, 2, 4 * size, 0.0, functools.partial(F.relu), 1e-5, True, True)
            for _ in range(depth)
        )
        self.norm_out, self.act = nn.LayerNorm(size), nn.Linear(size, 3)
        self.place = nn.Embedding(64, size)

    def forward(self, states, actions, returns, times):
        time = self.time(times)
        x = torch.stack([self.want(returns) + time, self.see(states) + time, self.do(actions) + time], 2).flatten(1, 2)
        x = self.norm_in(x) + self.place(torch.zeros(1, dtype=torch.long))
        mask = torch.full((x.shape[1], x.shape[1]), -torch.inf, dtype=x.dtype).triu(1)
        for layer in self.body:
            x = layer(x, src_mask=mask)
        return torch.tanh(self.act(self.norm_out(x)[:, 1::3]))


def decision() -> Training:
    def data(g):
        return {
            "states": normal(g, 3, 4, 5),
            "actions": uniform(g, 3, 4, 3),
            "returns": normal(g, 3, 4, 1),
            "times": ids(g, 3, 1, below=20) + torch.arange(4),
            "target": normal(g, 3, 4, 3).tanh(),
        }

    config = {
        "state_dim": 5,
        "act_dim": 3,
        "hidden_size": 24,
        "max_ep_len": 30,
        "n_layer": 2,
        "n_head": 2,
        "n_positions": 64,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "vocab_size": 1,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    model = hub.made(lambda T: T.DecisionTransformerModel(T.DecisionTransformerConfig(**config)))

    def predict(m, b):
        return m(
            states=b["states"], actions=b["actions"], rewards=None, returns_to_go=b["returns"], timesteps=b["times"]
        ).action_preds

    def used(m):
        return torch.optim.AdamW(
            [p for n, p in m.named_parameters() if not any(k in n for k in ("predict_state", "predict_return", "wte"))],
            lr=1e-3,
            weight_decay=0.05,
        )

    return Training(
        model,
        predict,
        lambda o, b: F.mse_loss(o.float(), b["target"].float()),
        batches(data, "decision"),
        optimize=used,
    )


def own_decision() -> Training:
    def rename(held):
        new = {}
        for mine, theirs in {
            "time": "embed_timestep",
            "want": "embed_return",
            "see": "embed_state",
            "do": "embed_action",
            "norm_in": "embed_ln",
            "norm_out": "encoder.ln_f",
            "act": "predict_action.0",
            "place": "encoder.wpe",
        }.items():
            new |= {
                f"{mine}.{kind}": held[f"{theirs}.{kind}"] for kind in ("weight", "bias") if f"{theirs}.{kind}" in held
            }
        for i in range(2):
            old, to = f"encoder.h.{i}.", f"body.{i}."
            for kind in ("weight", "bias"):
                new[f"{to}self_attn.in_proj_{kind}"] = held[f"{old}attn.c_attn.{kind}"].T.contiguous()
                for mine, theirs in {
                    "self_attn.out_proj": "attn.c_proj",
                    "linear1": "mlp.c_fc",
                    "linear2": "mlp.c_proj",
                }.items():
                    new[f"{to}{mine}.{kind}"] = held[f"{old}{theirs}.{kind}"].T.contiguous()
                new[f"{to}norm1.{kind}"], new[f"{to}norm2.{kind}"] = (
                    held[f"{old}ln_1.{kind}"],
                    held[f"{old}ln_2.{kind}"],
                )
        return new

    return ported(
        decision, Trajectory(24, 2), rename, call(states="states", actions="actions", returns="returns", times="times")
    )


def _action_token(self, states, actions, returns, times):
    time = self.time(times)
    x = torch.stack([self.want(returns) + time, self.see(states) + time, self.do(actions) + time], 2).flatten(1, 2)
    x = self.norm_in(x) + self.place(torch.zeros(1, dtype=torch.long))
    mask = torch.full((x.shape[1], x.shape[1]), -torch.inf, dtype=x.dtype).triu(1)
    for layer in self.body:
        x = layer(x, src_mask=mask)
    return torch.tanh(self.act(self.norm_out(x)[:, 2::3]))


DECISION = model(
    "decision-transformer-port",
    decision,
    {
        "reads-action-token": P.rewritten("", _action_token),
        "post-norm": lambda t: setattr(t.at("body.1"), "norm_first", False),
        "relu": lambda t: setattr(t.at("body.0"), "activation", F.gelu),
        "detached-time": P.around(HERE, lambda f, x: f(x).detach()),
        "returns-scaled": P.each_batch(lambda b: {**b, "returns": b["returns"] / 10}),
        "threads": lambda t: setattr(t, "context", lambda: threads(2)),
    },
    port=own_decision,
)

MODELS = (ARCEE, APERTUS, IMAGEGPT, DECISION)
