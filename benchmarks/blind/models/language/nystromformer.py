"""Masked language model with Nystrom attention."""

from __future__ import annotations

from torch.nn import functional as F

from ... import hub
from ... import plant as P
from ...spec import Clean, Fault, Model
from ...training import Training, threads


def nystromformer() -> Training:
    return hub.masked(
        "nystromformer",
        lambda T: T.NystromformerForMaskedLM(
            T.NystromformerConfig(
                vocab_size=50,
                hidden_size=32,
                intermediate_size=48,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_landmarks=4,
                segment_means_seq_len=16,
                max_position_embeddings=40,
                conv_kernel_size=3,
                hidden_dropout_prob=0.0,
                attention_probs_dropout_prob=0.0,
                pad_token_id=0,
            )
        ),
        padded=False,
    )


def _fewer_iterations(forward, mat, n_iter=6):
    return forward(mat, n_iter=4)


NYSTROMFORMER = Model(
    "nystromformer",
    nystromformer,
    "masked language model with Nystrom attention",
    (
        Fault(
            "fewer-iterations",
            "constant",
            lambda t: _method_around(
                t, "nystromformer.encoder.layer.0.attention.self", "iterative_inv", _fewer_iterations
            ),
            "nystromformer.encoder.layer.0.attention.self",
            ("forward",),
            "4 iterations of the inverse for 6",
        ),
        Fault(
            "conv-skipped",
            "residual",
            P.around("nystromformer.encoder.layer.1.attention.self.conv", lambda f, x: 0 * f(x)),
            "nystromformer.encoder.layer.1.attention.self.conv",
            ("forward",),
            "the convolution's result is not added: it is zero",
        ),
        Fault(
            "gelu-erf",
            "gelu",
            P.rewritten("nystromformer.encoder.layer.0.intermediate.intermediate_act_fn", lambda self, x: F.gelu(x)),
            "nystromformer.encoder.layer.0.intermediate.intermediate_act_fn",
            ("forward",),
            "GELU by erf for tanh",
            also=("nystromformer.encoder.layer.0.intermediate",),
        ),
        Fault(
            "norm-eps",
            "eps",
            P.setting("nystromformer.encoder.layer.1.output.LayerNorm", eps=1e-12),
            "nystromformer.encoder.layer.1.output.LayerNorm",
            ("forward",),
            "LayerNorm eps 1e-12 for 1e-5",
            also=("nystromformer.encoder.layer.1.output",),
        ),
        Fault(
            "all-tokens",
            "ignore-index",
            P.each_batch(lambda b: {**b, "labels": b["tokens"]}),
            "",
            ("loss",),
            "all tokens count in the loss",
        ),
    ),
    (
        Clean("two-threads", "on two threads", lambda t: setattr(t, "context", lambda: threads(2))),
        Clean("checkpointed", "activation checkpointing", hub.checkpointed),
        Clean("chunked", "the feed-forward in chunks", lambda t: _chunked(t), steps=2),
    ),
)


def _method_around(training, path, name, call):
    module = training.at(path)
    forward = getattr(module, name)
    setattr(module, name, lambda *a, **k: call(forward, *a, **k))


def _chunked(training):
    for layer in training.model.nystromformer.encoder.layer:
        layer.chunk_size_feed_forward = 4
