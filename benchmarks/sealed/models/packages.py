"""x-transformers, PEFT's LoRA and torchfm's DeepFM against ports."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from ...blind import hub
from ...blind import plant as P
from ...blind.spec import HERE, Sides, model
from ...blind.training import Training, batches, call, give, ids, lively, next_token_loss
from ..frame import before, decayed, ported, times
from ..parts import Rms, attend, heads, rms, rotated, weights


def x_transformer():
    from loguru import logger

    logger.disable("x_transformers")
    from x_transformers import Decoder, TransformerWrapper

    model = TransformerWrapper(
        num_tokens=60,
        max_seq_len=32,
        use_abs_pos_emb=False,
        attn_layers=Decoder(
            dim=32,
            depth=3,
            heads=4,
            attn_dim_head=8,
            rotary_pos_emb=True,
            use_rmsnorm=True,
            ff_glu=True,
            ff_swish=True,
            ff_mult=2,
        ),
    )

    for module in model.modules():
        if getattr(module, "unit_offset", False):
            module.unit_offset = False
            nn.init.ones_(module.g)

    def data(g):
        seen = ids(g, 4, 12, below=60)
        return {"tokens": seen, "labels": seen}

    return Training(
        lively(model).train(), lambda m, b: m(b["tokens"]), next_token_loss, batches(data, "s-x-transformer")
    )


def pairs_turned(x, size):
    """The first `size` numbers of a head turned as neighbouring pairs."""
    a = x[..., :size].unflatten(-1, (-1, 2))
    turned = rotated(torch.cat([a[..., 0], a[..., 1]], -1))
    return torch.cat([torch.stack(turned.chunk(2, -1), -1).flatten(-2), x[..., size:]], -1)


class PlainBlock(nn.Module):
    """Llama's names, one block for two layers there."""

    def __init__(self, size: int, wide: int):
        super().__init__()
        self.attention_norm, self.ffn_norm, self.turned = Rms(size, 0.0), Rms(size, 0.0), 4
        self.wqkv, self.wo = nn.Linear(size, 3 * size, bias=False), nn.Linear(size, size, bias=False)
        self.w1, self.w3, self.w2 = nn.Linear(size, wide), nn.Linear(size, wide), nn.Linear(wide, size)

    def attended(self, q, k, v):
        return attend(pairs_turned(q, self.turned), pairs_turned(k, self.turned), v, causal=True)

    def inner(self, x):
        return F.silu(self.w1(x)) * self.w3(x)

    def forward(self, x):
        x = x + self.wo(self.attended(*(heads(t, 4) for t in self.wqkv(self.attention_norm(x)).chunk(3, -1))))
        return x + self.w2(self.inner(self.ffn_norm(x)))


class PlainLm(nn.Module):
    def __init__(self, words: int, size: int, wide: int, layers: int):
        super().__init__()
        self.tok_embeddings, self.norm, self.output = (
            nn.Embedding(words, size),
            Rms(size, 0.0),
            nn.Linear(size, words, bias=False),
        )
        self.layers = nn.ModuleList([PlainBlock(size, wide) for _ in range(layers)])

    def forward(self, tokens):
        x = self.tok_embeddings(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.output(self.norm(x))


def _x_rules():
    rules = {
        "tok_embeddings.weight": "token_emb.emb.weight",
        "norm.gain": "attn_layers.final_norm.g",
        "output.weight": "to_logits.weight",
    }
    for i in range(3):
        a, f, to = f"attn_layers.layers.{2 * i}.", f"attn_layers.layers.{2 * i + 1}.", f"layers.{i}."
        rules |= {
            to + "attention_norm.gain": a + "0.0.g",
            to + "ffn_norm.gain": f + "0.0.g",
            to + "wo.weight": a + "1.to_out.weight",
            to + "wqkv.weight": [f"{a}1.to_{n}.weight" for n in "qkv"],
        }
        for p in ("weight", "bias"):
            rules |= {
                f"{to}w3.{p}": lambda h, f=f, p=p: h(f"{f}1.ff.0.proj.{p}")[:64],
                f"{to}w1.{p}": lambda h, f=f, p=p: h(f"{f}1.ff.0.proj.{p}")[64:],
                f"{to}w2.{p}": f"{f}1.ff.2.{p}",
            }
    return rules


XL = "attn_layers.layers."
X = model(
    "s-x-transformer",
    x_transformer,
    {
        "whole-head-turned": P.setting(HERE, turned=8),
        "gate-and-up": lambda t: _swapped(t, "layers.1.w1", "layers.1.w3"),
        "last-norm-mean": P.rewritten(HERE, lambda self, x: F.layer_norm(x, x.shape[-1:], self.gain)),
        "future-seen": P.method(
            HERE, "attended", lambda self, q, k, v: attend(pairs_turned(q, 4), pairs_turned(k, 4), v)
        ),
        "gate-backward": P.method(
            HERE,
            "inner",
            lambda self, x: F.silu(P.wrong_gradient(self.w1(x), lambda g: g.clamp(-1e-4, 1e-4))) * self.w3(x),
        ),
        "output-shared": before(HERE, times(1.001)),
    },
    port=ported(x_transformer, lambda: PlainLm(60, 32, 64, 3), _x_rules(), 1, call(tokens="tokens")),
)


def _swapped(training, one, other):
    a, b = training.at(one), training.at(other)
    kept = {name: value.clone() for name, value in a.state_dict().items()}
    a.load_state_dict(b.state_dict())
    b.load_state_dict(kept)


def lora():
    import peft

    def make(T):
        base = T.LlamaForCausalLM(
            T.LlamaConfig(
                **hub.SMALL
                | {
                    "vocab_size": 60,
                    "num_hidden_layers": 3,
                    "rms_norm_eps": 1e-6,
                    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
                    "attn_implementation": "eager",
                }
            )
        )
        return peft.get_peft_model(
            base, peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], lora_dropout=0.0)
        )

    return hub.causal("s-lora", make, words=60, shape=(4, 12))


class Adapted(nn.Module):
    """A frozen matrix and two small ones that learn."""

    def __init__(self, size: int, to: int):
        super().__init__()
        self.frozen = nn.Parameter(torch.zeros(to, size), requires_grad=False)
        self.a, self.b, self.factor = nn.Parameter(torch.zeros(4, size)), nn.Parameter(torch.zeros(to, 4)), 2.0

    def forward(self, x):
        return F.linear(x, self.frozen) + self.factor * F.linear(F.linear(x, self.a), self.b)


class AdaptedBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.v, self.k, self.o = (
            Adapted(32, 32),
            Adapted(32, 16),
            nn.Linear(32, 16, bias=False),
            nn.Linear(32, 32, bias=False),
        )
        self.gate_up, self.down, self.p = (
            nn.Linear(32, 96, bias=False),
            nn.Linear(48, 32, bias=False),
            weights(n1=(32,), n2=(32,)),
        )

    def mixed(self, q, k, v):
        k, v = (t.repeat_interleave(2, 1) for t in (rotated(k), v))
        return attend(rotated(q), k, v, causal=True)

    def forward(self, x):
        y = rms(x, self.p.n1, 1e-6)
        x = x + self.o(self.mixed(heads(self.q(y), 4), heads(self.k(y), 2), heads(self.v(y), 2)))
        gate, up = self.gate_up(rms(x, self.p.n2, 1e-6)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class AdaptedLm(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.blocks = nn.Embedding(60, 32), nn.ModuleList([AdaptedBlock() for _ in range(3)])
        self.norm, self.lm = Rms(32, 1e-6), nn.Linear(32, 60, bias=False)
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(name.endswith((".a", ".b")))

    def forward(self, tokens):
        x = self.emb(tokens)
        for block in self.blocks:
            x = block(x)
        return self.lm(self.norm(x))


PM = "base_model.model.model."
PL = PM + "layers.#."
LORA_RULES = {
    "emb.weight": PM + "embed_tokens.weight",
    "norm.gain": PM + "norm.weight",
    "lm.weight": "base_model.model.lm_head.weight",
    "blocks.#.k.weight": PL + "self_attn.k_proj.weight",
    "blocks.#.o.weight": PL + "self_attn.o_proj.weight",
    "blocks.#.gate_up.weight": [PL + "mlp.gate_proj.weight", PL + "mlp.up_proj.weight"],
    "blocks.#.down.weight": PL + "mlp.down_proj.weight",
    "blocks.#.p.n1": PL + "input_layernorm.weight",
    "blocks.#.p.n2": PL + "post_attention_layernorm.weight",
    **{
        f"blocks.#.{n}.{new}": f"{PL}self_attn.{n}_proj.{old}.weight"
        for n in "qv"
        for new, old in (("frozen", "base_layer"), ("a", "lora_A.default"), ("b", "lora_B.default"))
    },
}
PA = PM + "layers.1.self_attn."

LORA = model(
    "s-lora",
    lora,
    {
        "alpha": P.setting(HERE, factor=8.0),
        "a-frozen": lambda t: _left_out(t, "blocks.1.q.a"),
        "base-trained": lambda t: t.at("blocks.2.q").frozen.requires_grad_(True),
        "b-zeroed": P.values(HERE, "b", torch.zeros_like),
        "input-detached": P.rewritten(
            HERE,
            lambda self, x: F.linear(x, self.frozen) + (self.factor * F.linear(F.linear(x.detach(), self.a), self.b)),
        ),
        "decays": Sides(decayed(0.5), both=decayed(0.0)),
        "rope-offset": P.method(
            HERE,
            "mixed",
            lambda self, q, k, v: attend(
                rotated(q, offset=1), rotated(k).repeat_interleave(2, 1), v.repeat_interleave(2, 1), causal=True
            ),
        ),
    },
    port=ported(lora, AdaptedLm, LORA_RULES, 3, call(tokens="tokens")),
)


def _left_out(training, name):
    left = dict(training.model.named_parameters())[name]
    for group in training.optimizer.param_groups:
        group["params"] = [p for p in group["params"] if p is not left]


FIELDS = (7, 11, 5, 20)


def deepfm():
    import numpy as np

    if not hasattr(np, "long"):
        np.long = np.int64  # torchfm 0.7.0 was written for an older numpy
    from torchfm.model.dfm import DeepFactorizationMachineModel

    def data(g):
        return {
            "x": torch.stack([ids(g, 16, below=size) for size in FIELDS], 1),
            "label": (torch.rand(16, generator=g) < 0.4).float(),
        }

    return Training(
        lively(DeepFactorizationMachineModel(FIELDS, 6, (16, 12), 0.0)).train(),
        give("x"),
        clicks,
        batches(data, "s-deepfm"),
    )


def clicks(chance, batch):
    """Cross entropy of a click."""
    return F.binary_cross_entropy(chance.float(), batch["label"].float())


class Wide(nn.Module):
    """A table for every field, and the two orders of interactions in functions."""

    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(size, 6) for size in FIELDS])
        self.ones = nn.ModuleList([nn.Embedding(size, 1) for size in FIELDS])
        self.bias = nn.Parameter(torch.zeros(1))
        self.deep = nn.ModuleList(
            [nn.Linear(24, 16), nn.BatchNorm1d(16), nn.Linear(16, 12), nn.BatchNorm1d(12), nn.Linear(12, 1)]
        )

    def second_order(self, rows):
        return 0.5 * (rows.sum(1).square() - rows.square().sum(1)).sum(1, keepdim=True)

    def deeper(self, y):
        for linear, usual in (self.deep[:2], self.deep[2:4]):
            y = F.relu(usual(linear(y)))
        return self.deep[4](y)

    def forward(self, x):
        rows = torch.stack([table(x[:, i]) for i, table in enumerate(self.tables)], 1)
        first = sum(table(x[:, i]) for i, table in enumerate(self.ones)) + self.bias
        return torch.sigmoid(first + self.second_order(rows) + self.deeper(rows.flatten(1))).squeeze(1)


START = [sum(FIELDS[:i]) for i in range(4)]
FM_RULES = (
    {"bias": "linear.bias"}
    | {
        f"{new}.{i}.weight": lambda a, i=i, old=old: a(old)[START[i] : START[i] + FIELDS[i]]
        for i in range(4)
        for new, old in (("tables", "embedding.embedding.weight"), ("ones", "linear.fc.weight"))
    }
    | {
        f"deep.{b}.{p}": f"mlp.mlp.{a}.{p}"
        for b, a in ((0, 0), (1, 1), (2, 4), (3, 5), (4, 8))
        for p in ("weight", "bias", *(("running_mean", "running_var", "num_batches_tracked") if a in (1, 5) else ()))
    }
)

DEEPFM = model(
    "s-deepfm",
    deepfm,
    {
        "no-half": P.method("", "second_order", lambda self, r: 2 * Wide.second_order(self, r)),
        "norm-in-evaluation": lambda t: t.at("deep.3").eval(),
        "momentum": P.setting(HERE, momentum=0.01),
        "field-offset": P.around(HERE, lambda forward, x: forward((x + 1) % 5)),
        "dead-units": P.method(
            "",
            "deeper",
            lambda self, y: self.deep[4](
                F.leaky_relu(self.deep[3](self.deep[2](F.relu(self.deep[1](self.deep[0](y))))))
            ),
        ),
        "positives-weighed": P.criterion(lambda y, b: F.binary_cross_entropy(y, b["label"], 1 + b["label"])),
        "labels-later": P.each_batch(lambda b: b | {"label": 1 - b["label"]}, step=2),
        "tables-decay": Sides(
            decayed(0.5), both=decayed(0.5, lambda n, p: not n.startswith(("tables", "ones", "embedding", "linear")))
        ),
    },
    port=ported(deepfm, Wide, FM_RULES, 1, give("x")),
)

MODELS = (X, LORA, DEEPFM)
