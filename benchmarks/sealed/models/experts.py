"""Mixtral and Qwen3-MoE of transformers against ports with other experts, routers and attention."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from ...blind import hub
from ...blind import plant as P
from ...blind.spec import HERE, Sides, model
from ...blind.training import call, next_token_loss
from ..frame import ported
from ..parts import Rms, attend, heads, rms, rotated

ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
SMALL = hub.SMALL | ROPE | {"vocab_size": 64, "use_cache": False}


def lively_experts(training):
    """Stacked experts of unit gain."""
    with torch.no_grad():
        for parameter in training.model.parameters():
            if parameter.dim() == 3:
                parameter.mul_(parameter.shape[1] ** 0.5)
    return training


def balance(logits, number: int, top: int) -> torch.Tensor:
    """The load-balancing loss over all layers."""
    chances = torch.cat([one.float().softmax(-1) for one in logits])
    chosen = F.one_hot(chances.topk(top, -1).indices, number).float().mean(0).sum(0)
    return number * (chosen * chances.mean(0)).sum()


class PackedAttention(nn.Module):
    """Grouped-query attention with one packed projection."""

    def __init__(self, size: int, number: int, kept: int):
        super().__init__()
        self.number, self.kept, self.base = number, kept, 10000.0
        self.qkv = nn.Linear(size, size * (number + 2 * kept) // number, bias=False)
        self.merge = nn.Linear(size, size, bias=False)

    def shared(self, x):
        return x.repeat_interleave(self.number // self.kept, 1)

    def forward(self, x):
        q, k, v = heads(self.qkv(x), self.number + 2 * self.kept).split([self.number, self.kept, self.kept], 1)
        q, k = rotated(q, self.base), rotated(k, self.base)
        return self.merge(attend(q, self.shared(k), self.shared(v), causal=True))


class Expert(nn.Module):
    """One gated feed-forward."""

    def __init__(self, size: int, wide: int):
        super().__init__()
        self.w1, self.w2, self.w3 = (nn.Linear(a, b, bias=False) for a, b in ((size, wide), (wide, size), (size, wide)))

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Mixture(nn.Module):
    """A list of experts, each called with its tokens."""

    def __init__(self, size: int, wide: int, number: int, top: int):
        super().__init__()
        self.top, self.router = top, nn.Linear(size, number, bias=False)
        self.experts = nn.ModuleList([Expert(size, wide) for _ in range(number)])

    def weighed(self, logits):
        best, chosen = logits.float().softmax(-1).topk(self.top, -1)
        return best / best.sum(-1, keepdim=True), chosen

    def forward(self, x):
        rows = x.flatten(0, 1)
        logits = self.router(rows)
        best, chosen = self.weighed(logits)
        total = torch.zeros_like(rows)
        for number, expert in enumerate(self.experts):
            token, place = (chosen == number).nonzero(as_tuple=True)
            if len(token):
                total = total.index_add(0, token, (expert(rows[token]) * best[token, place, None]).to(total.dtype))
        return total.view_as(x), logits


class MixtureBlock(nn.Module):
    """Attention and a mixture, each behind a norm."""

    def __init__(self, size: int, attention: nn.Module, mixture: nn.Module, eps: float):
        super().__init__()
        self.pre, self.mid = Rms(size, eps), Rms(size, eps)
        self.attention, self.mixture = attention, mixture

    def forward(self, x):
        x = x + self.attention(self.pre(x))
        out, logits = self.mixture(self.mid(x))
        return x + out, logits


class MixtureLm(nn.Module):
    """Words in, logits and router logits out."""

    def __init__(self, words: int, size: int, blocks: list[nn.Module], eps: float):
        super().__init__()
        self.wte, self.stack, self.top = nn.Embedding(words, size), nn.ModuleList(blocks), Rms(size, eps)
        self.unembed = nn.Linear(size, words, bias=False)

    def forward(self, ids):
        x, routed = self.wte(ids), []
        for block in self.stack:
            x, logits = block(x)
            routed.append(logits)
        return self.unembed(self.top(x)), routed


def _with_balance(weight):
    def criterion(output, batch):
        return next_token_loss(output[0], batch) + weight * balance(output[1], 4, 2)

    return criterion


def _routed(model, batch):
    output = model(input_ids=batch["tokens"], use_cache=False, output_router_logits=True)
    return output.logits, output.router_logits


def mixtral():
    training = lively_experts(hub.causal("s-mixtral", hub.of("mixtral"), words=64, shape=(4, 12)))
    training.predict, training.criterion = _routed, _with_balance(0.02)
    return training


L = "model.layers.#."
COMMON = {
    "wte.weight": "model.embed_tokens.weight",
    "top.gain": "model.norm.weight",
    "unembed.weight": "lm_head.weight",
    "stack.#.pre.gain": L + "input_layernorm.weight",
    "stack.#.mid.gain": L + "post_attention_layernorm.weight",
}
MIXTRAL_RULES = COMMON | {
    "stack.#.attention.qkv.weight": [f"{L}self_attn.{n}_proj.weight" for n in "qkv"],
    "stack.#.attention.merge.weight": L + "self_attn.o_proj.weight",
    "stack.#.mixture.router.weight": L + "mlp.gate.weight",
}


def _expert_rules(experts, wide, at="stack.#.mixture.experts."):
    rules = {}
    for e in range(experts):
        rules[f"{at}{e}.w1.weight"] = lambda a, e=e: a(L + "mlp.experts.gate_up_proj")[e, :wide]
        rules[f"{at}{e}.w3.weight"] = lambda a, e=e: a(L + "mlp.experts.gate_up_proj")[e, wide:]
        rules[f"{at}{e}.w2.weight"] = lambda a, e=e: a(L + "mlp.experts.down_proj")[e]
    return rules


def _not_normalised(self, logits):
    return logits.float().softmax(-1).topk(self.top, -1)


def _exchanged_experts(training):
    experts = training.at("stack.1.mixture").experts
    a, b = (dict(experts[i].named_parameters()) for i in (1, 2))
    with torch.no_grad():
        for name in a:
            kept = a[name].clone()
            a[name].copy_(b[name])
            b[name].copy_(kept)


MAP_MIXTRAL = {
    "TopLayer": {"model.embed_tokens": "wte", "model.layers": "stack", "model.norm": "top", "lm_head": "unembed"},
    "MixtralDecoderLayer": {
        "self_attn": "attention",
        "mlp": "mixture",
        "input_layernorm": "pre",
        "post_attention_layernorm": "mid",
    },
    "MixtralAttention": {"qkv": {"from": ["q_proj", "k_proj", "v_proj"]}, "o_proj": "merge"},
    "MixtralSparseMoeBlock": {"gate": "router"},
    "MixtralExperts": {
        "params": {"gate_up_proj": {"to": ["{i}.w1.weight", "{i}.w3.weight"]}, "down_proj": {"to": ["{i}.w2.weight"]}}
    },
    "MixtralRMSNorm": {"params": {"weight": "gain"}},
}

MIXTRAL = model(
    "s-mixtral",
    mixtral,
    {
        "weights-not-normalised": P.method(HERE, "weighed", _not_normalised),
        "top-1": P.setting(HERE, top=1),
        "experts-exchanged": _exchanged_experts,
        "gelu-in-one-expert": P.rewritten(HERE, lambda self, x: self.w2(F.gelu(self.w1(x)) * self.w3(x))),
        "balance-weight": lambda t: setattr(t, "criterion", _with_balance(0.01)),
        "heads-tiled": P.method(HERE, "shared", lambda self, x: x.repeat(1, 2, 1, 1)),
        "rope-base": P.setting(HERE, base=500000.0),
        "router-detached": P.around("stack.1.mixture.router", lambda forward, x: forward(x.detach())),
        "weights-detached": P.method(HERE, "weighed", lambda self, logits: Mixture.weighed(self, logits.detach())),
        "router-frozen": P.frozen(HERE),
        "sdpa-a": Sides(a=lambda t: t.model.set_attn_implementation("sdpa")),
    },
    port=ported(
        mixtral,
        lambda: MixtureLm(
            64, 32, [MixtureBlock(32, PackedAttention(32, 4, 2), Mixture(32, 48, 4, 2), 1e-5) for _ in range(2)], 1e-5
        ),
        MIXTRAL_RULES | _expert_rules(4, 48),
        2,
        call(ids="tokens"),
    ),
)


class DenseMixture(nn.Module):
    """All experts at once by einsum, those not chosen weighed with 0."""

    def __init__(self, size: int, wide: int, number: int, top: int):
        super().__init__()
        self.top, self.choose = top, nn.Parameter(torch.zeros(number, size))
        self.gate, self.up = (nn.Parameter(torch.zeros(number, wide, size)) for _ in "gu")
        self.down = nn.Parameter(torch.zeros(number, size, wide))

    def weights(self, x):
        chances = (x @ self.choose.T).float().softmax(-1)
        best = chances.topk(self.top, -1)
        kept = torch.zeros_like(chances).scatter(-1, best.indices, best.values)
        return (kept / kept.sum(-1, keepdim=True)).to(x.dtype)

    def forward(self, x):
        inner = F.silu(torch.einsum("btd,ewd->btew", x, self.gate)) * torch.einsum("btd,ewd->btew", x, self.up)
        return torch.einsum("btew,edw,bte->btd", inner, self.down, self.weights(x))


class QkNormed(nn.Module):
    """Attention with normed queries and keys; bare matrices."""

    def __init__(self, size: int, number: int, kept: int):
        super().__init__()
        self.number, self.kept, head = number, kept, size // number
        self.wq, self.wo = nn.Parameter(torch.zeros(size, size)), nn.Parameter(torch.zeros(size, size))
        self.wkv = nn.Parameter(torch.zeros(2 * kept * head, size))
        self.q_gain, self.k_gain, self.eps = nn.Parameter(torch.ones(head)), nn.Parameter(torch.ones(head)), 1e-6

    def normed(self, q, k):
        return rms(q, self.q_gain, self.eps), rms(k, self.k_gain, self.eps)

    def mask(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def forward(self, x):
        q, kv = heads(F.linear(x, self.wq), self.number), heads(F.linear(x, self.wkv), 2 * self.kept)
        q, k = self.normed(q, kv[:, : self.kept])
        k, v = (t.repeat_interleave(self.number // self.kept, 1) for t in (rotated(k), kv[:, self.kept :]))
        return F.linear(self.mask(rotated(q), k, v).transpose(1, 2).flatten(2), self.wo)


class QwenBlock(nn.Module):
    """Norms inline."""

    def __init__(self, size: int):
        super().__init__()
        self.g1, self.g2 = nn.Parameter(torch.ones(size)), nn.Parameter(torch.ones(size))
        self.a, self.m = QkNormed(size, 4, 2), DenseMixture(size, 24, 6, 3)

    def forward(self, x):
        x = x + self.a(rms(x, self.g1, 1e-6))
        return x + self.m(rms(x, self.g2, 1e-6))


class QwenLm(nn.Module):
    """A flat model whose head is its table."""

    def __init__(self, words: int, size: int, layers: int):
        super().__init__()
        self.table, self.last = nn.Parameter(torch.zeros(words, size)), nn.Parameter(torch.ones(size))
        self.h = nn.ModuleList([QwenBlock(size) for _ in range(layers)])

    def head(self, x):
        return x @ self.table.T

    def forward(self, ids):
        x = F.embedding(ids, self.table)
        for block in self.h:
            x = block(x)
        return self.head(rms(x, self.last, 1e-6))


def qwen3_moe():
    return lively_experts(hub.causal("s-qwen3-moe", hub.of("qwen3_moe"), words=64, shape=(4, 12)))


QWEN_RULES = {
    "table": "model.embed_tokens.weight",
    "last": "model.norm.weight",
    "h.#.g1": L + "input_layernorm.weight",
    "h.#.g2": L + "post_attention_layernorm.weight",
    "h.#.a.wq": L + "self_attn.q_proj.weight",
    "h.#.a.wkv": [L + "self_attn.k_proj.weight", L + "self_attn.v_proj.weight"],
    "h.#.a.wo": L + "self_attn.o_proj.weight",
    "h.#.a.q_gain": L + "self_attn.q_norm.weight",
    "h.#.a.k_gain": L + "self_attn.k_norm.weight",
    "h.#.m.choose": L + "mlp.gate.weight",
    "h.#.m.gate": lambda a: a(L + "mlp.experts.gate_up_proj")[:, :24],
    "h.#.m.up": lambda a: a(L + "mlp.experts.gate_up_proj")[:, 24:],
    "h.#.m.down": L + "mlp.experts.down_proj",
}

QWEN = model(
    "s-qwen3-moe",
    qwen3_moe,
    {
        "norm-after-rope": P.method(HERE, "normed", lambda self, q, k: (rms(q, self.q_gain, self.eps), k)),
        "input-rescaled": P.around(HERE, lambda forward, x: forward(x * (1 + 2e-5))),
        "head-scaled": P.method("", "head", lambda self, x: x @ self.table.T * 32**-0.5),
        "table-twice": P.method("", "head", lambda self, x: x @ self.table.detach().T),
        "window": P.method(
            HERE,
            "mask",
            lambda self, q, k, v: F.scaled_dot_product_attention(
                q, k, v, attn_mask=torch.ones(12, 12, dtype=torch.bool).tril().triu(-5)
            ),
        ),
        "gate-up-exchanged": lambda t: _swap(t.at("h.1.m"), "gate", "up"),
        "wrong-rows": P.values(HERE, "wkv", lambda w: torch.cat([w[8:16], w[:8], w[16:]])),
        "rare-words": P.each_batch(lambda b: b | {"tokens": b["tokens"].clamp(max=40)}),
        "labels-shifted": P.criterion(lambda logits, b: next_token_loss(logits, {"labels": b["labels"].roll(-1, 1)})),
    },
    port=ported(qwen3_moe, lambda: QwenLm(64, 32, 3), QWEN_RULES, 3, call(ids="tokens")),
)


def _swap(module, one, other):
    a, b = getattr(module, one), getattr(module, other)
    with torch.no_grad():
        kept = a.clone()
        a.copy_(b)
        b.copy_(kept)


MODELS = (MIXTRAL, QWEN)
