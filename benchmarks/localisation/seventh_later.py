"""The fifth held-out set's pairs from the loss on, and at later steps."""

from __future__ import annotations

from benchmarks.localisation.pairs import Pair
from benchmarks.localisation.seventh_making import AC, BF, HALF, ported

_LOSS_AND_BACKWARD: tuple[Pair, ...] = (
    # loss
    ported("megatron-qwen2", "label_shift"),
    ported("vllm-llama", "labels_twice", "target", **BF),
    ported("flat-bert", "ignore_index", "target"),
    ported("flat-bert", "padding_in_mean", **AC),
    ported("own-mixtral", "no_auxiliary"),
    ported("own-mixtral", "auxiliary_factor", size=0.10001),
    ported("nano-gpt2", "narrow_logits"),
    ported("flat-bert", "micro_mean", micros=2, **BF),
    ported("own-gemma2", "z_loss", size=1e-4),
    ported("own-vit", "smoothing", size=0.1, **HALF),
    ported("own-qwen3", "loss_scaled", size=3e-6),
    ported("megatron-qwen2", "loss_backward", size=3.0, micros=4),
    # backward
    ported("megatron-qwen2", "softmax_detached", "decoder.layers.1.self_attention.core_attention"),
    ported("own-vit", "softmax_detached", "blocks.0.attn", **BF),
    ported("own-mixtral", "softmax_detached", "layers.1.moe"),
    ported("vllm-llama", "detached", "model.layers.1.mlp.down_proj"),
    ported("meta-llama", "half_passed", "layers.1.attention.wk", **HALF),
    ported("own-qwen3", "unweighted", "blocks.0.ln2"),
    ported("nano-gpt2", "derivative_gelu", "transformer.h.1.mlp.gelu"),
    ported("flat-bert", "gradient", "layers.1.ff1", size=1e-5),
    ported("own-gemma2", "output_gradient", "layers.1.mlp", size=0.05, **AC),
    ported("nano-gpt2", "residual_detached", "transformer.h.2", **BF),
)  # fmt: skip

_GRADIENTS_AND_UPDATES: tuple[Pair, ...] = (
    # gradients
    ported("own-qwen3", "head_copied", answer="model.embed_tokens", also=("lm_head", "")),
    ported("flat-bert", "head_copied", answer="bert.embeddings.word_embeddings", also=("cls.predictions.decoder", ""), **BF),
    ported("megatron-qwen2", "half_of_batch", "decoder.layers.0.self_attention.linear_qkv"),
    ported("vllm-llama", "keys_lost", "model.layers.0.self_attn.qkv_proj"),
    ported("own-mixtral", "expert_lost", "layers.1.moe.experts"),
    ported("meta-llama", "frozen", "layers.1.ffn_norm", **AC),
    ported("nano-gpt2", "gradient_transposed", "transformer.h.1.attn.c_proj"),
    ported("own-gemma2", "weight_gradient", "layers.2.self_attn.o_proj", size=1e-5),
    ported("own-vit", "bias_gradient", "blocks.1.attn.qkv", **HALF),
    ported("vllm-llama", "last_micro", micros=2),
    ported("meta-llama", "micro_missed", "layers.0.attention.wv", micros=2, dtype="bf16"),
    # between backward and the optimizer
    ported("megatron-qwen2", "clip_local", clip=0.5),
    ported("own-mixtral", "clip_groups", clip=0.3, dtype="bf16"),
    ported("vllm-llama", "clip_each", clip=0.3),
    ported("own-qwen3", "averaged_again", optimizer="sgd"),
    ported("flat-bert", "still_scaled", loss_scale=128.0, optimizer="sgd"),
    # optimizer
    ported("megatron-qwen2", "decay_all"),
    ported("meta-llama", "no_decay"),
    ported("vllm-llama", "adam_eps", size=1e-5),
    ported("nano-gpt2", "beta2", size=0.99, steps=2),
    ported("own-gemma2", "uncorrected", **AC),
    ported("own-vit", "coupled"),
    ported("own-qwen3", "lr", "blocks.1.down.weight", answer="*layers.1.mlp.down_proj.weight", size=0.05),
    ported("own-mixtral", "left_out", "layers.0.moe.router"),
    ported("flat-bert", "groups_swapped", **AC),
    ported("vllm-llama", "sgd_momentum", size=0.8, seen=1, **HALF),
    # later steps
    ported("megatron-qwen2", "schedule", size=0.5, step=2),
    ported("own-vit", "step_skipped", step=1, dtype="bf16"),
    ported("own-qwen3", "variance_lost", step=2),
    ported("own-mixtral", "next_expert", "layers.2.moe", step=1),
    ported("meta-llama", "scaled", "layers.1.attention.wo", size=1e-3, step=2),
    ported("own-gemma2", "stale", seen=1),
    ported("nano-gpt2", "dropout", "transformer.h.1.mlp.dropout", step=1, dtype="autocast"),
    ported("flat-bert", "count_lost", step=1),
)  # fmt: skip

SEVENTH_LATER: tuple[Pair, ...] = (*_LOSS_AND_BACKWARD, *_GRADIENTS_AND_UPDATES)
