"""The held-out third: models, faults and sizes that were not there before. Written before any answer was looked at, scored once."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.localisation.pairs.making import clean, faulty
from benchmarks.localisation.pairs.pair import Pair

_L, _N, _O, _D, _C = (
    "model.layers", "gpt_neox.layers", "model.decoder.layers", "distilbert.transformer.layer", "convnext.encoder.stages",
)  # fmt: skip

_PAIRS: tuple[Pair, ...] = (
    # init weights
    faulty("qwen3", "weight", f"{_L}.2.self_attn.q_norm", size=2e-3),
    faulty("neox", "rows", f"{_N}.0.attention.query_key_value"),
    faulty("convnext", "element", f"{_C}.1.layers.1.pwconv1", size=0.3),
    faulty("bart", "bias_shift", "model.encoder.layers.1.fc2", size=5e-3),
    faulty("gru", "weight", "second", size=1e-3, dtype="fp16", optimizer="sgd"),
    # inputs
    faulty("mixer", "scaled_input", "x", size=1e-4),
    faulty("gemma2", "token", "input_ids", dtype="bf16"),
    # forward, fp32
    faulty("qwen3", "eps", f"{_L}.0.self_attn.k_norm", size=1e-4),
    faulty("gemma2", "eps", f"{_L}.1.pre_feedforward_layernorm", size=1e-4),
    faulty("gemma2", "scaling", f"{_L}.2.self_attn", size=1e-3),
    faulty("opt", "one_row", f"{_O}.1.fc1", size=1e-3),
    faulty("opt", "gelu", f"{_O}.0.activation_fn"),
    faulty("neox", "noisy", f"{_N}.1.mlp.dense_4h_to_h", size=1e-4),
    faulty("neox", "shifted", f"{_N}.2.attention.dense", size=1e-4),
    faulty("bart", "capped", "model.decoder.layers.0.encoder_attn.out_proj", size=1.0),
    faulty("bart", "eps", "model.decoder.layers.1.final_layer_norm", size=1e-4),
    faulty("distilbert", "gelu_tanh", f"{_D}.2.ffn.activation"),
    faulty("distilbert", "positions", "distilbert.embeddings"),
    faulty("convnext", "scaled", f"{_C}.0.layers.1.dwconv", size=3e-5),
    faulty("convnext", "quick_gelu", f"{_C}.1.layers.0.act"),
    faulty("gru", "noisy", "first", size=1e-4),
    faulty("mixer", "relu", "layers.1.channels.1"),
    faulty("mixer", "one_row", "layers.0.tokens.2", size=1e-2),
    # forward, 16 bits
    faulty("qwen3", "rope_shift", f"{_L}.2.self_attn", dtype="bf16"),
    faulty("opt", "noisy", f"{_O}.2.self_attn.v_proj", size=0.3, dtype="bf16"),
    faulty("gemma2", "relu", f"{_L}.0.mlp.act_fn", dtype="autocast"),
    faulty("distilbert", "capped", f"{_D}.1.ffn.lin2", size=0.7, dtype="fp16", optimizer="sgd"),
    faulty("neox", "scaled", f"{_N}.1.input_layernorm", size=0.1, dtype="fp16", optimizer="sgd"),
    faulty("mixer", "shifted", "layers.2.channels.2", size=0.3, dtype="bf16"),
    faulty("convnext", "one_row", f"{_C}.1.layers.0.pwconv2", size=2.0, dtype="autocast"),
    # loss
    faulty("opt", "smoothing", size=0.02),
    faulty("distilbert", "loss_scaled", size=3e-4),
    faulty("gru", "sum", dtype="bf16"),
    # backward
    faulty("qwen3", "gradient", f"{_L}.1.mlp.up_proj", size=1e-3),
    faulty("bart", "output_gradient", "model.encoder.layers.0.self_attn.k_proj", size=1e-2),
    faulty("convnext", "derivative_tanh", f"{_C}.1.layers.1.act"),
    faulty("mixer", "detached", "layers.1.tokens.0"),
    faulty("neox", "clamped", f"{_N}.0.mlp.dense_h_to_4h", size=0.5),
    faulty("opt", "gradient", f"{_O}.1.fc2", size=1.0, dtype="bf16"),
    # gradients
    faulty("gemma2", "half_gradient", f"{_L}.1.mlp.gate_proj"),
    faulty("distilbert", "half_gradient", f"{_D}.0.attention.q_lin"),
    faulty("convnext", "frozen", f"{_C}.0.layers.0.pwconv1"),
    faulty("gru", "gradient_hook", "gate", size=1e-2),
    faulty("opt", "last_micro", micros=2, dtype="autocast"),
    faulty("bart", "weight_gradient", "model.decoder.layers.1.fc1", size=1.0, dtype="fp16", optimizer="sgd"),
    # optimizer
    faulty("qwen3", "uncorrected", dtype="autocast"),
    faulty("neox", "lr", "*dense.weight", size=0.2),
    faulty("mixer", "clip_value", size=5e-3),
    faulty("gemma2", "adam_eps", size=1e-3),
    faulty("convnext", "left_out", f"{_C}.1.layers.0.dwconv"),
    faulty("distilbert", "nesterov", optimizer="sgd", steps=2),
    # later steps
    faulty("bart", "schedule", step=1, size=2.0, steps=2),
    faulty("gru", "noisy", "head", size=1e-2, step=2, steps=3),
    # clean
    clean("qwen3", "sdpa against eager attention", {"attention": "eager"}, steps=3, clip=0.3),
    clean("qwen3", "sums in four parts", {"split": 4}, dtype="bf16", steps=3),
    clean("gemma2", "sums in two parts", {"split": 2}, dtype="autocast", steps=3),
    clean("opt", "sdpa against eager attention", {"attention": "eager"}, dtype="fp16", optimizer="sgd", steps=3),
    clean("opt", "fp64 inside", {"doubled": True}, steps=3),
    clean("neox", "sdpa against eager attention", {"attention": "eager"}, dtype="bf16", steps=3),
    clean("neox", "two micro-batches against four", {"micros": 4}, steps=2, micros=2),
    clean("bart", "sdpa against eager attention", {"attention": "eager"}, steps=3),
    clean("bart", "sums in two parts", {"split": 2}, dtype="autocast", steps=2),
    clean("distilbert", "fp64 inside", {"doubled": True}, dtype="bf16", steps=3),
    clean("convnext", "channels last", {"channels_last": True}, steps=3),
    clean("convnext", "fp64 inside", {"doubled": True}, dtype="fp16", optimizer="sgd", steps=2),
    clean("gru", "sums in two parts", {"split": 2}, steps=4),
    clean("mixer", "fp64 inside", {"doubled": True}, dtype="bf16", steps=3),
    clean("mixer", "two threads", {"threads": 2}, optimizer="sgd", steps=3),
)  # fmt: skip

THIRD: tuple[Pair, ...] = tuple(replace(pair, held_out=True) for pair in _PAIRS)
