"""DeepSeek-V3 of transformers against a port with split latents and a list of experts."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from ...blind import hub
from ...blind import plant as P
from ...blind.spec import Model
from ...blind.training import call
from .. import common
from ..frame import C, after, ported
from ..frame import F as Fault
from ..parts import Rms, attend, heads, rotated
from .experts import SMALL, Expert, L, _expert_rules, lively_experts


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
    training = lively_experts(
        hub.causal(
            "s-deepseek",
            lambda T: T.DeepseekV3ForCausalLM(
                T.DeepseekV3Config(
                    **SMALL | {"num_hidden_layers": 3, "num_key_value_heads": 4},
                    moe_intermediate_size=24,
                    n_shared_experts=1,
                    n_routed_experts=8,
                    routed_scaling_factor=2.5,
                    kv_lora_rank=16,
                    q_lora_rank=16,
                    qk_rope_head_dim=4,
                    v_head_dim=12,
                    qk_nope_head_dim=8,
                    n_group=4,
                    topk_group=2,
                    num_experts_per_tok=3,
                    first_k_dense_replace=1,
                    norm_topk_prob=True,
                    rms_norm_eps=1e-6,
                )
            ),
            words=64,
            shape=(4, 12),
        )
    )
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


DEEP = Model(
    "s-deepseek",
    deepseek,
    "DeepSeek-V3 (latent attention, grouped sigmoid routing) against a port with split latents",
    (
        Fault(
            "groups-ignored",
            "wrong expert",
            "forward",
            "model.layers.1.mlp",
            P.method("body.1.ffn", "chosen", _ungrouped),
            "experts are chosen from all groups",
            also="model.layers.1.mlp.gate",
            planted="body.1.ffn",
            mapped=True,
        ),
        Fault(
            "bias-in-weights",
            "wrong code",
            "forward",
            "model.layers.2.mlp",
            P.method("body.2.ffn", "weighed", _biased),
            "the choosing bias also weighs the experts",
            also="model.layers.2.mlp.gate",
            planted="body.2.ffn",
        ),
        Fault(
            "factor",
            "setting",
            "forward",
            "model.layers.1.mlp",
            P.setting("body.1.ffn", factor=1.0),
            "the routed experts are not scaled by 2.5",
            also="model.layers.1.mlp.gate",
            planted="body.1.ffn",
            mapped=True,
            dtype="bfloat16",
        ),
        Fault(
            "rope-halves",
            "wrong code",
            "forward",
            "model.layers.2.self_attn",
            P.method("body.2.mla", "turned", lambda self, x: rotated(x)),
            "rotary pairs are halves, not neighbours",
            planted="body.2.mla",
            mapped=True,
        ),
        Fault(
            "scale-of-nope",
            "setting",
            "forward",
            "model.layers.0.self_attn",
            P.setting("body.0.mla", scale=8**-0.5),
            "scores are scaled by the size without the rotary part",
            planted="body.0.mla",
        ),
        Fault(
            "latent-norm-skipped",
            "wrong code",
            "forward",
            "model.layers.1.self_attn.kv_a_layernorm",
            P.rewritten("body.1.mla.kv_norm", lambda self, x: x * self.gain),
            "the latent is not normalised",
            planted="body.1.mla.kv_norm",
            mapped=True,
        ),
        Fault(
            "favour-buffer",
            "buffer",
            "init",
            "model.layers.2.mlp.gate",
            P.values("body.2.ffn", "favour", torch.zeros_like),
            "the router's bias is not loaded",
            also="model.layers.2.mlp",
            planted="body.2.ffn",
            mapped=True,
        ),
        Fault(
            "shared-scaled",
            "wrong code",
            "forward",
            "model.layers.2.mlp.shared_experts",
            after("body.2.ffn.always", lambda y: y * 2.5),
            "the factor of the routed experts scales the shared one, too",
            also="model.layers.2.mlp",
            planted="body.2.ffn.always",
            mapped=True,
        ),
        Fault(
            "expert-gradient",
            "gradient",
            "gradient",
            "model.layers.1.mlp.experts",
            P.parameter_gradient("body.1.ffn.list.3.w2", "weight", lambda g: g / 2),
            "one expert's gradient is averaged over two ranks",
            also="model.layers.1.mlp",
            planted="body.1.ffn.list.3.w2",
            mapped=True,
        ),
        *common.faults("schedule-late", planted="", mapped=True),
        *common.faults("rms-eps", planted=""),
    ),
    (
        C("port", "the port"),
        C("port-mapped", "the port with its mapping", mapped=True),
        *common.cleans("autocast+ fp32-fp64+ one-two+ groups+"),
    ),
    port=ported(deepseek, lambda: DeepLm(64, 32), DEEP_RULES, 3, call(ids="tokens")),
    mapping={
        "TopLayer": {"model.embed_tokens": "tokens", "model.layers": "body", "model.norm": "final", "lm_head": "lm"},
        "DeepseekV3DecoderLayer": {
            "self_attn": "mla",
            "mlp": "ffn",
            "input_layernorm": "n1",
            "post_attention_layernorm": "n2",
        },
        "DeepseekV3Attention": {
            "q_a_proj": "q_down",
            "q_b_proj": "q_up",
            "q_a_layernorm": "q_norm",
            "kv_a_layernorm": "kv_norm",
            "kv_a_proj_with_mqa": ["kv_down", "k_rope"],
            "kv_b_proj": "kv_up",
            "o_proj": "out",
        },
        "DeepseekV3MLP": {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"},
        "DeepseekV3MoE": {"gate": "score", "experts": "list", "shared_experts": "always"},
        "DeepseekV3Experts": {
            "params": {
                "gate_up_proj": {"to": ["{i}.w1.weight", "{i}.w3.weight"]},
                "down_proj": {"to": ["{i}.w2.weight"]},
            }
        },
        "DeepseekV3RMSNorm": {"params": {"weight": "gain"}},
    },
)

MODELS = (DEEP,)
