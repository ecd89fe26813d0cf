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
from ..spec import Clean, Fault, Model
from ..training import Training, batches, call, ids, next_token_loss, normal, threads, uniform

ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}


def ported(build: Callable[[], Training], own: nn.Module, rename: Callable[[dict], dict], predict: Any = None) -> Training:
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
    angle = torch.arange(x.shape[-2]).float()[:, None] * (1.0 / theta ** (torch.arange(0, 2 * half, 2).float() / (2 * half)))
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class PackedAttention(nn.Module):
    """Grouped-query attention with q, k and v in one product."""

    def __init__(self, size: int, heads: int, kept: int):
        super().__init__()
        self.heads, self.kept, self.head = heads, kept, size // heads
        self.qkv, self.proj = nn.Linear(size, (heads + 2 * kept) * self.head, bias=False), nn.Linear(size, size, bias=False)

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


def arcee() -> Training:
    return hub.causal("arcee", lambda T: T.ArceeForCausalLM(T.ArceeConfig(**hub.SMALL | ROPE | {"num_hidden_layers": 3, "rms_norm_eps": 1e-5})))


def own_arcee() -> Training:
    blocks = [OwnBlock(PackedAttention(32, 4, 2), SquaredFf(32, 48), 32, 1e-5) for _ in range(3)]

    def rename(held):
        new = {"tok.weight": held["model.embed_tokens.weight"], "final.scale": held["model.norm.weight"], "out.weight": held["lm_head.weight"]}
        for i in range(3):
            old, to = f"model.layers.{i}.", f"blocks.{i}."
            new[to + "attn.qkv.weight"] = torch.cat([held[f"{old}self_attn.{n}_proj.weight"] for n in "qkv"])
            new[to + "attn.proj.weight"] = held[old + "self_attn.o_proj.weight"]
            new[to + "ffn.up.weight"], new[to + "ffn.down.weight"] = held[old + "mlp.up_proj.weight"], held[old + "mlp.down_proj.weight"]
            new[to + "norm_a.scale"], new[to + "norm_b.scale"] = held[old + "input_layernorm.weight"], held[old + "post_attention_layernorm.weight"]
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
        Fault("interleaved-groups", "heads", P.method("blocks.1.attn", "split", _interleaved_groups), "model.layers.1.self_attn", ("forward",), "the packed projection is read in groups", also=("model.layers.1.self_attn.?_proj",), planted="blocks.1.attn", mapped=True),
        Fault("kept-tiled", "heads", P.rewritten("blocks.0.attn", _kept_tiled), "model.layers.0.self_attn", ("forward",), "key heads are tiled, not repeated", planted="blocks.0.attn"),
        Fault("relu-not-squared", "activation", P.rewritten("blocks.2.ffn", lambda self, x: self.down(F.relu(self.up(x)))), "model.layers.2.mlp", ("forward",), "the ReLU is not squared", also=("model.layers.2.mlp.act_fn", "model.layers.2.mlp.down_proj"), planted="blocks.2.ffn", mapped=True, dtype="autocast"),
        Fault("norm-eps", "eps", P.setting("blocks.1.norm_b", eps=1e-6), "model.layers.1.post_attention_layernorm", ("forward",), "RMS norm eps 1e-6 for 1e-5", planted="blocks.1.norm_b"),
        Fault("lr", "lr", P.groups(lr=1.1e-3), "", ("update",), "a learning rate of 1.1e-3", planted=""),
        Fault("value-rows", "permuted-weight", P.values("blocks.2.attn.qkv", "weight", lambda w: torch.cat([w[:48], w[56:], w[48:56]])), "model.layers.2.self_attn", ("init",), "the two value heads are swapped in the packed weight", also=("model.layers.2.self_attn.?_proj",), planted="blocks.2.attn.qkv", mapped=True),
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
        "ArceeDecoderLayer": {"self_attn": "attn", "mlp": "ffn", "input_layernorm": "norm_a", "post_attention_layernorm": "norm_b"},
        "ArceeAttention": {"qkv": {"from": ["q_proj", "k_proj", "v_proj"]}, "o_proj": "proj"},
        "ArceeMLP": {"up_proj": "up", "down_proj": "down"},
        "ArceeRMSNorm": {"params": {"weight": "scale"}},
    },
)


class Xielu(nn.Module):
    """x^2 and x above 0, expm1 below, with two learned slopes."""

    def __init__(self):
        super().__init__()
        self.above, self.below = nn.Parameter(torch.zeros(1, dtype=torch.bfloat16)), nn.Parameter(torch.zeros(1, dtype=torch.bfloat16))
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
    return hub.causal("apertus", lambda T: T.ApertusForCausalLM(T.ApertusConfig(**hub.SMALL | ROPE | {"rms_norm_eps": 1e-5})))


def own_apertus() -> Training:
    blocks = [OwnBlock(NormedAttention(32, 4, 2, 1e-5), ApertusFf(32, 48), 32, 1e-5) for _ in range(2)]

    def rename(held):
        new = {"tok.weight": held["model.embed_tokens.weight"], "final.scale": held["model.norm.weight"], "out.weight": held["lm_head.weight"]}
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
        Fault("norm-behind-rotary", "norm-order", P.rewritten("blocks.1.attn", _norm_behind), "model.layers.1.self_attn", ("forward",), "queries and keys are rotated before they are normed", also=("model.layers.1.self_attn.?_norm",), planted="blocks.1.attn.qn"),
        Fault("mask-one-ahead", "mask", P.rewritten("blocks.0.attn", _one_ahead), "model.layers.0.self_attn", ("forward",), "the next word is seen", planted="blocks.0.attn", mapped=True, dtype="autocast"),
        Fault("linear-below", "formula", P.rewritten("blocks.1.ffn.act", _cube), "model.layers.1.mlp.act_fn", ("forward",), "the linear term is missing below 0", also=("model.layers.1.mlp",), planted="blocks.1.ffn.act", mapped=True),
        Fault("slope-frozen", "frozen", P.frozen("blocks.0.ffn.act"), "model.layers.0.mlp.act_fn", ("update",), "the activation's slopes are not in the optimizer", also=("model.layers.0.mlp",), planted="blocks.0.ffn.act"),
        Fault("pad-row", "missing-gradient", P.parameter_gradient("tok", "weight", lambda g: g * (torch.arange(50) != 7)[:, None]), "model.embed_tokens", ("gradient", "backward"), "one word's embedding gets no gradient", planted="tok"),
    ),
    (
        Clean("port", "the port, without a mapping", steps=2),
        Clean("port-mapped", "the port, with a mapping", mapped=True),
        Clean("port-loop", "the port, with a for-loop optimizer", P.optimizer(lambda m: torch.optim.AdamW(m.parameters(), lr=1e-3, weight_decay=0.05, foreach=False)), steps=2, mapped=True),
    ),
    port=own_apertus,
    mapping={
        "TopLayer": {"model.embed_tokens": "tok", "model.layers": "blocks", "model.norm": "final", "lm_head": "out"},
        "ApertusDecoderLayer": {"self_attn": "attn", "mlp": "ffn", "attention_layernorm": "norm_a", "feedforward_layernorm": "norm_b"},
        "ApertusAttention": {"q_proj": "wq", "k_proj": "wk", "v_proj": "wv", "o_proj": "wo", "q_norm": "qn", "k_norm": "kn"},
        "ApertusMLP": {"up_proj": "w1", "down_proj": "w2", "act_fn": "act"},
        "ApertusRMSNorm": {"params": {"weight": "scale"}},
        "XIELUActivation": {"params": {"alpha_p": "above", "alpha_n": "below"}},
    },
)


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

    model = hub.made(lambda T: T.ImageGPTForCausalImageModeling(T.ImageGPTConfig(vocab_size=33, n_positions=16, n_embd=24, n_layer=2, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)))
    return Training(model, lambda m, b: m(input_ids=b["tokens"], use_cache=False), next_token_loss, batches(data, "imagegpt"))


def own_imagegpt() -> Training:
    def rename(held):
        new = {"pixel.weight": held["transformer.wte.weight"], "place.weight": held["transformer.wpe.weight"], "norm.gain": held["transformer.ln_f.weight"], "predict.weight": held["lm_head.weight"]}
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


IMAGEGPT = Model(
    "imagegpt-port",
    imagegpt,
    "ImageGPT of transformers (Conv1D) against a port with three linear layers and no attention module",
    (
        Fault("gelu", "gelu", P.rewritten("layer.1", _gelu), "transformer.h.1.mlp", ("forward",), "GELU for quick GELU", also=("transformer.h.1", "transformer.h.1.mlp.act", "transformer.h.1.mlp.c_proj"), planted="layer.1"),
        Fault("centred-norm", "norm-setting", P.rewritten("layer.0.behind", _centred), "transformer.h.0.ln_2", ("forward",), "the norm subtracts the mean", planted="layer.0.behind", dtype="bfloat16"),
        Fault("key-not-transposed", "transposed-weight", P.values("layer.1.k", "weight", lambda w: w.T), "transformer.h.1.attn.c_attn", ("init",), "the keys' weight is not transposed", also=("transformer.h.1.attn",), planted="layer.1.k"),
        Fault("query-bias", "missing-bias", P.values("layer.0.q", "bias", torch.zeros_like), "transformer.h.0.attn.c_attn", ("init",), "the queries' bias is not loaded", also=("transformer.h.0.attn",), planted="layer.0.q", mapped=True),
        Fault("places-reversed", "order-of-axis", P.around("place", lambda f, x: f(x.flip(0))), "transformer.wpe", ("forward",), "positions run backwards", also=("transformer",), planted="place", mapped=True),
    ),
    (
        Clean("port", "the port, without a mapping"),
        Clean("port-mapped", "the port, with a mapping", mapped=True, steps=2),
        Clean("port-bfloat16", "the port in bfloat16", dtype="bfloat16"),
    ),
    port=own_imagegpt,
    mapping={
        "TopLayer": {"transformer.wte": "pixel", "transformer.wpe": "place", "transformer.h": "layer", "transformer.ln_f": "norm", "lm_head": "predict"},
        "ImageGPTBlock": {
            "ln_1": "before",
            "ln_2": "behind",
            "attn.c_attn": {"to": ["q", "k", "v"]},
            "attn.c_proj": "o",
            "mlp.c_fc": "wide",
            "mlp.c_proj": "narrow",
        },
        "ImageGPTLayerNorm": {"params": {"weight": "gain"}},
    },
)


class Trajectory(nn.Module):
    """A decision transformer on torch's own encoder layers."""

    def __init__(self, size: int, depth: int):
        super().__init__()
        self.time = nn.Embedding(30, size)
        self.want, self.see, self.do = nn.Linear(1, size), nn.Linear(5, size), nn.Linear(3, size)
        self.norm_in = nn.LayerNorm(size)
        self.body = nn.ModuleList(nn.TransformerEncoderLayer(size, 2, 4 * size, 0.0, functools.partial(F.relu), 1e-5, True, True) for _ in range(depth))
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
        return {"states": normal(g, 3, 4, 5), "actions": uniform(g, 3, 4, 3), "returns": normal(g, 3, 4, 1), "times": ids(g, 3, 1, below=20) + torch.arange(4), "target": normal(g, 3, 4, 3).tanh()}

    config = {"state_dim": 5, "act_dim": 3, "hidden_size": 24, "max_ep_len": 30, "n_layer": 2, "n_head": 2, "n_positions": 64, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "vocab_size": 1, "bos_token_id": 0, "eos_token_id": 0}
    model = hub.made(lambda T: T.DecisionTransformerModel(T.DecisionTransformerConfig(**config)))

    def predict(m, b):
        return m(states=b["states"], actions=b["actions"], rewards=None, returns_to_go=b["returns"], timesteps=b["times"]).action_preds

    def used(m):
        return torch.optim.AdamW([p for n, p in m.named_parameters() if not any(k in n for k in ("predict_state", "predict_return", "wte"))], lr=1e-3, weight_decay=0.05)

    return Training(model, predict, lambda o, b: F.mse_loss(o.float(), b["target"].float()), batches(data, "decision"), optimize=used)


def own_decision() -> Training:
    def rename(held):
        new = {}
        for mine, theirs in {"time": "embed_timestep", "want": "embed_return", "see": "embed_state", "do": "embed_action", "norm_in": "embed_ln", "norm_out": "encoder.ln_f", "act": "predict_action.0", "place": "encoder.wpe"}.items():
            new |= {f"{mine}.{kind}": held[f"{theirs}.{kind}"] for kind in ("weight", "bias") if f"{theirs}.{kind}" in held}
        for i in range(2):
            old, to = f"encoder.h.{i}.", f"body.{i}."
            for kind in ("weight", "bias"):
                new[f"{to}self_attn.in_proj_{kind}"] = held[f"{old}attn.c_attn.{kind}"].T.contiguous()
                for mine, theirs in {"self_attn.out_proj": "attn.c_proj", "linear1": "mlp.c_fc", "linear2": "mlp.c_proj"}.items():
                    new[f"{to}{mine}.{kind}"] = held[f"{old}{theirs}.{kind}"].T.contiguous()
                new[f"{to}norm1.{kind}"], new[f"{to}norm2.{kind}"] = held[f"{old}ln_1.{kind}"], held[f"{old}ln_2.{kind}"]
        return new

    return ported(decision, Trajectory(24, 2), rename, call(states="states", actions="actions", returns="returns", times="times"))


def _action_token(self, states, actions, returns, times):
    time = self.time(times)
    x = torch.stack([self.want(returns) + time, self.see(states) + time, self.do(actions) + time], 2).flatten(1, 2)
    x = self.norm_in(x) + self.place(torch.zeros(1, dtype=torch.long))
    mask = torch.full((x.shape[1], x.shape[1]), -torch.inf, dtype=x.dtype).triu(1)
    for layer in self.body:
        x = layer(x, src_mask=mask)
    return torch.tanh(self.act(self.norm_out(x)[:, 2::3]))


DECISION = Model(
    "decision-transformer-port",
    decision,
    "decision transformer of transformers against one on torch's encoder layers",
    (
        Fault("reads-action-token", "off-by-one", P.rewritten("", _action_token), "", ("forward",), "actions are predicted from the actions' places", also=("predict_action", "predict_action.0"), planted="act"),
        Fault("post-norm", "norm-order", lambda t: setattr(t.at("body.1"), "norm_first", False), "encoder.h.1", ("forward",), "post-norm for pre-norm", also=("encoder.h.1.attn", "encoder.h.1.ln_1"), planted="body.1"),
        Fault("relu", "activation", lambda t: setattr(t.at("body.0"), "activation", F.gelu), "encoder.h.0.mlp", ("forward",), "GELU for ReLU", also=("encoder.h.0.mlp.act", "encoder.h.0.mlp.c_proj", "encoder.h.0"), planted="body.0.linear2", mapped=True, dtype="autocast"),
        Fault("detached-time", "detach", P.around("time", lambda f, x: f(x).detach()), "embed_timestep", ("backward", "gradient"), "the time embedding is detached", also=("",), planted="", mapped=True),
        Fault("returns-scaled", "input-scale", P.each_batch(lambda b: {**b, "returns": b["returns"] / 10}), "", ("forward", "inputs"), "returns are divided by 10", planted=""),
    ),
    (
        Clean("port", "the port, without a mapping"),
        Clean("port-mapped", "the port, with a mapping", mapped=True, steps=2),
        Clean("threads", "the port on two threads", lambda t: setattr(t, "context", lambda: threads(2)), mapped=True),
    ),
    port=own_decision,
    mapping={
        "TopLayer": {
            "embed_timestep": "time",
            "embed_return": "want",
            "embed_state": "see",
            "embed_action": "do",
            "embed_ln": "norm_in",
            "encoder.h": "body",
            "encoder.wpe": "place",
            "encoder.ln_f": "norm_out",
            "predict_action.0": "act",
        },
        "DecisionTransformerGPT2Block": {"ln_1": "norm1", "attn": "self_attn", "ln_2": "norm2", "mlp.c_fc": "linear1", "mlp.c_proj": "linear2"},
        "DecisionTransformerGPT2Attention": {"c_proj": "out_proj"},
    },
)

MODELS = (ARCEE, APERTUS, IMAGEGPT, DECISION)
