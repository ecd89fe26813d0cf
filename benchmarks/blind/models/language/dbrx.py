"""Experts with packed weights, clipped q, k and v."""

from __future__ import annotations

import torch
from torch import nn

from ... import hub
from ... import plant as P
from ...spec import Clean, Fault, Model
from ...training import Training


def dbrx() -> Training:
    return hub.causal(
        "dbrx",
        lambda T: T.DbrxForCausalLM(
            T.DbrxConfig(
                d_model=32,
                n_heads=4,
                n_layers=2,
                max_seq_len=32,
                vocab_size=50,
                resid_pdrop=0.0,
                emb_pdrop=0.0,
                attn_config={"clip_qkv": 1.5, "kv_n_heads": 2, "rope_theta": 10000.0, "attn_pdrop": 0.0},
                ffn_config={"ffn_hidden_size": 24, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": 32},
            )
        ),
        clip=1.0,
    )


DBRX = Model(
    "dbrx",
    dbrx,
    "experts with packed weights, clipped q, k and v",
    (
        Fault(
            "no-clip-qkv",
            "constant",
            P.setting("transformer.blocks.1.norm_attn_norm.attn", clip_qkv=1e9),
            "transformer.blocks.1.norm_attn_norm.attn",
            ("forward",),
            "q, k and v are not clipped",
        ),
        Fault(
            "l2-normalised",
            "formula",
            P.setting("transformer.blocks.0.ffn", moe_normalize_expert_weights=2),
            "transformer.blocks.0.ffn",
            ("forward",),
            "the experts' weights are normalised by their 2-norm",
            dtype="bfloat16",
        ),
        Fault(
            "up-gate",
            "wrong-split",
            P.rewritten(
                "transformer.blocks.1.ffn.experts.mlp",
                lambda self, x, w1, v1, w2: (x.matmul(w1.T) * self.activation_fn(x.matmul(v1.T))).matmul(w2),
            ),
            "transformer.blocks.1.ffn.experts.mlp",
            ("forward",),
            "gate and up are swapped",
        ),
        Fault(
            "qkv-order",
            "permuted-weight",
            P.values(
                "transformer.blocks.0.norm_attn_norm.attn.Wqkv",
                "weight",
                lambda w: torch.cat([w[:32], w[48:], w[32:48]]),
            ),
            "transformer.blocks.0.norm_attn_norm.attn.Wqkv",
            ("init",),
            "q, v, k in the packed weight",
        ),
        Fault(
            "clip-twice",
            "clip",
            P.after_backward(
                lambda t, n: nn.utils.clip_grad_norm_([p for m, p in t.model.named_parameters() if "experts" in m], 0.1)
            ),
            "",
            ("update",),
            "the experts' gradients are clipped for themselves first",
        ),
    ),
    (
        Clean("sdpa", "sdpa for eager attention", hub.attention("sdpa")),
        Clean("sdpa-bfloat16", "sdpa for eager attention, bfloat16", hub.attention("sdpa"), dtype="bfloat16"),
        Clean("checkpointed", "activation checkpointing", hub.checkpointed, steps=2),
    ),
)
