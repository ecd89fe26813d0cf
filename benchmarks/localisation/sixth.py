"""The fourth held-out set: models and kinds of faults that were in no set before; init, inputs and forward.

Written without looking at the judging code or at an answer about any of them. Sizes were chosen by what the brute force
(`brute_force`) prints alone: every fault is at least 3 times the pair's own noise, about a quarter less than 30 times. The
later phases are in `sixth_later`, the clean pairs in `sixth_clean`.
"""

from __future__ import annotations

from dataclasses import replace

from benchmarks.localisation.making import faulty
from benchmarks.localisation.pairs import Pair
from benchmarks.localisation.sixth_clean import SIXTH_CLEAN
from benchmarks.localisation.sixth_later import SIXTH_LATER

_M, _T, _S, _G, _E = "model.layers", "transformer.h", "backbone.layers", "biogpt.layers", "bert.encoder.layer"
_N, _K, _Y, _C = "model.encoder.layers", "model.decoder.layers", "layoutlm.encoder.layer", "convbert.encoder.layer"
_R, _F, _X, _V = (
    "resnet.encoder.stages",
    "efficientnet.encoder.blocks",
    "convnextv2.encoder.stages",
    "cvt.encoder.stages",
)
_O, _H, _I, _J = "focalnet.encoder.stages", "hiera.encoder.stages", "vision_model.encoder.layers", "ijepa.layers"
_W, _U = "wavlm.encoder.layers", "unispeech.encoder.layers"
_BF, _AC, _HALF = {"dtype": "bf16"}, {"dtype": "autocast"}, {"dtype": "fp16", "optimizer": "sgd"}
_PACKED, _LISTED = {"port": "olmo-packed"}, {"port": "points-listed"}
_KEYS = "attention.attention.convolution_projection_key.convolution_projection.normalization"

_WEIGHTS_AND_INPUTS: tuple[Pair, ...] = (
    # init weights
    faulty("olmo", "columns_exchanged", f"{_M}.1.self_attn.o_proj"),
    faulty("blenderbot", "columns_exchanged", f"{_K}.0.fc2", **_BF),
    faulty("biogpt", "width_first", f"{_G}.1.self_attn.q_proj"),
    faulty("siglip", "width_first", f"{_I}.0.self_attn.k_proj", **_AC),
    faulty("helium", "saved_narrow", f"{_M}.2.mlp.gate_proj"),
    faulty("ijepa", "saved_narrow", f"{_J}.1.mlp.fc1"),
    faulty("exaone", "next_layer", f"{_M}.0.mlp.down_proj"),
    faulty("megatron-bert", "next_layer", f"{_E}.1.attention.self.value", **_BF),
    faulty("granitemoe", "halves_in_turns", f"{_M}.1.block_sparse_moe.experts"),
    faulty("phimoe", "halves_in_turns", f"{_M}.2.mlp.experts", **_HALF),
    faulty("bigbird", "not_loaded", "cls.predictions.transform.dense"),
    faulty("wavlm", "not_loaded", f"{_W}.0.attention.gru_rel_pos_linear", **_AC),
    faulty("efficientnet", "in_bytes", f"{_F}.1.projection.project_conv"),
    faulty("m2m", "in_bytes", f"{_N}.0.fc1"),
    faulty("gemma", "norm_offset", f"{_M}.1.input_layernorm"),
    faulty("bigcode", "rows", f"{_T}.1.attn.c_attn"),
    faulty("openai-gpt", "reshaped", f"{_T}.1.mlp.c_fc", **_HALF),
    faulty("mamba2", "weight", f"{_S}.1.mixer.norm", size=1e-5),
    faulty("lfm2", "kernel_flipped", f"{_M}.0.conv.conv"),
    faulty("hiera", "value_first", f"{_H}.0.layers.0.attn.qkv"),
    faulty("cvt", "statistics_swapped", f"{_V}.0.layers.0.{_KEYS}"),
    faulty("retriever", "element", "passages.layer.linear1", size=1e-4),
    faulty("diffllama", "weight", f"{_M}.1.self_attn.v_proj", size=0.02, **_BF),
    faulty("points", "bias_shift", "bn1", size=1e-6),
    faulty("codebook", "row_lost", "nearest", size=3),
    faulty("actor", "transposed", "actor.0"),
    # inputs
    faulty("layoutlm", "padding_side", "attention_mask"),
    faulty("funnel", "padding_side", "attention_mask", **_BF),
    faulty("focalnet", "repeated_half", "pixel_values"),
    faulty("gpt-neo", "repeated_half", "input_ids", **_HALF),
    faulty("olmoe", "batch_before", step=1),
    faulty("unispeech", "batch_before", step=2),
    faulty("squeezebert", "one_type", "token_type_ids"),
    faulty("bigbird", "one_type", "token_type_ids", **_BF),
    faulty("exaone", "unknown", "input_ids"),
    faulty("ctrl", "unknown", "input_ids", size=60, **_AC),
    faulty("actor", "narrow_input", "x"),
    faulty("levit", "narrow_input", "pixel_values"),
    faulty("wavlm", "narrow_input", "input_values"),
    faulty("layoutlm", "corners_swapped", "bbox"),
    faulty("gemma", "token", "input_ids"),
    faulty("m2m", "unshifted", "decoder_input_ids"),
    faulty("longformer", "padding_mask", "attention_mask"),
    faulty("hiera", "bgr", "pixel_values"),
    faulty("siglip", "other_statistics", "pixel_values", size=1e-6),
    faulty("convnext2", "sides", "pixel_values", **_AC),
    faulty("points", "scaled_input", "x", size=1e-6),
    faulty("actor", "scaled_input", "x", size=0.05, **_BF),
)  # fmt: skip

_FORWARD: tuple[Pair, ...] = (
    # attention and positions
    faulty("olmo", "halves_apart", f"{_M}.1.self_attn"),
    faulty("biogpt", "halves_apart", f"{_G}.0.self_attn", **_BF),
    faulty("gemma", "not_itself", f"{_M}.0.self_attn"),
    faulty("helium", "not_itself", f"{_M}.2.self_attn", **_AC),
    faulty("olmoe", "unclipped", f"{_M}.1.self_attn"),
    faulty("olmoe", "unclipped", f"{_M}.0.self_attn", **_BF),
    faulty("vaultgemma", "soft_cap"),
    faulty("vaultgemma", "soft_cap", size=3e-6),
    faulty("gemma", "kv_order", f"{_M}.2.self_attn"),
    faulty("exaone", "window", f"{_M}.0.self_attn", size=4),
    faulty("ijepa", "softmax_axis", f"{_J}.2.attention"),
    faulty("siglip", "narrow_softmax", f"{_I}.1.self_attn"),
    faulty("unispeech", "unscaled", f"{_U}.1.attention", **_BF),
    faulty("layoutlm", "softmax_one", f"{_Y}.1.attention.self"),
    faulty("m2m", "mask_value", f"{_N}.1.self_attn"),
    faulty("blenderbot", "lookahead", f"{_K}.1.self_attn", **_AC),
    faulty("granitemoe", "scaling", f"{_M}.0.self_attn", size=1e-6),
    faulty("olmo", "rope_half", f"{_M}.2.self_attn"),
    faulty("diffllama", "rope_sign", f"{_M}.0.self_attn"),
    faulty("qwen3-next", "rope_shift", f"{_M}.1.self_attn"),
    faulty("switch", "bucket_distance", "encoder.block.0.layer.0.SelfAttention", size=12),
    faulty("layoutlm", "ids_moved", "layoutlm.embeddings.x_position_embeddings", size=1),
    # layers, recurrence, sums over ranks
    faulty("ernie", "layer_skipped", f"{_M}.1", also=(f"{_M}.1.*",)),
    faulty("m2m", "layer_skipped", f"{_N}.1", also=(f"{_N}.1.*",), **_HALF),
    faulty("exaone", "layer_twice", f"{_M}.2", also=(f"{_M}.2.*",)),
    faulty("convnext2", "layer_twice", f"{_X}.1.layers.1", also=(f"{_X}.1.layers.1.*",), **_BF),
    faulty("actor", "state_lost", "memory"),
    faulty("mamba2", "step_limit", f"{_S}.2.mixer", **_BF),
    faulty("gpt-neo", "first_part", f"{_T}.0.mlp.c_proj"),
    faulty("hiera", "first_part", f"{_H}.1.layers.0.attn.proj", **_HALF),
    faulty("bigcode", "bias_twice", f"{_T}.1.mlp.c_proj"),
    faulty("convbert", "bias_twice", f"{_C}.1.output.dense", **_BF),
    faulty("helium", "narrow_sum", f"{_M}.1.mlp.down_proj"),
    faulty("retriever", "narrow_sum", "questions.project"),
    faulty("openai-gpt", "half_table", "transformer.tokens_embed"),
    faulty("lfm2", "half_table", "model.embed_tokens", **_AC),
    # norms
    faulty("siglip", "over_tokens", f"{_I}.2.layer_norm2"),
    faulty("biogpt", "over_tokens", f"{_G}.1.final_layer_norm", **_HALF),
    faulty("resnet-hf", "half_batches", f"{_R}.0.layers.0.layer.0.normalization"),
    faulty("efficientnet", "half_batches", f"{_F}.0.depthwise_conv.depthwise_norm", **_BF),
    faulty("points", "half_batches", "bn2"),
    faulty("helium", "eps_outside", f"{_M}.0.input_layernorm"),
    faulty("phimoe", "unbiased", f"{_M}.1.input_layernorm"),
    faulty("olmoe", "narrow_statistics", f"{_M}.2.post_attention_layernorm"),
    faulty("gemma", "offset_lost", f"{_M}.2.post_attention_layernorm"),
    faulty("lfm2", "identity", f"{_M}.1.self_attn.q_layernorm", **_BF),
    faulty("wavlm", "groups", "wavlm.feature_extractor.conv_layers.0.layer_norm"),
    faulty("cvt", "biased", f"{_V}.0.layers.0.{_KEYS}", steps=2),
    faulty("megatron-bert", "eps", f"{_E}.0.ln", size=1e-5),
    # experts, pooling, activations
    faulty("switch", "capacity", "encoder.block.1.layer.1.mlp.router"),
    faulty("retriever", "padding_pooled", "passages.pool"),
    faulty("actor", "hard_tanh", "act"),
    faulty("actor", "hard_tanh", "actor.1", **_BF),
    faulty("granitemoe", "top_k", f"{_M}.2.block_sparse_moe.router", **_BF),
    faulty("qwen3-next", "router_norm", f"{_M}.0.mlp.gate"),
    faulty("gpt-neo", "gelu", f"{_T}.1.mlp.act"),
    faulty("hiera", "quick_gelu", f"{_H}.0.layers.0.mlp.activation_fn"),
    faulty("levit", "silu", "levit.patch_embeddings.activation_layer_2"),
    faulty("olmo", "gate_swapped", f"{_M}.0.mlp", **_HALF),
    # convolutions, modes, precision, small changes
    faulty("resnet-hf", "pad_right", f"{_R}.1.layers.0.layer.0.convolution"),
    faulty("resnet-hf", "circular", "resnet.embedder.embedder.convolution", **_BF),
    faulty("focalnet", "circular", f"{_O}.0.layers.1.modulation.focal_layers.0.0"),
    faulty("vaultgemma", "rounded", f"{_M}.1.mlp.up_proj"),
    faulty("blenderbot", "precision", f"{_N}.0.fc1"),
    faulty("ernie", "no_bias", f"{_M}.2.mlp.up_proj"),
    faulty("megatron-bert", "dropout", f"{_E}.1.attention.self.dropout"),
    faulty("prophetnet", "scaled", "prophetnet.decoder.layers.0.cross_attn", size=1e-4),
    faulty("squeezebert", "shifted", "transformer.encoder.layers.1.intermediate.conv1d", size=1e-5),
    faulty("funnel", "scaled", "funnel.decoder.layers.0.ffn.linear_1", size=3e-6),
    faulty("longformer", "residual", "longformer.encoder.layer.1.attention.output.dense", size=1e-6),
    faulty("vaultgemma", "scaled", f"{_M}.0.self_attn.o_proj", size=1e-6),
    faulty("ijepa", "shifted", f"{_J}.0.mlp.fc2", size=1e-6),
    faulty("ctrl", "scaled", f"{_T}.2.ffn.2", size=1e-6),
    faulty("prophetnet", "scaled", "prophetnet.encoder.layers.1.feed_forward.output", size=0.05, **_BF),
    faulty("bigcode", "scaled", f"{_T}.0.mlp.c_fc", size=0.03, **_HALF),
    faulty("diffllama", "scaled", f"{_M}.2.mlp.up_proj", size=0.05, **_BF),
    faulty("unispeech", "shifted", f"{_U}.0.feed_forward.output_dense", size=0.05, **_AC),
    faulty("switch", "capped", "decoder.block.0.layer.2.mlp.wo", size=1.0),
    # other structures
    faulty("olmo", "first_part", "blocks.1.down", answer=f"{_M}.1.mlp.down_proj", **_PACKED),
    faulty("olmo", "columns_exchanged", "blocks.0.attention.proj", answer=f"{_M}.0.self_attn.o_proj", **_PACKED),
    faulty("olmo", "eps", "blocks.2.norm2", size=1e-3, answer=f"{_M}.2.post_attention_layernorm", **_PACKED),
    faulty("points", "half_batches", "parts.1", answer="bn1", **_LISTED),
    faulty("points", "other_norm", "parts.9", answer="norm", **_LISTED),
)  # fmt: skip

SIXTH: tuple[Pair, ...] = tuple(
    replace(pair, held_out=True) for pair in (*_WEIGHTS_AND_INPUTS, *_FORWARD, *SIXTH_LATER, *SIXTH_CLEAN)
)
