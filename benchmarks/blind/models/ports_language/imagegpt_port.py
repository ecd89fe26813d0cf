"""ImageGPT of transformers (Conv1D) against a port with three linear layers and no attention module."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from ... import hub
from ... import plant as P
from ...spec import Clean, Fault, Model
from ...training import Training, batches, call, ids, next_token_loss
from .shared import ported


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

    model = hub.made(
        lambda T: T.ImageGPTForCausalImageModeling(
            T.ImageGPTConfig(
                vocab_size=33,
                n_positions=16,
                n_embd=24,
                n_layer=2,
                n_head=4,
                resid_pdrop=0.0,
                embd_pdrop=0.0,
                attn_pdrop=0.0,
            )
        )
    )
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


IMAGEGPT = Model(
    "imagegpt-port",
    imagegpt,
    "ImageGPT of transformers (Conv1D) against a port with three linear layers and no attention module",
    (
        Fault(
            "gelu",
            "gelu",
            P.rewritten("layer.1", _gelu),
            "transformer.h.1.mlp",
            ("forward",),
            "GELU for quick GELU",
            also=("transformer.h.1", "transformer.h.1.mlp.act", "transformer.h.1.mlp.c_proj"),
            planted="layer.1",
        ),
        Fault(
            "centred-norm",
            "norm-setting",
            P.rewritten("layer.0.behind", _centred),
            "transformer.h.0.ln_2",
            ("forward",),
            "the norm subtracts the mean",
            planted="layer.0.behind",
            dtype="bfloat16",
        ),
        Fault(
            "key-not-transposed",
            "transposed-weight",
            P.values("layer.1.k", "weight", lambda w: w.T),
            "transformer.h.1.attn.c_attn",
            ("init",),
            "the keys' weight is not transposed",
            also=("transformer.h.1.attn",),
            planted="layer.1.k",
        ),
        Fault(
            "query-bias",
            "missing-bias",
            P.values("layer.0.q", "bias", torch.zeros_like),
            "transformer.h.0.attn.c_attn",
            ("init",),
            "the queries' bias is not loaded",
            also=("transformer.h.0.attn",),
            planted="layer.0.q",
            mapped=True,
        ),
        Fault(
            "places-reversed",
            "order-of-axis",
            P.around("place", lambda f, x: f(x.flip(0))),
            "transformer.wpe",
            ("forward",),
            "positions run backwards",
            also=("transformer",),
            planted="place",
            mapped=True,
        ),
    ),
    (
        Clean("port", "the port, without a mapping"),
        Clean("port-mapped", "the port, with a mapping", mapped=True, steps=2),
        Clean("port-bfloat16", "the port in bfloat16", dtype="bfloat16"),
    ),
    port=own_imagegpt,
    mapping={
        "TopLayer": {
            "transformer.wte": "pixel",
            "transformer.wpe": "place",
            "transformer.h": "layer",
            "transformer.ln_f": "norm",
            "lm_head": "predict",
        },
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
