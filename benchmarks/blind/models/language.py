"""Language models of transformers: Nystromformer, DBRX, JetMoE, RecurrentGemma, MiniMax, xLSTM, MobileBERT."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from .. import hub
from .. import plant as P
from ..spec import HERE, model
from ..training import Training, sgd, threads

# Masked language model with Nystrom attention.


def nystromformer() -> Training:
    return hub.masked("nystromformer", hub.of("nystromformer"), padded=False)


def _fewer_iterations(forward, mat, n_iter=6):
    return forward(mat, n_iter=4)


NYSTROMFORMER = model(
    "nystromformer",
    nystromformer,
    {
        "fewer-iterations": lambda t: _method_around(
            t, "nystromformer.encoder.layer.0.attention.self", "iterative_inv", _fewer_iterations
        ),
        "conv-skipped": P.around(HERE, lambda f, x: 0 * f(x)),
        "gelu-erf": P.rewritten(HERE, lambda self, x: F.gelu(x)),
        "norm-eps": P.setting(HERE, eps=1e-12),
        "all-tokens": P.each_batch(lambda b: {**b, "labels": b["tokens"]}),
        "two-threads": lambda t: setattr(t, "context", lambda: threads(2)),
        "checkpointed": hub.checkpointed,
        "chunked": lambda t: _chunked(t),
    },
)


def _method_around(training, path, name, call):
    module = training.at(path)
    forward = getattr(module, name)
    setattr(module, name, lambda *a, **k: call(forward, *a, **k))


def _chunked(training):
    for layer in training.model.nystromformer.encoder.layer:
        layer.chunk_size_feed_forward = 4


# Experts with packed weights, clipped q, k and v.


def dbrx() -> Training:
    return hub.causal("dbrx", hub.of("dbrx"), clip=1.0)


DBRX = model(
    "dbrx",
    dbrx,
    {
        "no-clip-qkv": P.setting(HERE, clip_qkv=1e9),
        "l2-normalised": P.setting(HERE, moe_normalize_expert_weights=2),
        "up-gate": P.rewritten(
            HERE, lambda self, x, w1, v1, w2: (x.matmul(w1.T) * self.activation_fn(x.matmul(v1.T))).matmul(w2)
        ),
        "qkv-order": P.values(HERE, "weight", lambda w: torch.cat([w[:32], w[48:], w[32:48]])),
        "clip-twice": P.after_backward(
            lambda t, n: nn.utils.clip_grad_norm_([p for m, p in t.model.named_parameters() if "experts" in m], 0.1)
        ),
        "sdpa": hub.attention("sdpa"),
        "sdpa-bfloat16": hub.attention("sdpa"),
        "checkpointed": hub.checkpointed,
    },
)


# Experts of attention and of feed-forward.


def jetmoe() -> Training:
    return hub.causal("jetmoe", hub.of("jetmoe"), optimize=sgd)


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


JETMOE = model(
    "jetmoe",
    jetmoe,
    {
        "softmax-before-top": P.rewritten(HERE, _softmax_first),
        "rotary-pairs": P.inside(HERE, *hub.rotary_of("jetmoe"), _half_rotation),
        "bias-missing": P.values(HERE, "bias", torch.zeros_like),
        "gates-detached": P.around(
            HERE,
            lambda f, x: tuple(v.detach() if isinstance(v, torch.Tensor) and i == 2 else v for i, v in enumerate(f(x))),
        ),
        "momentum-dtype": P.after_step(
            lambda t, n: [
                s["momentum_buffer"].copy_(s["momentum_buffer"].bfloat16()) for s in t.optimizer.state.values()
            ]
        ),
        "sdpa": hub.attention("sdpa"),
        "fused-sgd": P.optimizer(
            lambda m: torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4, fused=True)
        ),
    },
)


# Gated linear recurrences and local attention.


def recurrent_gemma() -> Training:
    training = hub.causal("recurrent-gemma", hub.of("recurrent_gemma"))

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


RECURRENT = model(
    "recurrent-gemma",
    recurrent_gemma,
    {
        "gate-of-step-before": P.method(HERE, "_rnn_scan", _scan_without_reset),
        "norm-without-one": P.rewritten(HERE, lambda self, x: self._norm(x.float()).type_as(x) * self.weight),
        "half-rotary": P.inside(
            HERE, *hub.rotary_of("recurrent_gemma"), lambda f: lambda q, k, cos, sin, **o: f(q, k, cos, -sin, **o)
        ),
        "window": lambda t: _window(t),
        "embeddings-untied": lambda t: setattr(
            t.model.lm_head, "weight", nn.Parameter(t.model.lm_head.weight.detach().clone())
        ),
        "scan-stacked": P.method(
            "model.layers.1.temporal_block.rg_lru", "_rnn_scan", lambda self, *a, **k: _stacked_scan(*a, **k)
        ),
        "two-threads": lambda t: setattr(t, "context", lambda: threads(2)),
    },
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


# Lightning attention, softmax attention, experts.


def minimax() -> Training:
    return hub.causal("minimax", hub.of("minimax"))


MINIMAX = model(
    "minimax",
    minimax,
    {
        "slope": P.values(HERE, "key_decay", lambda d: d.flip(1)),
        "gate-missing": P.around(HERE, lambda f, x: torch.zeros_like(f(x))),
        "alpha": lambda t: setattr(t.at("model.layers.1"), "mlp_alpha_factor", 1.1),
        "head-counts": P.setting(HERE, num_key_value_groups=2, scaling=32**-0.5),
        "router-noise": P.around(
            HERE,
            lambda f, *a, **k: tuple(
                v.masked_fill(v == v.max(), torch.nan) if i == 1 else v for i, v in enumerate(f(*a, **k))
            ),
        ),
        "sdpa": hub.attention("sdpa"),
        "norm-fused": P.rewritten(
            "model.layers.0.post_attention_layernorm",
            lambda self, x: F.rms_norm(x, x.shape[-1:], self.weight, self.variance_epsilon),
        ),
    },
)


# Matrix LSTM with exponential gates.


def xlstm() -> Training:
    return hub.causal("xlstm", hub.of("xlstm"), shape=(2, 8))


XLSTM = model(
    "xlstm",
    xlstm,
    {
        "gates-swapped": P.around(HERE, lambda f, **k: f(**{**k, "igate": k["fgate"], "fgate": k["igate"]})),
        "cap": lambda t: _cap(t),
        "norm-over-all": P.rewritten(
            HERE,
            lambda self, x: F.layer_norm(
                x.flatten(-2), (x.shape[-1] * x.shape[-2],), self.weight.flatten(), None, self.eps
            ).view(*x.shape[:2], -1),
        ),
        "up-gate": P.rewritten(
            HERE, lambda self, x: self.proj_down(self.act_fn(self.proj_up(x)) * self.proj_up_gate(x))
        ),
        "forget-bias": P.values(HERE, "bias", lambda b: b + 3),
        "checkpointed": hub.checkpointed,
        "packed-up": P.rewritten("backbone.blocks.0.ffn", lambda self, x: _packed_up(self, x)),
    },
)


def _cap(training):
    import copy

    layer = training.at("backbone.blocks.0.mlstm_layer")
    layer.config = copy.copy(layer.config)
    layer.config.gate_soft_cap = 5.0


def _packed_up(self, x):
    gate, up = F.linear(x, torch.cat([self.proj_up_gate.weight, self.proj_up.weight])).chunk(2, -1)
    return self.proj_down(self.act_fn(gate) * up)


# Bottleneck layers with NoNorm, stacked feed-forwards.


def mobilebert() -> Training:
    return hub.masked("mobilebert", hub.of("mobilebert"))


MOBILEBERT = model(
    "mobilebert",
    mobilebert,
    {
        "no-norm-is-norm": P.rewritten(
            HERE, lambda self, x: F.layer_norm(x, x.shape[-1:], self.weight, self.bias, 1e-12)
        ),
        "value-from-bottleneck": P.around(
            HERE, lambda f, q, k, v, layer_input, *a, **o: f(q, k, v.flip(1), layer_input, *a, **o)
        ),
        "ffn-residual": P.rewritten(HERE, lambda self, h, r: self.LayerNorm(self.dense(h))),
        "trigram": P.rewritten(
            HERE,
            lambda self, x: F.linear(torch.cat([x[..., 32:], x[..., 16:32], x[..., :16]], -1), self.weight, self.bias),
        ),
        "eps-of-head": P.setting(HERE, eps=1e-5),
        "sdpa": hub.attention("sdpa"),
        "bool-mask": P.each_batch(lambda b: {**b, "mask": b["mask"].bool()}),
        "autocast-threads": lambda t: setattr(t, "context", lambda: threads(2)),
    },
)

MODELS = (NYSTROMFORMER, DBRX, JETMOE, RECURRENT, MINIMAX, XLSTM, MOBILEBERT)
