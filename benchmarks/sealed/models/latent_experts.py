"""DeepSeek-V3 of transformers against a port with split latents and a list of experts."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from ...blind import hub
from ...blind import plant as P
from ...blind.spec import HERE, model
from ...blind.training import call
from ..frame import after, ported
from ..parts import Rms, attend, heads, rotated
from .experts import Expert, L, _expert_rules, lively_experts


class Latent(nn.Module):
    """DeepSeek's attention: keys and values from a small latent, interleaved rotary pairs."""

    def __init__(self, size: int, number: int, nope: int, rope: int, value: int, rank_q: int, rank: int):
        super().__init__()
        self.number, self.nope, self.rope, self.rank = number, nope, rope, rank
        self.scale = (nope + rope) ** -0.5
        self.q_down, self.q_up = (
            nn.Linear(size, rank_q, bias=False),
            nn.Linear(rank_q, number * (nope + rope), bias=False),
        )
        self.kv_down, self.k_rope = nn.Linear(size, rank, bias=False), nn.Linear(size, rope, bias=False)
        self.kv_up, self.out = (
            nn.Linear(rank, number * (nope + value), bias=False),
            nn.Linear(number * value, size, bias=False),
        )
        self.q_norm, self.kv_norm = Rms(rank_q, 1e-6), Rms(rank, 1e-6)

    def turned(self, x):
        pairs = x.unflatten(-1, (-1, 2))
        return rotated(torch.cat([pairs[..., 0], pairs[..., 1]], -1))

    def forward(self, x):
        q = heads(self.q_up(self.q_norm(self.q_down(x))), self.number)
        k, v = heads(self.kv_up(self.kv_norm(self.kv_down(x))), self.number).split([self.nope, 12], -1)
        q = torch.cat([q[..., : self.nope], self.turned(q[..., self.nope :])], -1)
        turned = self.turned(self.k_rope(x)[:, None]).expand(-1, self.number, -1, -1)
        return self.out(attend(q, torch.cat([k, turned], -1), v, self.scale, causal=True))


class GroupedMixture(nn.Module):
    """Sigmoid scores, a bias that only chooses, groups, and an expert for all."""

    def __init__(self, size: int, wide: int, number: int):
        super().__init__()
        self.score, self.factor = nn.Linear(size, number, bias=False), 2.5
        self.register_buffer("favour", torch.zeros(number))
        self.list, self.always = nn.ModuleList([Expert(size, wide) for _ in range(number)]), Expert(size, wide)

    def chosen(self, chances):
        favoured = chances + self.favour
        groups = favoured.unflatten(-1, (4, -1)).topk(2, -1).values.sum(-1)
        allowed = torch.zeros_like(groups).scatter(-1, groups.topk(2, -1).indices, 1).bool().repeat_interleave(2, -1)
        return favoured.masked_fill(~allowed, float("-inf")).topk(3, -1).indices

    def weighed(self, chances, chosen):
        kept = chances.gather(-1, chosen)
        return kept / kept.sum(-1, keepdim=True) * self.factor

    def forward(self, x):
        rows = x.flatten(0, 1)
        chances = F.linear(rows.float(), self.score.weight.float()).sigmoid()
        chosen = self.chosen(chances)
        weight, total = self.weighed(chances, chosen), torch.zeros_like(rows)
        for number, expert in enumerate(self.list):
            token, place = (chosen == number).nonzero(as_tuple=True)
            if len(token):
                total = total.index_add(0, token, (expert(rows[token]) * weight[token, place, None]).to(rows.dtype))
        return total.view_as(x) + self.always(x)


class DeepBlock(nn.Module):
    def __init__(self, size: int, dense: bool):
        super().__init__()
        self.n1, self.n2 = Rms(size, 1e-6), Rms(size, 1e-6)
        self.mla = Latent(size, 4, 8, 4, 12, 16, 16)
        self.ffn = Expert(size, 48) if dense else GroupedMixture(size, 24, 8)

    def forward(self, x):
        x = x + self.mla(self.n1(x))
        return x + self.ffn(self.n2(x))


class DeepLm(nn.Module):
    def __init__(self, words: int, size: int):
        super().__init__()
        self.tokens, self.final, self.lm = (
            nn.Embedding(words, size),
            Rms(size, 1e-6),
            nn.Linear(size, words, bias=False),
        )
        self.body = nn.Sequential(*(DeepBlock(size, i == 0) for i in range(3)))

    def forward(self, ids):
        return self.lm(self.final(self.body(self.tokens(ids))))


def deepseek():
    training = lively_experts(hub.causal("s-deepseek", hub.of("deepseek"), words=64, shape=(4, 12)))
    for name, buffer in training.model.named_buffers():
        if name.endswith("correction_bias"):
            buffer.copy_(torch.linspace(-0.2, 0.2, 8))
    return training


A, M = L + "self_attn.", L + "mlp."
DEEP_RULES = {
    "tokens.weight": "model.embed_tokens.weight",
    "final.gain": "model.norm.weight",
    "lm.weight": "lm_head.weight",
    "body.#.n1.gain": L + "input_layernorm.weight",
    "body.#.n2.gain": L + "post_attention_layernorm.weight",
    "body.#.mla.q_down.weight": A + "q_a_proj.weight",
    "body.#.mla.q_up.weight": A + "q_b_proj.weight",
    "body.#.mla.q_norm.gain": A + "q_a_layernorm.weight",
    "body.#.mla.kv_norm.gain": A + "kv_a_layernorm.weight",
    "body.#.mla.kv_down.weight": lambda a: a(A + "kv_a_proj_with_mqa.weight")[:16],
    "body.#.mla.k_rope.weight": lambda a: a(A + "kv_a_proj_with_mqa.weight")[16:],
    "body.#.mla.kv_up.weight": A + "kv_b_proj.weight",
    "body.#.mla.out.weight": A + "o_proj.weight",
}
for _new, _old in (("w1", "gate_proj"), ("w2", "down_proj"), ("w3", "up_proj")):
    DEEP_RULES[f"body.0.ffn.{_new}.weight"] = f"model.layers.0.mlp.{_old}.weight"
    for _i in ("1", "2"):
        DEEP_RULES[f"body.{_i}.ffn.always.{_new}.weight"] = f"model.layers.{_i}.mlp.shared_experts.{_old}.weight"
for _i in ("1", "2"):
    DEEP_RULES[f"body.{_i}.ffn.score.weight"] = f"model.layers.{_i}.mlp.gate.weight"
    DEEP_RULES[f"body.{_i}.ffn.favour"] = f"model.layers.{_i}.mlp.gate.e_score_correction_bias"
    DEEP_RULES |= {
        new: lambda a, rule=rule, i=_i: rule(lambda name: a(name.replace("#", i)))
        for new, rule in _expert_rules(8, 24, f"body.{_i}.ffn.list.").items()
    }


def _ungrouped(self, chances):
    return (chances + self.favour).topk(3, -1).indices


def _biased(self, chances, chosen):
    kept = (chances + self.favour).gather(-1, chosen)
    return kept / kept.sum(-1, keepdim=True) * self.factor


DEEP = model(
    "s-deepseek",
    deepseek,
    {
        "groups-ignored": P.method(HERE, "chosen", _ungrouped),
        "bias-in-weights": P.method(HERE, "weighed", _biased),
        "factor": P.setting(HERE, factor=1.0),
        "rope-halves": P.method(HERE, "turned", lambda self, x: rotated(x)),
        "scale-of-nope": P.setting(HERE, scale=8**-0.5),
        "latent-norm-skipped": P.rewritten(HERE, lambda self, x: x * self.gain),
        "favour-buffer": P.values(HERE, "favour", torch.zeros_like),
        "shared-scaled": after(HERE, lambda y: y * 2.5),
        "expert-gradient": P.parameter_gradient(HERE, "weight", lambda g: g / 2),
    },
    port=ported(deepseek, lambda: DeepLm(64, 32), DEEP_RULES, 3, call(ids="tokens")),
)

MODELS = (DEEP,)
