"""Whisper, T5, GPT-2, BERT and HuBERT of transformers, most of them against ports."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

from ...blind import hub
from ...blind import plant as P
from ...blind.spec import HERE, Sides, model
from ...blind.training import Training, batches, give, ids, normal, token_loss
from ..frame import after, decayed, kernels, matrices, ported, times
from ..parts import Rms, attend, heads, norm, weights

SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}


class Cross(nn.Module):
    """Attention over itself or over a memory; keys have no bias."""

    def __init__(self, size: int, number: int):
        super().__init__()
        self.number = number
        self.query, self.key, self.value, self.out = (nn.Linear(size, size, bias=b) for b in (True, False, True, True))

    def forward(self, x, memory=None, causal=False):
        memory = x if memory is None else memory
        q, k, v = (heads(t, self.number) for t in (self.query(x), self.key(memory), self.value(memory)))
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).flatten(2))


class Residual(nn.Module):
    """OpenAI's block, with or without a memory."""

    def __init__(self, size: int, wide: int, crossed: bool):
        super().__init__()
        self.attn, self.attn_ln = Cross(size, 4), nn.LayerNorm(size)
        self.cross_attn, self.cross_attn_ln = (Cross(size, 4), nn.LayerNorm(size)) if crossed else (None, None)
        self.mlp, self.mlp_ln = (
            nn.Sequential(nn.Linear(size, wide), nn.GELU(), nn.Linear(wide, size)),
            nn.LayerNorm(size),
        )

    def forward(self, x, memory=None):
        x = x + self.attn(self.attn_ln(x), causal=memory is not None)
        if memory is not None:
            x = x + self.cross_attn(self.cross_attn_ln(x), memory)
        return x + self.mlp(self.mlp_ln(x))


class OwnWhisper(nn.Module):
    """As OpenAI's own code: a buffer of sinusoids, a tied table."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv1d(8, 32, 3, padding=1), nn.Conv1d(32, 32, 3, stride=2, padding=1)
        self.register_buffer("sinusoids", torch.zeros(12, 32))
        self.hear = nn.ModuleList([Residual(32, 48, False) for _ in range(2)])
        self.hear_ln, self.token, self.position = (
            nn.LayerNorm(32),
            nn.Embedding(60, 32),
            nn.Parameter(torch.zeros(16, 32)),
        )
        self.say, self.say_ln = nn.ModuleList([Residual(32, 48, True) for _ in range(2)]), nn.LayerNorm(32)

    def activated(self, x):
        return F.gelu(x)

    def start(self):
        return 0

    def forward(self, mel, tokens):
        x = self.activated(self.conv2(F.gelu(self.conv1(mel)))).mT + self.sinusoids
        for block in self.hear:
            x = block(x)
        x, first = self.hear_ln(x), self.start()
        y = self.token(tokens) + self.position[first : first + tokens.shape[1]]
        for block in self.say:
            y = block(y, x)
        return self.say_ln(y) @ self.token.weight.T


def whisper():
    model = hub.made(hub.of("whisper"))
    return Training(
        model,
        lambda m, b: m(input_features=b["mel"], decoder_input_ids=b["tokens"], use_cache=False).logits,
        token_loss,
        batches(
            lambda g: {
                "mel": normal(g, 4, 8, 24),
                "tokens": ids(g, 4, 10, below=57) + 3,
                "labels": ids(g, 4, 10, below=57) + 3,
            },
            "s-whisper",
        ),
    )


def _blocks(new, old, crossed):
    pairs = [("attn", "self_attn")] + ([("cross_attn", "encoder_attn")] if crossed else [])
    rules = {
        f"{new}.#.mlp{n}.{p}": f"{old}.layers.#.{o}.{p}"
        for p in ("weight", "bias")
        for n, o in ((".0", "fc1"), (".2", "fc2"), ("_ln", "final_layer_norm"))
    }
    for b, a in pairs:
        rules |= {f"{new}.#.{b}_ln.{p}": f"{old}.layers.#.{a}_layer_norm.{p}" for p in ("weight", "bias")}
        rules |= {
            f"{new}.#.{b}.{n}.{p}": f"{old}.layers.#.{a}.{o}.{p}"
            for p in ("weight", "bias")
            for n, o in (("query", "q_proj"), ("key", "k_proj"), ("value", "v_proj"), ("out", "out_proj"))
            if (n, p) != ("key", "bias")
        }
    return rules


WE, WD = "model.encoder.", "model.decoder."
WHISPER_RULES = (
    _blocks("hear", "model.encoder", False)
    | _blocks("say", "model.decoder", True)
    | {
        "sinusoids": WE + "embed_positions.weight",
        "token.weight": WD + "embed_tokens.weight",
        "position": WD + "embed_positions.weight",
        **{
            f"{n}.{p}": f"{o}.{p}"
            for p in ("weight", "bias")
            for n, o in (
                ("conv1", WE + "conv1"),
                ("conv2", WE + "conv2"),
                ("hear_ln", WE + "layer_norm"),
                ("say_ln", WD + "layer_norm"),
            )
        },
    }
)

WHISPER = model(
    "s-whisper",
    whisper,
    {
        "memory-is-itself": P.around(HERE, lambda forward, x, memory: forward(x)),
        "encoder-causal": P.around(HERE, lambda forward, x, causal: forward(x, causal=True)),
        "relu-after-conv": P.method("", "activated", lambda self, x: F.relu(x)),
        "sinusoids": P.values("", "sinusoids", lambda w: torch.cat([w[:, 16:], w[:, :16]], 1)),
        "positions-shifted": P.method("", "start", lambda self: 1),
        "key-gradient": P.around(HERE, lambda forward, x: P.wrong_gradient(forward(x), times(4**-0.5))),
        "conv-frozen": P.frozen(HERE),
        "mel-scaled": P.each_batch(lambda b: b | {"mel": b["mel"] * 1.02}),
        "cross-norm-eps": P.setting(HERE, eps=1e-3),
        "sdpa-a": Sides(a=kernels("sdpa")),
    },
    port=ported(whisper, OwnWhisper, WHISPER_RULES, 2, give("mel", "tokens")),
)


class Biased(nn.Module):
    """T5's attention without scaling; positions come from outside."""

    def __init__(self, size: int, crossed: bool):
        super().__init__()
        self.crossed = crossed
        self.to_q, self.to_kv, self.to_out = (nn.Linear(size, n * size, bias=False) for n in (1, 2, 1))
        self.pre, self.scale = Rms(size, 1e-6), 1.0

    def forward(self, x, memory=None, bias=None):
        y = self.pre(x)
        k, v = self.to_kv(memory if self.crossed else y).chunk(2, -1)
        return x + self.to_out(attend(heads(self.to_q(y), 4), heads(k, 4), heads(v, 4), self.scale, bias=bias))


class Gated(nn.Module):
    def __init__(self, size: int, wide: int):
        super().__init__()
        self.pre, self.wi, self.wo = (
            Rms(size, 1e-6),
            nn.Linear(size, 2 * wide, bias=False),
            nn.Linear(wide, size, bias=False),
        )

    def gate(self, a, b):
        return F.gelu(a, approximate="tanh") * b

    def forward(self, x):
        return x + self.wo(self.gate(*self.wi(self.pre(x)).chunk(2, -1)))


class OwnT5(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.distance = nn.Embedding(60, 32), 128
        self.enc_bias, self.dec_bias = nn.Parameter(torch.zeros(32, 4)), nn.Parameter(torch.zeros(32, 4))
        self.enc = nn.ModuleList([nn.ModuleList([Biased(32, False), Gated(32, 48)]) for _ in range(2)])
        self.dec = nn.ModuleList(
            [nn.ModuleList([Biased(32, False), Biased(32, True), Gated(32, 48)]) for _ in range(2)]
        )
        self.enc_end, self.dec_end, self.lm = Rms(32, 1e-6), Rms(32, 1e-6), nn.Linear(32, 60, bias=False)
        self.lm.weight = self.emb.weight

    def buckets(self, length, both_ways):
        gap = torch.arange(length)[None, :] - torch.arange(length)[:, None]
        number, base = (16, (gap > 0).long() * 16) if both_ways else (32, 0)
        gap = gap.abs() if both_ways else (-gap).clamp(min=0)
        exact = number // 2
        far = (
            exact
            + (gap.clamp(min=1).float().div(exact).log() / math.log(self.distance / exact) * (number - exact)).long()
        )
        return base + torch.where(gap < exact, gap, far.clamp(max=number - 1))

    def forward(self, source, keep, target):
        hidden = torch.finfo(self.emb.weight.dtype).min
        x, padding = self.emb(source), (1.0 - keep[:, None, None].to(self.emb.weight.dtype)) * hidden
        bias = self.enc_bias[self.buckets(source.shape[1], True)].permute(2, 0, 1) + padding
        for attention, ffn in self.enc:
            x = ffn(attention(x, bias=bias))
        x, y, size = self.enc_end(x), self.emb(target), target.shape[1]
        bias = self.dec_bias[self.buckets(size, False)].permute(2, 0, 1) + torch.full((size, size), hidden).triu(1)
        for attention, cross, ffn in self.dec:
            y = ffn(cross(attention(y, bias=bias), self.memory(x), padding))
        return self.lm(self.dec_end(y))

    def memory(self, x):
        return x


def t5():
    model = hub.made(hub.of("t5"))

    def data(g):
        keep = torch.ones(4, 14, dtype=torch.long)
        keep[-1, -5:] = keep[1, -2:] = 0
        return {
            "source": (ids(g, 4, 14, below=57) + 3) * keep,
            "keep": keep,
            "target": ids(g, 4, 9, below=57) + 3,
            "labels": ids(g, 4, 9, below=57) + 3,
        }

    return Training(
        model,
        lambda m, b: (
            m(input_ids=b["source"], attention_mask=b["keep"], decoder_input_ids=b["target"], use_cache=False).logits
        ),
        token_loss,
        batches(data, "s-t5"),
    )


def _t5_rules():
    rules = {"emb.weight": "shared.weight", "lm.weight": "lm_head.weight"}
    for new, old, parts in (
        ("enc", "encoder", ("SelfAttention", "DenseReluDense")),
        ("dec", "decoder", ("SelfAttention", "EncDecAttention", "DenseReluDense")),
    ):
        rules[f"{new}_bias"] = f"{old}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        rules[f"{new}_end.gain"] = f"{old}.final_layer_norm.weight"
        for i, part in enumerate(parts):
            at, to = f"{old}.block.#.layer.{i}.", f"{new}.#.{i}."
            rules[to + "pre.gain"] = at + "layer_norm.weight"
            rules |= (
                {
                    to + "wi.weight": [f"{at}{part}.wi_{n}.weight" for n in (0, 1)],
                    to + "wo.weight": f"{at}{part}.wo.weight",
                }
                if part[0] == "D"
                else {
                    to + "to_q.weight": f"{at}{part}.q.weight",
                    to + "to_out.weight": f"{at}{part}.o.weight",
                    to + "to_kv.weight": [f"{at}{part}.{n}.weight" for n in "kv"],
                }
            )
    return rules


T5 = model(
    "s-t5",
    t5,
    {
        "scaled-scores": P.setting(HERE, scale=8**-0.5),
        "far-buckets": P.setting("", distance=32),
        "gate-order": P.method(HERE, "gate", lambda self, a, b: a * F.gelu(b, approximate="tanh")),
        "padding-seen": P.around(HERE, lambda forward, x, memory, bias: forward(x, memory, None)),
        "memory-detached": P.method("", "memory", lambda self, x: x.detach()),
        "pad-mask-left": P.each_batch(lambda b: b | {"keep": b["keep"].flip(1)}),
        "bias-table": P.values("", "dec_bias", lambda w: w.roll(1, 1)),
        "label-pads": P.criterion(
            lambda y, b: F.cross_entropy(
                y.float().flatten(0, 1),
                b["labels"].flatten(),
                weight=torch.ones(60).index_fill(0, torch.tensor([3, 4, 5]), 0.0),
            )
        ),
    },
    port=ported(t5, OwnT5, _t5_rules(), 2, give("source", "keep", "target")),
)


class Nano(nn.Module):
    """nanoGPT's block with linear layers in place of Conv1D."""

    def __init__(self, size: int):
        super().__init__()
        self.p = weights(g1=(size,), b1=(size,), g2=(size,), b2=(size,))
        self.c_attn, self.proj = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.fc, self.out = nn.Linear(size, 4 * size), nn.Linear(4 * size, size)
        self.rate = size**-0.25

    def attended(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)

    def forward(self, x):
        q, k, v = self.c_attn(norm(x, self.p.g1, self.p.b1, 1e-5)).chunk(3, -1)
        x = x + self.proj(self.attended(heads(q, 4), heads(k, 4), heads(v, 4)))
        return x + self.out(F.gelu(self.fc(norm(x, self.p.g2, self.p.b2, 1e-5)), approximate="tanh"))


class NanoGpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.pos = nn.Embedding(60, 32), nn.Embedding(32, 32)
        self.blocks, self.ln = nn.ModuleList([Nano(32) for _ in range(3)]), nn.LayerNorm(32)
        self.lm = nn.Linear(32, 60, bias=False)
        self.lm.weight = self.emb.weight

    def forward(self, tokens):
        x = self.emb(tokens) + self.pos(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.lm(self.ln(x))


TEXT = (
    "the model is recorded, the module is named, the tensor is judged; what agrees is left out, what differs is shown. "
) * 4


@torch.enable_grad()
def _taught(training, steps=200, kept={}):  # noqa: B006 - the weights are kept for the next side
    """Weights after some training on a sentence."""
    if not kept:
        model, codes = training.model, torch.tensor([ord(c) % 60 for c in TEXT])
        held = torch.optim.AdamW(model.parameters(), lr=3e-3)
        g = torch.Generator().manual_seed(5)
        for _ in range(steps):
            start = torch.randint(0, len(codes) - 25, (8,), generator=g)
            rows = torch.stack([codes[s : s + 25] for s in start])
            loss = F.cross_entropy(model(input_ids=rows[:, :-1]).logits.flatten(0, 1), rows[:, 1:].flatten())
            held.zero_grad()
            loss.backward()
            held.step()
        kept |= {name: value.detach().clone() for name, value in model.state_dict().items()}
        model.zero_grad()
    training.model.load_state_dict(kept)
    return training


def gpt2():
    training = hub.causal("s-gpt2", hub.of("gpt2"), words=60, shape=(4, 16))
    codes, start = [ord(c) % 60 for c in TEXT], 11
    for step in training.batches:
        for batch in step:
            rows = torch.tensor([codes[start + 20 * i : start + 20 * i + 16] for i in range(4)])
            batch["tokens"] = batch["labels"] = rows
            start += 7
    return _taught(training)


G = "transformer.h.#."
GPT2_RULES = {
    "emb.weight": "transformer.wte.weight",
    "pos.weight": "transformer.wpe.weight",
    "lm.weight": "transformer.wte.weight",
    "ln.weight": "transformer.ln_f.weight",
    "ln.bias": "transformer.ln_f.bias",
    **{
        f"blocks.#.p.{n}": f"{G}{o}"
        for n, o in (("g1", "ln_1.weight"), ("b1", "ln_1.bias"), ("g2", "ln_2.weight"), ("b2", "ln_2.bias"))
    },
    **{
        f"blocks.#.{n}.weight": lambda a, o=o: a(f"{G}{o}.weight").T
        for n, o in (("c_attn", "attn.c_attn"), ("proj", "attn.c_proj"), ("fc", "mlp.c_fc"), ("out", "mlp.c_proj"))
    },
    **{
        f"blocks.#.{n}.bias": f"{G}{o}.bias"
        for n, o in (("c_attn", "attn.c_attn"), ("proj", "attn.c_proj"), ("fc", "mlp.c_fc"), ("out", "mlp.c_proj"))
    },
}

GPT2 = model(
    "s-gpt2",
    gpt2,
    {
        "not-transposed": P.values(HERE, "weight", torch.t),
        "untied": lambda t: setattr(t.at("lm"), "weight", nn.Parameter(t.at("emb").weight.detach().clone())),
        "mask-off-by-one": P.method(
            HERE, "attended", lambda self, q, k, v: attend(q, k, v, bias=torch.full((16, 16), float("-inf")).triu(2))
        ),
        "exact-gelu": P.inside(
            HERE, "torch.nn.functional", "gelu", lambda original: lambda x, approximate: original(x)
        ),
        "attention-half": after(HERE, lambda y: y.bfloat16().float()),
        "value-detached": P.method(HERE, "attended", lambda self, q, k, v: Nano.attended(self, q, k, v.detach())),
        "table-decays": Sides(
            decayed(0.5, matrices),
            both=decayed(
                0.5, lambda n, p: p.dim() > 1 and p.shape[0] not in (60,) and "wpe" not in n and "pos" not in n
            ),
        ),
        "sdpa-a": Sides(a=kernels("sdpa")),
    },
    port=ported(gpt2, NanoGpt, GPT2_RULES, 3, give("tokens")),
)

MODELS = (WHISPER, T5, GPT2)
