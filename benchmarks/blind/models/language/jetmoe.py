"""Experts of attention and of feed-forward."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from ... import hub
from ... import plant as P
from ...spec import Clean, Fault, Model
from ...training import Training, sgd


def jetmoe() -> Training:
    return hub.causal(
        "jetmoe",
        lambda T: T.JetMoeForCausalLM(
            T.JetMoeConfig(
                vocab_size=50,
                hidden_size=32,
                num_hidden_layers=2,
                num_key_value_heads=2,
                kv_channels=8,
                intermediate_size=24,
                max_position_embeddings=64,
                num_local_experts=4,
                num_experts_per_tok=2,
                activation_function="silu",
            )
        ),
        optimize=sgd,
    )


def _softmax_first(self, hidden_states):
    logits = self.layer(hidden_states).float()
    chances, indices = logits.softmax(-1).topk(self.top_k, dim=1)
    gates = chances.type_as(hidden_states)
    sizes = F.one_hot(indices, self.num_experts).sum((0, 1)).tolist()
    _, order = indices.flatten().sort(0)
    return order, order.div(self.top_k, rounding_mode="trunc"), gates.flatten()[order], sizes, logits


def _half_rotation(original):
    def rotate(q, k, cos, sin, unsqueeze_dim=1):
        cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)

        def turn(x):
            pairs = x.unflatten(-1, (-1, 2))
            return x * cos + torch.stack([-pairs[..., 1], pairs[..., 0]], -1).flatten(-2) * sin

        return turn(q), turn(k)

    return rotate


JETMOE = Model(
    "jetmoe",
    jetmoe,
    "experts of attention and of feed-forward",
    (
        Fault(
            "softmax-before-top",
            "order-of-operations",
            P.rewritten("model.layers.0.mlp.router", _softmax_first),
            "model.layers.0.mlp.router",
            ("forward",),
            "softmax before the choice, not after it",
        ),
        Fault(
            "rotary-pairs",
            "rotary",
            P.inside("model.layers.1.self_attention", *hub.rotary_of("jetmoe"), _half_rotation),
            "model.layers.1.self_attention",
            ("forward",),
            "neighbours are rotated with the halves' angles",
            dtype="autocast",
        ),
        Fault(
            "bias-missing",
            "missing-bias",
            P.values("model.layers.1.mlp", "bias", torch.zeros_like),
            "model.layers.1.mlp",
            ("init",),
            "the bias behind the experts is not loaded",
        ),
        Fault(
            "gates-detached",
            "detach",
            P.around(
                "model.layers.1.mlp.router",
                lambda f, x: tuple(
                    v.detach() if isinstance(v, torch.Tensor) and i == 2 else v for i, v in enumerate(f(x))
                ),
            ),
            "model.layers.1.mlp.router",
            ("backward", "gradient"),
            "the gates are detached",
            also=("model.layers.1.mlp.router.layer", "model.layers.1.mlp"),
        ),
        Fault(
            "momentum-dtype",
            "optimizer-state",
            P.after_step(
                lambda t, n: [
                    s["momentum_buffer"].copy_(s["momentum_buffer"].bfloat16()) for s in t.optimizer.state.values()
                ]
            ),
            "",
            ("update",),
            "momentum is kept in bfloat16 precision",
            steps=2,
        ),
    ),
    (
        Clean("sdpa", "sdpa for eager attention", hub.attention("sdpa")),
        Clean(
            "fused-sgd",
            "SGD's fused kernel",
            P.optimizer(
                lambda m: torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4, fused=True)
            ),
            steps=3,
        ),
    ),
)
