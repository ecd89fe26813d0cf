"""The architectures of the fifth set: models that no other set has."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.localisation import fifth_further_networks as further
from benchmarks.localisation import fifth_networks as networks
from benchmarks.localisation.construction import (
    DECODER,
    PADDING,
    ROWS,
    SIZES,
    VOCABULARY,
    Architecture,
    Batch,
    images,
    labelled,
    masked_tokens,
    next_of,
    next_tokens,
    normal,
    padded_next_tokens,
    padded_tokens,
    padded_translation,
    renamed,
    token_ids,
    transformer,
    translation,
)


def _unmasked_tokens(generator: torch.Generator) -> Batch:
    found = masked_tokens(generator)
    return {"input_ids": found["input_ids"], "target": found["target"]}


def _pairs(generator: torch.Generator) -> Batch:
    found = padded_translation(generator)
    return {"ids": found["input_ids"], "given": found["decoder_input_ids"], "target": found["target"]}


def _larger(generator: torch.Generator) -> Batch:
    target = torch.randint(10, (ROWS,), generator=generator)
    return {"pixel_values": normal(generator, ROWS, 3, 32, 32), "target": target}


def _films(generator: torch.Generator) -> Batch:
    target = torch.randint(10, (ROWS,), generator=generator)
    return {"pixel_values": normal(generator, ROWS, 4, 3, 8, 8), "target": target}


def _waves(generator: torch.Generator) -> Batch:
    target = torch.randint(10, (ROWS,), generator=generator)
    return {"input_values": normal(generator, ROWS, 320), "target": target}


def _spectra(generator: torch.Generator) -> Batch:
    target = torch.randint(10, (ROWS,), generator=generator)
    return {"input_values": normal(generator, ROWS, 24, 16), "target": target}


def _noised(generator: torch.Generator) -> Batch:
    time = torch.randint(1000, (ROWS,), generator=generator)
    x = normal(generator, ROWS, 3, 16, 16)
    return {"x": x, "time": time, "target": normal(generator, ROWS, 3, 16, 16)}


def _clicks(generator: torch.Generator) -> Batch:
    categories = torch.randint(40, (ROWS * 2, 3, 4), generator=generator)
    target = torch.randint(10, (ROWS * 2,), generator=generator)
    return {"numbers": normal(generator, ROWS * 2, 13), "categories": categories, "target": target}


def _series(generator: torch.Generator) -> Batch:
    x = normal(generator, ROWS, 25, 8).cumsum(1) / 4
    return {"x": x[:, :-1], "target": x[:, 1:, :4]}


def _points(generator: torch.Generator) -> Batch:
    return {"x": normal(generator, 2 * ROWS, 16), "target": torch.zeros(2 * ROWS, 16)}


def _molecules(generator: torch.Generator) -> Batch:
    edges = (torch.rand(ROWS, 12, 12, generator=generator) < 0.15).float()
    edges = ((edges + edges.transpose(1, 2)) > 0).float() * (1 - torch.eye(12))
    target = torch.randint(10, (ROWS, 12), generator=generator)
    return {"nodes": normal(generator, ROWS, 12, 8), "edges": edges, "target": target}


def _outlines(generator: torch.Generator) -> Batch:
    target = torch.randint(10, (ROWS, 16, 16), generator=generator)
    target[1, 12:] = -100
    return {"x": normal(generator, ROWS, 3, 16, 16), "target": target}


def _sounds(generator: torch.Generator) -> Batch:
    return {"x": normal(generator, ROWS, 12, 20), "ids": token_ids(generator, 8), "target": torch.arange(ROWS)}


def _codes(generator: torch.Generator) -> Batch:
    x = normal(generator, ROWS, 3, 16, 16)
    return {"x": x, "noise": normal(generator, ROWS, 8), "target": x}


def _sets(generator: torch.Generator) -> Batch:
    target = torch.randint(10, (ROWS,), generator=generator)
    return {"x": normal(generator, ROWS, 20, 12), "target": target}


def _fused(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Pack Starcoder2's weights as `PackedDecoder` has them."""
    parts = "weight", "bias"
    found = {f"{_WHOLE_NAMES[name]}.{part}": weights[f"{name}.{part}"] for name in ("model.norm",) for part in parts}
    found |= {f"{_WHOLE_NAMES[name]}.weight": weights[f"{name}.weight"] for name in ("model.embed_tokens", "lm_head")}
    for layer in range(3):
        old, new = f"model.layers.{layer}", f"blocks.{layer}"
        for part in parts:
            packed = [weights[f"{old}.self_attn.{each}_proj.{part}"] for each in "qkv"]
            found[f"{new}.attention.qkv.{part}"] = torch.cat(packed)
            for source, name in _LAYER_NAMES.items():
                if f"{old}.{source}.{part}" in weights:
                    found[f"{new}.{name}.{part}"] = weights[f"{old}.{source}.{part}"]
    return found


_WHOLE_NAMES = {
    "model.embed_tokens": "embedding",
    "model.rotary_emb": "rotary",
    "model.layers": "blocks",
    "model.norm": "final_norm",
    "lm_head": "output",
}
_LAYER_NAMES = {
    "input_layernorm": "norm1",
    "post_attention_layernorm": "norm2",
    "self_attn": "attention",
    "self_attn.o_proj": "attention.dense",
    "mlp.c_fc": "up",
    "mlp.act": "act",
    "mlp.c_proj": "down",
}
_LISTED_NAMES = {
    name: f"parts.{place}"
    for place, name in enumerate(("stem", "bn", "act", "block1", "block2", "block3", "pool", "flat", "head"))
}

FIFTH_MAPPINGS: dict[str, Mapping[str, Any]] = {
    "starcoder2-packed": {"Starcoder2ForCausalLM": _WHOLE_NAMES, "Starcoder2DecoderLayer": _LAYER_NAMES},
    "squeeze-listed": {"SqueezeNet": _LISTED_NAMES},
}
_EAGER, _SPLIT, _LAST = {"attention": "eager"}, {"split": 2}, {"channels_last": True}
_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_BERT = {**SIZES, "num_hidden_layers": 3, "max_position_embeddings": 32, **_NO_DROPOUT}
_ROPE = {name: value for name, value in DECODER.items() if name != "rms_norm_eps"}
_PLAIN = {**SIZES, "num_hidden_layers": 3, "max_position_embeddings": 32, "tie_word_embeddings": False}
_GPT = {
    "vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 32, "rotary_dim": 4,
    "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0,
}  # fmt: skip
_BOTH = {
    "vocab_size": VOCABULARY, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": 32,
    "dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0, "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0,
    "scale_embedding": True, "pad_token_id": PADDING, "bos_token_id": 0, "eos_token_id": 2,
}  # fmt: skip
_VIT = {
    "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "image_size": 16, "num_hidden_layers": 3,
    "patch_size": 4, "num_labels": 10, **_NO_DROPOUT,
}  # fmt: skip
_SOUND = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "conv_dim": [16, 16, 16],
    "conv_kernel": [8, 3, 3], "conv_stride": [4, 2, 2], "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 4,
    "classifier_proj_size": 16, "num_labels": 10, "hidden_dropout": 0.0, "attention_dropout": 0.0,
    "activation_dropout": 0.0, "feat_proj_dropout": 0.0, "layerdrop": 0.0, "apply_spec_augment": False,
}  # fmt: skip
_EXPERTS = {"moe_intermediate_size": 16, "num_experts_per_tok": 2}

FIFTH_ARCHITECTURES: dict[str, Architecture] = {
    "mistral": Architecture(transformer("MistralForCausalLM", **DECODER, sliding_window=6), next_tokens, _EAGER, True),
    "granite": Architecture(
        transformer(
            "GraniteForCausalLM", **DECODER, embedding_multiplier=3.0, residual_multiplier=0.5, attention_multiplier=0.25,
            logits_scaling=2.0,
        ), next_tokens, _EAGER, True,
    ),
    "starcoder2": Architecture(
        transformer(
            "Starcoder2ForCausalLM", **_ROPE, norm_epsilon=1e-5, use_bias=True, residual_dropout=0.0, embedding_dropout=0.0,
            sliding_window=None,
        ), next_tokens, _EAGER, True,
    ),
    "gemma3": Architecture(
        transformer("Gemma3ForCausalLM", **DECODER, head_dim=8, query_pre_attn_scalar=8, sliding_window=5, sliding_window_pattern=2),
        next_tokens, _EAGER, True,
    ),
    "qwen3-moe": Architecture(
        transformer("Qwen3MoeForCausalLM", **DECODER, **_EXPERTS, num_experts=4, head_dim=8, output_router_logits=True),
        next_tokens, _EAGER, True, auxiliary=0.1,
    ),
    "glm4-moe": Architecture(
        transformer(
            "Glm4MoeForCausalLM", **DECODER, **_EXPERTS, n_routed_experts=4, n_shared_experts=1, n_group=1, topk_group=1,
            first_k_dense_replace=1, head_dim=8, routed_scaling_factor=1.5, use_qk_norm=True,
        ), next_tokens, _EAGER, True,
    ),
    "persimmon": Architecture(transformer("PersimmonForCausalLM", **_PLAIN, hidden_dropout=0.0, attention_dropout=0.0), next_tokens, _EAGER, True),
    "gptj": Architecture(transformer("GPTJForCausalLM", **_GPT), next_tokens, _SPLIT, True),
    "codegen": Architecture(transformer("CodeGenForCausalLM", **_GPT), next_tokens, _SPLIT, True),
    "xglm": Architecture(
        transformer(
            "XGLMForCausalLM", vocab_size=VOCABULARY, d_model=32, ffn_dim=64, num_layers=3, attention_heads=4,
            max_position_embeddings=32, dropout=0.0, attention_dropout=0.0, activation_dropout=0.0, layerdrop=0.0,
            pad_token_id=PADDING,
        ), padded_next_tokens, _SPLIT, True,
    ),
    "mpt": Architecture(
        transformer("MptForCausalLM", vocab_size=VOCABULARY, d_model=32, n_heads=4, n_layers=3, expansion_ratio=2, max_seq_len=32),
        next_tokens, _SPLIT, True,
    ),
    "nemotron": Architecture(transformer("NemotronForCausalLM", **_ROPE, norm_eps=1e-5), next_tokens, _EAGER, True),
    "glm": Architecture(transformer("GlmForCausalLM", **DECODER, head_dim=8, pad_token_id=0), next_tokens, _EAGER, True),
    "smollm3": Architecture(
        transformer("SmolLM3ForCausalLM", **DECODER, no_rope_layers=[1, 1, 0], pad_token_id=0), next_tokens, _EAGER, True
    ),
    "cohere2": Architecture(
        transformer(
            "Cohere2ForCausalLM", **{**_ROPE, "tie_word_embeddings": True}, logit_scale=0.25, sliding_window=5,
            layer_types=["sliding_attention", "sliding_attention", "full_attention"],
        ), next_tokens, _EAGER, True,
    ),
    "bamba": Architecture(
        transformer(
            "BambaForCausalLM", **DECODER, attn_layer_indices=[1], mamba_n_heads=8, mamba_d_head=8, mamba_n_groups=1,
            mamba_d_state=8, mamba_chunk_size=8, pad_token_id=0,
        ), next_tokens, _EAGER, True,
    ),
    "rwkv": Architecture(
        transformer("RwkvForCausalLM", vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=3, attention_hidden_size=32, intermediate_size=64),
        next_tokens, _SPLIT, True,
    ),
    "modernbert": Architecture(
        transformer(
            "ModernBertForMaskedLM", **SIZES, num_hidden_layers=3, max_position_embeddings=32, global_attn_every_n_layers=2,
            local_attention=6, pad_token_id=PADDING, bos_token_id=0, eos_token_id=2, cls_token_id=0, sep_token_id=2,
        ), _unmasked_tokens, _EAGER,
    ),
    "fnet": Architecture(
        transformer("FNetForMaskedLM", vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=3, intermediate_size=64, hidden_dropout_prob=0.0, max_position_embeddings=32, use_tpu_fourier_optimizations=False),
        _unmasked_tokens, _SPLIT,
    ),
    "esm": Architecture(
        transformer("EsmForMaskedLM", **_BERT, position_embedding_type="rotary", pad_token_id=PADDING, mask_token_id=0, token_dropout=False),
        padded_tokens, _EAGER,
    ),
    "deberta1": Architecture(
        transformer(
            "DebertaForMaskedLM", **_BERT, relative_attention=True, pos_att_type=["c2p", "p2c"], max_relative_positions=16,
            position_biased_input=False, type_vocab_size=0,
        ), masked_tokens, _SPLIT,
    ),
    "xlnet": Architecture(
        transformer("XLNetLMHeadModel", vocab_size=VOCABULARY, d_model=32, n_layer=3, n_head=4, d_inner=64, dropout=0.0),
        masked_tokens, _SPLIT,
    ),
    "roformer": Architecture(transformer("RoFormerForMaskedLM", **_BERT, embedding_size=32, rotary_value=False), masked_tokens, _SPLIT),
    "marian": Architecture(transformer("MarianMTModel", **_BOTH, decoder_start_token_id=0, decoder_vocab_size=VOCABULARY), padded_translation, _EAGER),
    "pegasus": Architecture(transformer("PegasusForConditionalGeneration", **_BOTH), padded_translation, _EAGER),
    "umt5": Architecture(
        transformer(
            "UMT5ForConditionalGeneration", vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_decoder_layers=2,
            num_heads=4, dropout_rate=0.0, relative_attention_num_buckets=8, relative_attention_max_distance=12,
        ), translation, _SPLIT,
    ),
    "dinov2": Architecture(
        transformer("Dinov2ForImageClassification", **{k: v for k, v in _VIT.items() if k != "intermediate_size"}, mlp_ratio=2, layerscale_value=0.5),
        images("pixel_values"), _EAGER,
    ),
    "deit": Architecture(transformer("DeiTForImageClassification", **_VIT), images("pixel_values"), _EAGER),
    "pvt": Architecture(
        transformer(
            "PvtForImageClassification", image_size=32, num_encoder_blocks=2, depths=[2, 1], sequence_reduction_ratios=[2, 1],
            hidden_sizes=[16, 32], patch_sizes=[4, 2], strides=[4, 2], num_attention_heads=[2, 4], mlp_ratios=[2, 2],
            num_labels=10, drop_path_rate=0.0, **_NO_DROPOUT,
        ), _larger, _SPLIT,
    ),
    "poolformer": Architecture(
        transformer(
            "PoolFormerForImageClassification", depths=[2, 2], hidden_sizes=[16, 32], num_encoder_blocks=2, patch_sizes=[4, 3],
            strides=[2, 2], padding=[1, 1], mlp_ratio=2.0, num_labels=10, drop_path_rate=0.0, layer_scale_init_value=0.5,
        ), images("pixel_values"), _LAST,
    ),
    "regnet": Architecture(
        transformer(
            "RegNetForImageClassification", embedding_size=8, hidden_sizes=[16, 24], depths=[1, 2], groups_width=8, layer_type="y", num_labels=10,
        ), _larger, _LAST,
    ),
    "swin2": Architecture(
        transformer(
            "Swinv2ForImageClassification", image_size=16, patch_size=2, embed_dim=16, depths=[2, 2], num_heads=[2, 4],
            window_size=4, mlp_ratio=2.0, drop_path_rate=0.0, num_labels=10,
        ), images("pixel_values"), _SPLIT,
    ),
    "data2vec": Architecture(
        transformer("Data2VecVisionForImageClassification", **_VIT, drop_path_rate=0.0, layer_scale_init_value=0.5, use_relative_position_bias=True),
        images("pixel_values"), _EAGER,
    ),
    "videomae": Architecture(
        transformer("VideoMAEForVideoClassification", **{**_VIT, "image_size": 8}, num_frames=4, tubelet_size=2), _films, _EAGER
    ),
    "timesformer": Architecture(
        transformer("TimesformerForVideoClassification", **{**_VIT, "image_size": 8}, num_frames=4, drop_path_rate=0), _films, _SPLIT
    ),
    "hubert": Architecture(transformer("HubertForSequenceClassification", **_SOUND), _waves, _EAGER),
    "sew": Architecture(transformer("SEWForSequenceClassification", **_SOUND, squeeze_factor=2), _waves, _EAGER),
    "ast": Architecture(
        transformer(
            "ASTForAudioClassification", hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=64, patch_size=8,
            frequency_stride=4, time_stride=8, max_length=24, num_mel_bins=16, num_labels=10, **_NO_DROPOUT,
        ), _spectra, _EAGER,
    ),
    "sinks": Architecture(lambda setup: networks.SinkDecoder(), next_of, _SPLIT, True),
    "seq2seq": Architecture(lambda setup: networks.Translator(), _pairs, _SPLIT),
    "tagger": Architecture(lambda setup: networks.Tagger(), labelled, _SPLIT),
    "squeeze": Architecture(lambda setup: networks.SqueezeNet(), images("x"), _LAST),
    "crossnet": Architecture(lambda setup: networks.CrossNet(), _clicks, _SPLIT),
    "dit": Architecture(lambda setup: networks.DiffusionTransformer(), _noised, _SPLIT),
    "tcn": Architecture(lambda setup: networks.Forecaster(), _series, _SPLIT),
    "flow": Architecture(lambda setup: networks.Flow(), _points, _SPLIT),
    "gcn": Architecture(lambda setup: further.GraphConvolutions(), _molecules, _SPLIT),
    "segmenter": Architecture(lambda setup: further.Segmenter(), _outlines, _LAST),
    "sounds": Architecture(lambda setup: further.SoundsAndTexts(), _sounds, _SPLIT),
    "convvae": Architecture(lambda setup: further.ConvAutoencoder(), _codes, _LAST),
    "pooler": Architecture(lambda setup: further.SetPooler(), _sets, _SPLIT),
    "starcoder2-packed": Architecture(lambda setup: further.PackedDecoder(), next_of, {}, True, _fused, "starcoder2"),
    "squeeze-listed": Architecture(lambda setup: networks.Listed(), images("x"), {}, False, partial(renamed, names=_LISTED_NAMES), "squeeze"),
}  # fmt: skip
