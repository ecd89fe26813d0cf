"""Language models of transformers: Nystromformer, DBRX, JetMoE, RecurrentGemma, MiniMax, xLSTM, MobileBERT."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from .. import hub
from .. import plant as P
from ..spec import Clean, Fault, Model
from ..training import Training, sgd, threads


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
        Fault("fewer-iterations", "constant", lambda t: _method_around(t, "nystromformer.encoder.layer.0.attention.self", "iterative_inv", _fewer_iterations), "nystromformer.encoder.layer.0.attention.self", ("forward",), "4 iterations of the inverse for 6"),
        Fault("conv-skipped", "residual", P.around("nystromformer.encoder.layer.1.attention.self.conv", lambda f, x: 0 * f(x)), "nystromformer.encoder.layer.1.attention.self.conv", ("forward",), "the convolution's result is not added: it is zero", dtype="bfloat16"),
        Fault("gelu-erf", "gelu", P.rewritten("nystromformer.encoder.layer.0.intermediate.intermediate_act_fn", lambda self, x: F.gelu(x)), "nystromformer.encoder.layer.0.intermediate.intermediate_act_fn", ("forward",), "GELU by erf for tanh", also=("nystromformer.encoder.layer.0.intermediate",)),
        Fault("norm-eps", "eps", P.setting("nystromformer.encoder.layer.1.output.LayerNorm", eps=1e-12), "nystromformer.encoder.layer.1.output.LayerNorm", ("forward",), "LayerNorm eps 1e-12 for 1e-5", also=("nystromformer.encoder.layer.1.output",)),
        Fault("all-tokens", "ignore-index", P.each_batch(lambda b: {**b, "labels": b["tokens"]}), "", ("loss",), "all tokens count in the loss"),
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
        Fault("no-clip-qkv", "constant", P.setting("transformer.blocks.1.norm_attn_norm.attn", clip_qkv=1e9), "transformer.blocks.1.norm_attn_norm.attn", ("forward",), "q, k and v are not clipped"),
        Fault("l2-normalised", "formula", P.setting("transformer.blocks.0.ffn", moe_normalize_expert_weights=2), "transformer.blocks.0.ffn", ("forward",), "the experts' weights are normalised by their 2-norm", dtype="bfloat16"),
        Fault("up-gate", "wrong-split", P.rewritten("transformer.blocks.1.ffn.experts.mlp", lambda self, x, w1, v1, w2: (x.matmul(w1.T) * self.activation_fn(x.matmul(v1.T))).matmul(w2)), "transformer.blocks.1.ffn.experts.mlp", ("forward",), "gate and up are swapped"),
        Fault("qkv-order", "permuted-weight", P.values("transformer.blocks.0.norm_attn_norm.attn.Wqkv", "weight", lambda w: torch.cat([w[:32], w[48:], w[32:48]])), "transformer.blocks.0.norm_attn_norm.attn.Wqkv", ("init",), "q, v, k in the packed weight"),
        Fault("clip-twice", "clip", P.after_backward(lambda t, n: nn.utils.clip_grad_norm_([p for m, p in t.model.named_parameters() if "experts" in m], 0.1)), "", ("update",), "the experts' gradients are clipped for themselves first"),
    ),
    (
        Clean("sdpa", "sdpa for eager attention", hub.attention("sdpa")),
        Clean("sdpa-bfloat16", "sdpa for eager attention, bfloat16", hub.attention("sdpa"), dtype="bfloat16"),
        Clean("checkpointed", "activation checkpointing", hub.checkpointed, steps=2),
    ),
)


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
        Fault("softmax-before-top", "order-of-operations", P.rewritten("model.layers.0.mlp.router", _softmax_first), "model.layers.0.mlp.router", ("forward",), "softmax before the choice, not after it"),
        Fault("rotary-pairs", "rotary", P.inside("model.layers.1.self_attention", *hub.rotary_of("jetmoe"), _half_rotation), "model.layers.1.self_attention", ("forward",), "neighbours are rotated with the halves' angles", dtype="autocast"),
        Fault("bias-missing", "missing-bias", P.values("model.layers.1.mlp", "bias", torch.zeros_like), "model.layers.1.mlp", ("init",), "the bias behind the experts is not loaded"),
        Fault("gates-detached", "detach", P.around("model.layers.1.mlp.router", lambda f, x: tuple(v.detach() if isinstance(v, torch.Tensor) and i == 2 else v for i, v in enumerate(f(x)))), "model.layers.1.mlp.router", ("backward", "gradient"), "the gates are detached", also=("model.layers.1.mlp.router.layer", "model.layers.1.mlp")),
        Fault("momentum-dtype", "optimizer-state", P.after_step(lambda t, n: [s["momentum_buffer"].copy_(s["momentum_buffer"].bfloat16()) for s in t.optimizer.state.values()]), "", ("update",), "momentum is kept in bfloat16 precision", steps=2),
    ),
    (
        Clean("sdpa", "sdpa for eager attention", hub.attention("sdpa")),
        Clean("fused-sgd", "SGD's fused kernel", P.optimizer(lambda m: torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4, fused=True)), steps=3),
    ),
)


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
        Fault("gate-of-step-before", "off-by-one", P.method("model.layers.0.temporal_block.rg_lru", "_rnn_scan", _scan_without_reset), "model.layers.0.temporal_block.rg_lru", ("forward",), "the state decays with the gate of the step before"),
        Fault("norm-without-one", "formula", P.rewritten("model.layers.1.channel_pre_norm", lambda self, x: self._norm(x.float()).type_as(x) * self.weight), "model.layers.1.channel_pre_norm", ("forward",), "the norm's weight is not 1 + w", dtype="bfloat16"),
        Fault("half-rotary", "rotary", P.inside("model.layers.2.temporal_block", *hub.rotary_of("recurrent_gemma"), lambda f: lambda q, k, cos, sin, **o: f(q, k, cos, -sin, **o)), "model.layers.2.temporal_block", ("forward",), "queries and keys are rotated backwards"),
        Fault("window", "constant", lambda t: _window(t), "model.layers.2.temporal_block", ("forward",), "the window is 6 for 8", also=("", "model")),
        Fault("embeddings-untied", "tied", lambda t: setattr(t.model.lm_head, "weight", nn.Parameter(t.model.lm_head.weight.detach().clone())), "", ("gradient", "init", "backward", "update"), "the head's weight is a copy", also=("lm_head", "model.embed_tokens")),
    ),
    (
        Clean("scan-stacked", "the recurrence without writing in place", P.method("model.layers.1.temporal_block.rg_lru", "_rnn_scan", lambda self, *a, **k: _stacked_scan(*a, **k))),
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


def minimax() -> Training:
    return hub.causal(
        "minimax",
        lambda T: T.MiniMaxForCausalLM(T.MiniMaxConfig(**hub.SMALL | {"head_dim": 8, "num_local_experts": 3, "num_experts_per_tok": 2, "block_size": 4, "layer_types": ["linear_attention", "full_attention"]})),
    )


MINIMAX = Model(
    "minimax",
    minimax,
    "lightning attention, softmax attention, experts",
    (
        Fault("slope", "buffer", P.values("model.layers.0.self_attn", "key_decay", lambda d: d.flip(1)), "model.layers.0.self_attn", ("init",), "the keys' decays within a block are reversed"),
        Fault("gate-missing", "residual", P.around("model.layers.0.self_attn.output_gate", lambda f, x: torch.zeros_like(f(x))), "model.layers.0.self_attn.output_gate", ("forward",), "the output gate is off: sigmoid of zero", dtype="autocast"),
        Fault("alpha", "scale", lambda t: setattr(t.at("model.layers.1"), "mlp_alpha_factor", 1.1), "model.layers.1", ("forward",), "the residual's factor before the experts is 1.1 for 1"),
        Fault("head-counts", "heads", P.setting("model.layers.1.self_attn", num_key_value_groups=2, scaling=32**-0.5), "model.layers.1.self_attn", ("forward",), "scores are scaled by the hidden size"),
        Fault("router-noise", "nan", P.around("model.layers.1.mlp.gate", lambda f, *a, **k: tuple(v.masked_fill(v == v.max(), torch.nan) if i == 1 else v for i, v in enumerate(f(*a, **k)))), "model.layers.1.mlp.gate", ("forward",), "a routing weight is NaN"),
    ),
    (
        Clean("sdpa", "sdpa for eager attention", hub.attention("sdpa")),
        Clean("norm-fused", "RMS norm by torch's function", P.rewritten("model.layers.0.post_attention_layernorm", lambda self, x: F.rms_norm(x, x.shape[-1:], self.weight, self.variance_epsilon)), steps=2),
    ),
)


def xlstm() -> Training:
    return hub.causal(
        "xlstm",
        lambda T: T.xLSTMForCausalLM(T.xLSTMConfig(vocab_size=50, hidden_size=32, embedding_dim=32, num_hidden_layers=2, num_blocks=2, num_heads=4, chunk_size=8, pad_token_id=0, bos_token_id=1, eos_token_id=2)),
        shape=(2, 8),
    )


XLSTM = Model(
    "xlstm",
    xlstm,
    "matrix LSTM with exponential gates",
    (
        Fault("gates-swapped", "wrong-split", P.around("backbone.blocks.1.mlstm_layer.mlstm_backend", lambda f, **k: f(**{**k, "igate": k["fgate"], "fgate": k["igate"]})), "backbone.blocks.1.mlstm_layer.mlstm_backend", ("forward",), "input and forget gates are swapped", also=("backbone.blocks.1.mlstm_layer",)),
        Fault("cap", "constant", lambda t: _cap(t), "backbone.blocks.0.mlstm_layer", ("forward",), "gates are capped at 5 for 15"),
        Fault("norm-over-all", "norm-setting", P.rewritten("backbone.blocks.0.mlstm_layer.multihead_norm", lambda self, x: F.layer_norm(x.flatten(-2), (x.shape[-1] * x.shape[-2],), self.weight.flatten(), None, self.eps).view(*x.shape[:2], -1)), "backbone.blocks.0.mlstm_layer.multihead_norm", ("forward",), "the norm is over all heads"),
        Fault("up-gate", "wrong-split", P.rewritten("backbone.blocks.1.ffn", lambda self, x: self.proj_down(self.act_fn(self.proj_up(x)) * self.proj_up_gate(x))), "backbone.blocks.1.ffn", ("forward",), "the activation is on the other product"),
        Fault("forget-bias", "init", P.values("backbone.blocks.1.mlstm_layer.fgate_preact", "bias", lambda b: b + 3), "backbone.blocks.1.mlstm_layer.fgate_preact", ("init",), "the forget gates' bias starts 3 higher"),
    ),
    (
        Clean("checkpointed", "activation checkpointing", hub.checkpointed),
        Clean("packed-up", "the two up projections as one product", P.rewritten("backbone.blocks.0.ffn", lambda self, x: _packed_up(self, x)), steps=2),
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
        Fault("no-norm-is-norm", "norm-setting", P.rewritten("mobilebert.encoder.layer.0.output.LayerNorm", lambda self, x: F.layer_norm(x, x.shape[-1:], self.weight, self.bias, 1e-12)), "mobilebert.encoder.layer.0.output.LayerNorm", ("forward",), "LayerNorm for NoNorm", also=("mobilebert.encoder.layer.0.output",)),
        Fault("value-from-bottleneck", "wrong-input", P.around("mobilebert.encoder.layer.1.attention", lambda f, q, k, v, layer_input, *a, **o: f(q, k, v.flip(1), layer_input, *a, **o)), "mobilebert.encoder.layer.1.attention", ("forward",), "values come from the reversed sequence"),
        Fault("ffn-residual", "residual", P.rewritten("mobilebert.encoder.layer.1.ffn.0.output", lambda self, h, r: self.LayerNorm(self.dense(h))), "mobilebert.encoder.layer.1.ffn.0.output", ("forward",), "no residual in the stacked feed-forward", dtype="bfloat16"),
        Fault("trigram", "off-by-one", P.rewritten("mobilebert.embeddings.embedding_transformation", lambda self, x: F.linear(torch.cat([x[..., 32:], x[..., 16:32], x[..., :16]], -1), self.weight, self.bias)), "mobilebert.embeddings.embedding_transformation", ("forward",), "the neighbours before and behind are swapped", also=("mobilebert.embeddings",)),
        Fault("eps-of-head", "eps", P.setting("cls.predictions.transform.LayerNorm", eps=1e-5), "cls.predictions.transform.LayerNorm", ("forward",), "LayerNorm eps 1e-5 for 1e-12", also=("cls.predictions.transform",)),
    ),
    (
        Clean("sdpa", "sdpa for eager attention", hub.attention("sdpa"), dtype="bfloat16"),
        Clean("bool-mask", "a boolean mask for one of integers", P.each_batch(lambda b: {**b, "mask": b["mask"].bool()})),
        Clean("autocast-threads", "on two threads, autocast", lambda t: setattr(t, "context", lambda: threads(2)), dtype="autocast"),
    ),
)

MODELS = (NYSTROMFORMER, DBRX, JETMOE, RECURRENT, MINIMAX, XLSTM, MOBILEBERT)
