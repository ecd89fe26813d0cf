"""Bottleneck layers with NoNorm, stacked feed-forwards."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from ... import hub
from ... import plant as P
from ...spec import Clean, Fault, Model
from ...training import Training, threads


def mobilebert() -> Training:
    return hub.masked(
        "mobilebert",
        lambda T: T.MobileBertForMaskedLM(
            T.MobileBertConfig(
                vocab_size=50,
                hidden_size=32,
                num_hidden_layers=2,
                num_attention_heads=2,
                intermediate_size=40,
                embedding_size=16,
                intra_bottleneck_size=16,
                num_feedforward_networks=2,
                max_position_embeddings=32,
                hidden_dropout_prob=0.0,
                attention_probs_dropout_prob=0.0,
            )
        ),
    )


MOBILEBERT = Model(
    "mobilebert",
    mobilebert,
    "bottleneck layers with NoNorm, stacked feed-forwards",
    (
        Fault(
            "no-norm-is-norm",
            "norm-setting",
            P.rewritten(
                "mobilebert.encoder.layer.0.output.LayerNorm",
                lambda self, x: F.layer_norm(x, x.shape[-1:], self.weight, self.bias, 1e-12),
            ),
            "mobilebert.encoder.layer.0.output.LayerNorm",
            ("forward",),
            "LayerNorm for NoNorm",
            also=("mobilebert.encoder.layer.0.output",),
        ),
        Fault(
            "value-from-bottleneck",
            "wrong-input",
            P.around(
                "mobilebert.encoder.layer.1.attention",
                lambda f, q, k, v, layer_input, *a, **o: f(q, k, v.flip(1), layer_input, *a, **o),
            ),
            "mobilebert.encoder.layer.1.attention",
            ("forward",),
            "values come from the reversed sequence",
        ),
        Fault(
            "ffn-residual",
            "residual",
            P.rewritten("mobilebert.encoder.layer.1.ffn.0.output", lambda self, h, r: self.LayerNorm(self.dense(h))),
            "mobilebert.encoder.layer.1.ffn.0.output",
            ("forward",),
            "no residual in the stacked feed-forward",
            dtype="bfloat16",
        ),
        Fault(
            "trigram",
            "off-by-one",
            P.rewritten(
                "mobilebert.embeddings.embedding_transformation",
                lambda self, x: F.linear(
                    torch.cat([x[..., 32:], x[..., 16:32], x[..., :16]], -1), self.weight, self.bias
                ),
            ),
            "mobilebert.embeddings.embedding_transformation",
            ("forward",),
            "the neighbours before and behind are swapped",
            also=("mobilebert.embeddings",),
        ),
        Fault(
            "eps-of-head",
            "eps",
            P.setting("cls.predictions.transform.LayerNorm", eps=1e-5),
            "cls.predictions.transform.LayerNorm",
            ("forward",),
            "LayerNorm eps 1e-5 for 1e-12",
            also=("cls.predictions.transform",),
        ),
    ),
    (
        Clean("sdpa", "sdpa for eager attention", hub.attention("sdpa"), dtype="bfloat16"),
        Clean(
            "bool-mask", "a boolean mask for one of integers", P.each_batch(lambda b: {**b, "mask": b["mask"].bool()})
        ),
        Clean(
            "autocast-threads",
            "on two threads, autocast",
            lambda t: setattr(t, "context", lambda: threads(2)),
            dtype="autocast",
        ),
    ),
)
