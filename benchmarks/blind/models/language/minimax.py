"""Lightning attention, softmax attention, experts."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from ... import hub
from ... import plant as P
from ...spec import Clean, Fault, Model
from ...training import Training


def minimax() -> Training:
    return hub.causal(
        "minimax",
        lambda T: T.MiniMaxForCausalLM(
            T.MiniMaxConfig(
                **hub.SMALL
                | {
                    "head_dim": 8,
                    "num_local_experts": 3,
                    "num_experts_per_tok": 2,
                    "block_size": 4,
                    "layer_types": ["linear_attention", "full_attention"],
                }
            )
        ),
    )


MINIMAX = Model(
    "minimax",
    minimax,
    "lightning attention, softmax attention, experts",
    (
        Fault(
            "slope",
            "buffer",
            P.values("model.layers.0.self_attn", "key_decay", lambda d: d.flip(1)),
            "model.layers.0.self_attn",
            ("init",),
            "the keys' decays within a block are reversed",
        ),
        Fault(
            "gate-missing",
            "residual",
            P.around("model.layers.0.self_attn.output_gate", lambda f, x: torch.zeros_like(f(x))),
            "model.layers.0.self_attn.output_gate",
            ("forward",),
            "the output gate is off: sigmoid of zero",
            dtype="autocast",
        ),
        Fault(
            "alpha",
            "scale",
            lambda t: setattr(t.at("model.layers.1"), "mlp_alpha_factor", 1.1),
            "model.layers.1",
            ("forward",),
            "the residual's factor before the experts is 1.1 for 1",
        ),
        Fault(
            "head-counts",
            "heads",
            P.setting("model.layers.1.self_attn", num_key_value_groups=2, scaling=32**-0.5),
            "model.layers.1.self_attn",
            ("forward",),
            "scores are scaled by the hidden size",
        ),
        Fault(
            "router-noise",
            "nan",
            P.around(
                "model.layers.1.mlp.gate",
                lambda f, *a, **k: tuple(
                    v.masked_fill(v == v.max(), torch.nan) if i == 1 else v for i, v in enumerate(f(*a, **k))
                ),
            ),
            "model.layers.1.mlp.gate",
            ("forward",),
            "a routing weight is NaN",
        ),
    ),
    (
        Clean("sdpa", "sdpa for eager attention", hub.attention("sdpa")),
        Clean(
            "norm-fused",
            "RMS norm by torch's function",
            P.rewritten(
                "model.layers.0.post_attention_layernorm",
                lambda self, x: F.rms_norm(x, x.shape[-1:], self.weight, self.variance_epsilon),
            ),
            steps=2,
        ),
    ),
)
