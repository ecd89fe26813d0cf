"""The fifth held-out set: ports, transformers against the same model as other code bases cut it; init, inputs and forward.

Written without looking at the judging code or at an answer about any pair. Sizes were chosen by what the brute force
(`brute_force`) prints alone: every fault is at least 3 times the pair's own noise. The later phases are in
`seventh_later`, the clean pairs in `seventh_clean`.
"""

from __future__ import annotations

from dataclasses import replace

from benchmarks.localisation.pairs.pair import Pair
from benchmarks.localisation.seventh_clean import SEVENTH_CLEAN
from benchmarks.localisation.seventh_later import SEVENTH_LATER
from benchmarks.localisation.seventh_making import AC, BF, HALF, ported

_BIASED = "encoder.block.0.layer.0.SelfAttention"
"""reads the table of relative positions for its whole stack"""

_WEIGHTS_AND_INPUTS: tuple[Pair, ...] = (
    # init weights
    ported("megatron-qwen2", "ungrouped", "decoder.layers.1.self_attention.linear_qkv"),
    ported("megatron-qwen2", "halves", "decoder.layers.0.mlp.linear_fc1", **BF),
    ported("megatron-qwen2", "transposed", "decoder.layers.2.self_attention.linear_proj", **AC),
    ported("vllm-llama", "kv_swapped", "model.layers.2.self_attn.qkv_proj"),
    ported("vllm-llama", "not_loaded", "model.layers.1.mlp.gate_up_proj", **HALF),
    ported("meta-llama", "not_permuted", "layers.1.attention.wq"),
    ported("meta-llama", "next_layer", "layers.0.feed_forward.w3", **BF),
    ported("own-qwen3", "weight", "blocks.1.attn.norm_k", size=1e-5),
    ported("own-qwen3", "halves", "blocks.2.up_gate", **AC),
    ported("nano-gpt2", "key_first", "transformer.h.1.attn.c_attn"),
    ported("nano-gpt2", "transposed", "transformer.h.0.attn.c_proj", **BF),
    ported("nano-gpt2", "bias", "transformer.h.2.mlp.c_fc"),
    ported("own-mixtral", "experts_moved", "layers.1.moe.experts", **BF),
    ported("own-mixtral", "rows", "layers.0.moe.router", **BF),
    ported("own-gemma2", "norm_offset", "layers.1.pre_feedforward_layernorm"),
    ported("flat-bert", "value_first", "layers.0.qkv"),
    ported("flat-bert", "saved_narrow", "layers.1.ff2"),
    ported("own-vit", "patch_columns", "patch.proj"),
    ported("own-t5", "halves", "dec.1.cross.kv", **HALF),
    ported("own-t5", "row_lost", "enc_positions.table", **BF),
    ported("own-whisper", "kernel_flipped", "encoder.conv1"),
    ported("own-whisper", "next_layer", "encoder.blocks.0.mlp.0", **HALF),
    ported("own-mamba", "kernel_flipped", "stack.1.ssm.conv", **AC),
    ported("own-mamba", "bias_shift", "stack.0.ssm.steps", size=1e-5),
    ported("own-convnext", "patch_columns", "stem", **BF),
    ported("own-convnext", "element", "stage2.0.pwconv1", size=1e-4),
    ported("own-vit", "element", "blocks.1.attn.proj", size=1e-4),
    # inputs
    ported("megatron-qwen2", "token", "input_ids"),
    ported("meta-llama", "repeated_half", "tokens", **AC),
    ported("flat-bert", "padding_mask", "attention_mask"),
    ported("flat-bert", "padding_side", "attention_mask", **BF),
    ported("own-vit", "other_statistics", "pixels", size=1e-5),
    ported("own-vit", "bgr", "pixels", **HALF),
    ported("own-t5", "padding_mask", "attention_mask", **AC),
    ported("own-whisper", "unshifted", "tokens", **BF),
    ported("own-whisper", "narrow_input", "mel"),
    ported("own-convnext", "sides", "images", **BF),
)  # fmt: skip

_FORWARD: tuple[Pair, ...] = (
    # attention
    ported("megatron-qwen2", "core_in_turn", "decoder.layers.1.self_attention.core_attention"),
    ported("megatron-qwen2", "core_scale", "decoder.layers.0.self_attention.core_attention", size=1e-5),
    ported("megatron-qwen2", "softmax_narrow", "decoder.layers.2.self_attention.core_attention"),
    ported("megatron-qwen2", "dropout", "decoder.layers.1.self_attention.core_attention.attention_dropout", **BF),
    ported("vllm-llama", "sdpa_ahead", "model.layers.0.self_attn"),
    ported("vllm-llama", "sdpa_in_turn", "model.layers.1.self_attn", **BF),
    ported("meta-llama", "sdpa_scale", "layers.2.attention", size=0.2, **AC),
    ported("own-qwen3", "sdpa_in_turn", "blocks.0.attn", **HALF),
    ported("nano-gpt2", "sdpa_unmasked", "transformer.h.2.attn", **BF),
    ported("nano-gpt2", "sdpa_dropout", "transformer.h.0.attn", **AC),
    ported("own-mixtral", "core_ahead", "layers.2.attention.core", **HALF),
    ported("own-gemma2", "core_uncapped", "layers.0.self_attn.core"),
    ported("own-gemma2", "core_window", "layers.1.self_attn.core", **BF),
    ported("flat-bert", "sdpa_unmasked", "layers.1", **AC),
    ported("flat-bert", "sdpa_scale", "layers.2", size=0.5, **BF),
    ported("own-vit", "softmax_narrow", "blocks.1.attn"),
    ported("own-t5", "core_scale", "enc.1.attn", size=-0.65, **BF),
    ported("own-t5", "sdpa_unmasked", "dec.0.cross", **BF),
    ported("own-t5", "softmax_narrow", "dec.1.attn"),
    ported("own-whisper", "causality", "encoder.blocks.1.attn", **BF),
    ported("own-whisper", "causality", "decoder.blocks.0.attn", **AC),
    ported("own-whisper", "core_scale", "decoder.blocks.1.cross_attn", size=1e-5),
    # positions
    ported("megatron-qwen2", "turns_neighbours", "decoder.layers.0.self_attention", **HALF),
    ported("vllm-llama", "base", "model.layers.2.self_attn.rotary_emb"),
    ported("meta-llama", "complex_back", "layers.1.attention", **BF),
    ported("meta-llama", "complex_late", "layers.0.attention"),
    ported("own-qwen3", "base", "rope", size=9.9e4),
    ported("own-qwen3", "turns_partly", "blocks.2.attn", **AC),
    ported("own-mixtral", "turns_back", "layers.1.attention"),
    ported("own-gemma2", "turns_narrow", "layers.2.self_attn"),
    ported("nano-gpt2", "first_position", answer="transformer", also=("", "transformer.wpe")),
    ported(
        "own-t5", "far", "enc_positions", answer=_BIASED, also=(f"{_BIASED}.relative_attention_bias", ""),
    ),
    ported(
        "own-t5", "one_way_bias", "enc_positions", answer=_BIASED, also=(f"{_BIASED}.relative_attention_bias", ""), **HALF
    ),
    ported("own-whisper", "first_position", "decoder", answer="model.decoder", also=("", "model.decoder.embed_positions")),
    # recurrence
    ported("own-mamba", "scan_anew", "stack.1.ssm.scan"),
    ported("own-mamba", "scan_decay", "stack.2.ssm.scan", size=1e-4),
    ported("own-mamba", "scan_decay", "stack.0.ssm.scan", size=1.5, **BF),
    ported("own-mamba", "softplus_as_relu", "stack.0.ssm", **HALF),
    ported("own-mamba", "conv_ahead", "stack.1.ssm.conv", also=("backbone.layers.1.mixer",), **BF),
    # norms, residuals, activations
    ported("megatron-qwen2", "eps", "decoder.layers.2.pre_mlp_layernorm", size=1e-5),
    ported("vllm-llama", "eps", "model.layers.1.post_attention_layernorm", size=3e-6),
    ported("meta-llama", "other_norm", "layers.2.ffn_norm", **HALF),
    ported("own-qwen3", "identity", "blocks.1.attn.norm_q", **AC),
    ported("own-gemma2", "offset_zero", "layers.2.post_attention_layernorm", **AC),
    ported("flat-bert", "eps", "layers.0.norm1", size=1e-5),
    ported("flat-bert", "narrow_statistics", "layers.1.norm2"),
    ported("megatron-qwen2", "residual_after_norm", "decoder.layers.1"),
    ported("nano-gpt2", "residual_after_norm", "transformer.h.1", **HALF),
    ported("own-vit", "residual", "blocks.0", size=0.05, **BF),
    ported("vllm-llama", "silu_as_gelu", "model.layers.0.mlp"),
    ported("meta-llama", "silu_as_gelu", "layers.1.feed_forward", **BF),
    ported("flat-bert", "gelu_as_tanh", "layers.0"),
    ported("own-gemma2", "tanh_as_gelu", "layers.0.mlp"),
    ported("own-vit", "quick_gelu", "blocks.2.act", **AC),
    ported("nano-gpt2", "gelu", "transformer.h.0.mlp.gelu"),
    ported("own-t5", "eps", "dec.1.norm2", size=1e-5),
    ported("own-t5", "gelu", "enc.0.relu", **BF),
    ported("own-whisper", "gelu_tanh", "encoder.blocks.0.mlp.1"),
    ported("own-mamba", "eps", "stack.2.ln", size=2e-5),
    ported("own-mamba", "silu_as_gelu", "stack.1.ssm", **AC),
    ported("own-convnext", "eps", "stage2.1.norm", size=1e-5),
    ported("own-convnext", "gelu_tanh", "stage1.0.act"),
    ported("own-convnext", "circular", "stage1.1.dwconv", **AC),
    ported("own-convnext", "layer_skipped", "stage2.0", also=("convnext.encoder.stages.1.layers.0.*",), **HALF),
    # experts, factors, sums
    ported("own-mixtral", "unnormalised", "layers.0.moe", also=("model.layers.0.mlp.gate",), **AC),
    ported("own-mixtral", "sigmoid_scores", "layers.2.moe", also=("model.layers.2.mlp.gate",), **BF),
    ported("own-mixtral", "one_expert", "layers.1.moe", also=("model.layers.1.mlp.gate",), **AC),
    ported("own-mixtral", "next_expert", "layers.0.moe", also=("model.layers.0.mlp.gate",), **HALF),
    ported("own-gemma2", "factor", also=("model.embed_tokens",), size=-0.8, **BF),
    ported("own-gemma2", "logit_cap"),
    ported("own-t5", "factor", size=6.0),
    ported("megatron-qwen2", "no_bias", "decoder.layers.0.self_attention.linear_qkv", **AC),
    ported("nano-gpt2", "bias_twice", "transformer.h.1.mlp.c_proj", **HALF),
    ported("megatron-qwen2", "first_part", "decoder.layers.1.mlp.linear_fc2", **BF),
    ported("own-vit", "precision", "blocks.0.fc2"),
    ported("own-qwen3", "scaled", "blocks.1.down", size=2e-6),
    ported("vllm-llama", "scaled", "model.layers.2.self_attn.o_proj", size=3e-6),
    ported("meta-llama", "scaled", "layers.0.feed_forward.w2", size=0.03, **BF),
    ported("own-whisper", "scaled", "decoder.blocks.0.cross_attn.out", size=3e-6),
    ported("own-convnext", "scaled", "stage1.0.pwconv2", size=0.02, **BF),
    ported("own-mamba", "shifted", "stack.1.ssm.out", size=1e-5),
)  # fmt: skip

SEVENTH: tuple[Pair, ...] = tuple(
    replace(pair, held_out=True) for pair in (*_WEIGHTS_AND_INPUTS, *_FORWARD, *SEVENTH_LATER, *SEVENTH_CLEAN)
)
