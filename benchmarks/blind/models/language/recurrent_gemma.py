"""Gated linear recurrences and local attention."""

from __future__ import annotations

import torch
from torch import nn

from ... import hub
from ... import plant as P
from ...spec import Clean, Fault, Model
from ...training import Training, threads


def recurrent_gemma() -> Training:
    training = hub.causal(
        "recurrent-gemma",
        lambda T: T.RecurrentGemmaForCausalLM(
            T.RecurrentGemmaConfig(
                num_hidden_layers=3,
                vocab_size=50,
                hidden_size=32,
                intermediate_size=64,
                num_attention_heads=4,
                lru_width=32,
                attention_window_size=8,
                conv1d_width=4,
                head_dim=8,
                pad_token_id=0,
                bos_token_id=1,
                eos_token_id=2,
            )
        ),
    )

    def forget(number):
        for module in training.model.modules():
            if hasattr(module, "recurrent_states"):
                module.recurrent_states = None

    training.before_step.append(forget)
    return training


def _scan_without_reset(self, hidden_states, recurrent_gate, reset, recurrent_states, acc_dtype=torch.float32):
    state, kept = torch.zeros_like(hidden_states[:, 0]), []
    for t in range(hidden_states.shape[1]):
        state = recurrent_gate[:, max(t - 1, 0)] * state + hidden_states[:, t]
        kept.append(state)
    return torch.stack(kept, 1), state


RECURRENT = Model(
    "recurrent-gemma",
    recurrent_gemma,
    "gated linear recurrences and local attention",
    (
        Fault(
            "gate-of-step-before",
            "off-by-one",
            P.method("model.layers.0.temporal_block.rg_lru", "_rnn_scan", _scan_without_reset),
            "model.layers.0.temporal_block.rg_lru",
            ("forward",),
            "the state decays with the gate of the step before",
        ),
        Fault(
            "norm-without-one",
            "formula",
            P.rewritten(
                "model.layers.1.channel_pre_norm", lambda self, x: self._norm(x.float()).type_as(x) * self.weight
            ),
            "model.layers.1.channel_pre_norm",
            ("forward",),
            "the norm's weight is not 1 + w",
            dtype="bfloat16",
        ),
        Fault(
            "half-rotary",
            "rotary",
            P.inside(
                "model.layers.2.temporal_block",
                *hub.rotary_of("recurrent_gemma"),
                lambda f: lambda q, k, cos, sin, **o: f(q, k, cos, -sin, **o),
            ),
            "model.layers.2.temporal_block",
            ("forward",),
            "queries and keys are rotated backwards",
        ),
        Fault(
            "window",
            "constant",
            lambda t: _window(t),
            "model.layers.2.temporal_block",
            ("forward",),
            "the window is 6 for 8",
            also=("", "model"),
        ),
        Fault(
            "embeddings-untied",
            "tied",
            lambda t: setattr(t.model.lm_head, "weight", nn.Parameter(t.model.lm_head.weight.detach().clone())),
            "",
            ("gradient", "init", "backward", "update"),
            "the head's weight is a copy",
            also=("lm_head", "model.embed_tokens"),
        ),
    ),
    (
        Clean(
            "scan-stacked",
            "the recurrence without writing in place",
            P.method("model.layers.1.temporal_block.rg_lru", "_rnn_scan", lambda self, *a, **k: _stacked_scan(*a, **k)),
        ),
        Clean("two-threads", "on two threads", lambda t: setattr(t, "context", lambda: threads(2)), dtype="bfloat16"),
    ),
)


def _window(training):
    training.model.config.attention_window_size = 6
    for module in training.model.modules():
        if hasattr(module, "config") and hasattr(module.config, "attention_window_size"):
            module.config.attention_window_size = 6
        if hasattr(module, "attention_window_size"):
            module.attention_window_size = 6


def _stacked_scan(hidden_states, recurrent_gate, reset, recurrent_states, acc_dtype=torch.float32):
    gate, state, kept = recurrent_gate * ~reset, torch.zeros_like(hidden_states[:, 0], dtype=acc_dtype), []
    for t in range(hidden_states.shape[1]):
        state = hidden_states[:, t].type(acc_dtype) + gate[:, t].type(acc_dtype) * state
        kept.append(state.type(hidden_states.dtype))
    return torch.stack(kept, 1), state
