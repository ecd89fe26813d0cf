"""Matrix LSTM with exponential gates."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from ... import hub
from ... import plant as P
from ...spec import Clean, Fault, Model
from ...training import Training


def xlstm() -> Training:
    return hub.causal(
        "xlstm",
        lambda T: T.xLSTMForCausalLM(
            T.xLSTMConfig(
                vocab_size=50,
                hidden_size=32,
                embedding_dim=32,
                num_hidden_layers=2,
                num_blocks=2,
                num_heads=4,
                chunk_size=8,
                pad_token_id=0,
                bos_token_id=1,
                eos_token_id=2,
            )
        ),
        shape=(2, 8),
    )


XLSTM = Model(
    "xlstm",
    xlstm,
    "matrix LSTM with exponential gates",
    (
        Fault(
            "gates-swapped",
            "wrong-split",
            P.around(
                "backbone.blocks.1.mlstm_layer.mlstm_backend",
                lambda f, **k: f(**{**k, "igate": k["fgate"], "fgate": k["igate"]}),
            ),
            "backbone.blocks.1.mlstm_layer.mlstm_backend",
            ("forward",),
            "input and forget gates are swapped",
            also=("backbone.blocks.1.mlstm_layer",),
        ),
        Fault(
            "cap",
            "constant",
            lambda t: _cap(t),
            "backbone.blocks.0.mlstm_layer",
            ("forward",),
            "gates are capped at 5 for 15",
        ),
        Fault(
            "norm-over-all",
            "norm-setting",
            P.rewritten(
                "backbone.blocks.0.mlstm_layer.multihead_norm",
                lambda self, x: F.layer_norm(
                    x.flatten(-2), (x.shape[-1] * x.shape[-2],), self.weight.flatten(), None, self.eps
                ).view(*x.shape[:2], -1),
            ),
            "backbone.blocks.0.mlstm_layer.multihead_norm",
            ("forward",),
            "the norm is over all heads",
        ),
        Fault(
            "up-gate",
            "wrong-split",
            P.rewritten(
                "backbone.blocks.1.ffn",
                lambda self, x: self.proj_down(self.act_fn(self.proj_up(x)) * self.proj_up_gate(x)),
            ),
            "backbone.blocks.1.ffn",
            ("forward",),
            "the activation is on the other product",
        ),
        Fault(
            "forget-bias",
            "init",
            P.values("backbone.blocks.1.mlstm_layer.fgate_preact", "bias", lambda b: b + 3),
            "backbone.blocks.1.mlstm_layer.fgate_preact",
            ("init",),
            "the forget gates' bias starts 3 higher",
        ),
    ),
    (
        Clean("checkpointed", "activation checkpointing", hub.checkpointed),
        Clean(
            "packed-up",
            "the two up projections as one product",
            P.rewritten("backbone.blocks.0.ffn", lambda self, x: _packed_up(self, x)),
            steps=2,
        ),
    ),
)


def _cap(training):
    import copy

    layer = training.at("backbone.blocks.0.mlstm_layer")
    layer.config = copy.copy(layer.config)
    layer.config.gate_soft_cap = 5.0


def _packed_up(self, x):
    gate, up = F.linear(x, torch.cat([self.proj_up_gate.weight, self.proj_up.weight])).chunk(2, -1)
    return self.proj_down(self.act_fn(gate) * up)
