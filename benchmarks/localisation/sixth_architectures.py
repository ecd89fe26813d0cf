"""The architectures of the sixth set: models that no other set has."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.localisation import sixth_networks as networks
from benchmarks.localisation.construction import (
    DECODER,
    PADDING,
    ROWS,
    SIZES,
    VOCABULARY,
    Architecture,
    Batch,
    images,
    next_of,
    next_tokens,
    normal,
    packed_layers,
    padded_next_tokens,
    padded_tokens,
    padded_translation,
    padding_mask,
    renamed,
    square_pictures,
    token_ids,
    transformer,
    translation,
)


def _typed_tokens(generator: torch.Generator) -> Batch:
    """Return padded tokens of which the later half is a second text."""
    types = (torch.arange(16) > 7).long().repeat(ROWS, 1)
    return {**padded_tokens(generator), "token_type_ids": types}


def _placed_tokens(generator: torch.Generator) -> Batch:
    """Return padded tokens and where they stand on a page."""
    found = padded_tokens(generator)
    corners = torch.randint(16, (ROWS, 16, 2), generator=generator)
    return {
        **found,
        "bbox": torch.cat([corners, corners + torch.randint(1, 16, (ROWS, 16, 2), generator=generator)], -1),
    }


def _waves(generator: torch.Generator) -> Batch:
    target = torch.randint(10, (ROWS,), generator=generator)
    return {"input_values": normal(generator, ROWS, 320), "target": target}


def _games(generator: torch.Generator) -> Batch:
    return {"x": normal(generator, ROWS, 10, 12), "target": normal(generator, ROWS, 10, 7)}


def _vectors(generator: torch.Generator) -> Batch:
    x = normal(generator, 2 * ROWS, 12)
    return {"x": x, "target": x}


def _clouds(generator: torch.Generator) -> Batch:
    target = torch.randint(10, (2 * ROWS,), generator=generator)
    return {"x": normal(generator, 2 * ROWS, 3, 20), "target": target}


def _texts(generator: torch.Generator) -> Batch:
    mask = padding_mask(12)
    questions, passages = (token_ids(generator, 12) for _ in range(2))
    return {
        "questions": questions.masked_fill(mask == 0, PADDING), "question_mask": mask,
        "passages": passages.masked_fill(mask.flip(0) == 0, PADDING), "passage_mask": mask.flip(0),
        "target": torch.arange(ROWS),
    }  # fmt: skip


def _packed(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Pack OLMo's weights as `PlainDecoder` has them."""
    whole = {"embedding.weight": weights["model.embed_tokens.weight"], "output.weight": weights["lm_head.weight"]}
    return whole | packed_layers(weights, {"attention.proj": "self_attn.o_proj", "down": "mlp.down_proj"})


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
    "self_attn.o_proj": "attention.proj",
    "mlp.act_fn": "act",
    "mlp.down_proj": "down",
}
_POINT_NAMES = {
    name: f"parts.{place}"
    for place, name in enumerate(
        ("conv1", "bn1", "act1", "conv2", "bn2", "act2", "pool", "flat", "fc", "norm", "act3", "head")
    )
}

SIXTH_MAPPINGS: dict[str, Mapping[str, Any]] = {
    "olmo-packed": {"OlmoForCausalLM": _WHOLE_NAMES, "OlmoDecoderLayer": _LAYER_NAMES},
    "points-listed": {"PointNet": _POINT_NAMES},
}
_EAGER, _SPLIT, _LAST = {"attention": "eager"}, {"split": 2}, {"channels_last": True}
_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_BERT = {**SIZES, "num_hidden_layers": 3, "max_position_embeddings": 32, "pad_token_id": PADDING, **_NO_DROPOUT}
_PLAIN = {name: value for name, value in DECODER.items() if name != "rms_norm_eps"}
_GPT = {
    "vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 32,
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

SIXTH_ARCHITECTURES: dict[str, Architecture] = {
    "olmo": Architecture(transformer("OlmoForCausalLM", **_PLAIN), next_tokens, _EAGER, True),
    "olmoe": Architecture(
        transformer(
            "OlmoeForCausalLM", **{**DECODER, "intermediate_size": 32}, num_experts=4, num_experts_per_tok=2, clip_qkv=1.5,
            output_router_logits=True,
        ), next_tokens, _EAGER, True, auxiliary=0.1,
    ),
    "gemma": Architecture(transformer("GemmaForCausalLM", **DECODER, head_dim=8), next_tokens, _EAGER, True),
    "helium": Architecture(transformer("HeliumForCausalLM", **DECODER, head_dim=8), next_tokens, _EAGER, True),
    "phimoe": Architecture(
        transformer(
            "PhimoeForCausalLM", **DECODER, num_local_experts=4, num_experts_per_tok=2, router_jitter_noise=0.0,
            input_jitter_noise=0.0, attention_bias=True,
        ), next_tokens, _EAGER, True,
    ),
    "granitemoe": Architecture(
        transformer(
            "GraniteMoeForCausalLM", **DECODER, num_local_experts=4, num_experts_per_tok=2, embedding_multiplier=2.0,
            residual_multiplier=0.5, attention_multiplier=0.3, logits_scaling=2.0,
        ), next_tokens, _EAGER, True,
    ),
    "ernie": Architecture(transformer("Ernie4_5ForCausalLM", **DECODER, head_dim=8, use_bias=True), next_tokens, _EAGER, True),
    "exaone": Architecture(transformer("Exaone4ForCausalLM", **DECODER, sliding_window=6), next_tokens, _EAGER, True),
    "gpt-neo": Architecture(
        transformer(
            "GPTNeoForCausalLM", vocab_size=VOCABULARY, hidden_size=32, num_layers=2, attention_types=[[["global", "local"], 1]],
            num_heads=4, window_size=5, max_position_embeddings=32, intermediate_size=64, resid_dropout=0.0, embed_dropout=0.0,
            attention_dropout=0.0,
        ), next_tokens, _SPLIT, True,
    ),
    "bigcode": Architecture(transformer("GPTBigCodeForCausalLM", **_GPT, multi_query=True), next_tokens, _EAGER, True),
    "biogpt": Architecture(
        transformer("BioGptForCausalLM", **{**_BERT, "activation_dropout": 0.0, "layerdrop": 0.0, "scale_embedding": True}),
        padded_next_tokens, _EAGER, True,
    ),
    "openai-gpt": Architecture(
        transformer("OpenAIGPTLMHeadModel", **{**_GPT, "n_layer": 2}), next_tokens, _SPLIT, True
    ),
    "ctrl": Architecture(
        transformer(
            "CTRLLMHeadModel", vocab_size=VOCABULARY, n_positions=32, n_embd=32, dff=64, n_layer=3, n_head=4, resid_pdrop=0.0,
            embd_pdrop=0.0,
        ), next_tokens, _SPLIT, True,
    ),
    "mamba2": Architecture(
        transformer(
            "Mamba2ForCausalLM", vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=3, state_size=8, num_heads=8, head_dim=8,
            n_groups=1, chunk_size=8, expand=2, pad_token_id=0, tie_word_embeddings=False,
        ), next_tokens, _SPLIT, True,
    ),
    "vaultgemma": Architecture(
        transformer(
            "VaultGemmaForCausalLM", **DECODER, head_dim=8, query_pre_attn_scalar=8, sliding_window=6, attn_logit_softcapping=None,
            final_logit_softcapping=2.0,
        ), next_tokens, _SPLIT, True,
    ),
    "qwen3-next": Architecture(
        transformer(
            "Qwen3NextForCausalLM", **DECODER, head_dim=8, linear_num_key_heads=2, linear_num_value_heads=4,
            linear_key_head_dim=8, linear_value_head_dim=8, layer_types=["linear_attention", "full_attention", "linear_attention"],
            num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, shared_expert_intermediate_size=16, pad_token_id=0,
        ), next_tokens, _EAGER, True,
    ),
    "lfm2": Architecture(
        transformer(
            "Lfm2ForCausalLM", **{**_PLAIN, "norm_eps": 1e-6}, conv_L_cache=3, layer_types=["conv", "full_attention", "conv"],
            block_auto_adjust_ff_dim=False, pad_token_id=0,
        ), next_tokens, _EAGER, True,
    ),
    "diffllama": Architecture(transformer("DiffLlamaForCausalLM", **{**DECODER, "num_key_value_heads": 4}), next_tokens, _SPLIT, True),
    "squeezebert": Architecture(
        transformer(
            "SqueezeBertForMaskedLM", **_BERT, embedding_size=32, q_groups=2, k_groups=2, v_groups=2, post_attention_groups=1,
            intermediate_groups=2, output_groups=2,
        ), _typed_tokens, _SPLIT,
    ),
    "bigbird": Architecture(transformer("BigBirdForMaskedLM", **_BERT, attention_type="original_full"), _typed_tokens, _SPLIT),
    "longformer": Architecture(
        transformer("LongformerForMaskedLM", **{**_BERT, "max_position_embeddings": 40}, attention_window=[8, 8, 8]),
        padded_tokens, _SPLIT,
    ),
    "layoutlm": Architecture(transformer("LayoutLMForMaskedLM", **_BERT, max_2d_position_embeddings=40), _placed_tokens, _EAGER),
    "megatron-bert": Architecture(transformer("MegatronBertForMaskedLM", **_BERT), _typed_tokens, _SPLIT),
    "convbert": Architecture(
        transformer("ConvBertForMaskedLM", **_BERT, embedding_size=32, head_ratio=2, conv_kernel_size=3), _typed_tokens, _SPLIT
    ),
    "funnel": Architecture(
        transformer(
            "FunnelForMaskedLM", vocab_size=VOCABULARY, block_sizes=[1, 1], num_decoder_layers=1, d_model=32, n_head=4, d_head=8,
            d_inner=64, hidden_dropout=0.0, attention_dropout=0.0, activation_dropout=0.0,
        ), padded_tokens, _SPLIT,
    ),
    "m2m": Architecture(transformer("M2M100ForConditionalGeneration", **_BOTH, decoder_start_token_id=2), padded_translation, _EAGER),
    "blenderbot": Architecture(transformer("BlenderbotForConditionalGeneration", **_BOTH), padded_translation, _EAGER),
    "prophetnet": Architecture(
        transformer(
            "ProphetNetForConditionalGeneration", vocab_size=VOCABULARY, hidden_size=32, encoder_ffn_dim=64, decoder_ffn_dim=64,
            num_encoder_layers=2, num_decoder_layers=2, num_encoder_attention_heads=4, num_decoder_attention_heads=4, dropout=0.0,
            attention_dropout=0.0, activation_dropout=0.0, max_position_embeddings=32, ngram=2, pad_token_id=PADDING,
            num_buckets=8, relative_max_distance=16,
        ), padded_translation, _SPLIT,
    ),
    "switch": Architecture(
        transformer(
            "SwitchTransformersForConditionalGeneration", vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=64, num_layers=2,
            num_decoder_layers=2, num_heads=4, dropout_rate=0.0, num_experts=4, expert_capacity=64, num_sparse_encoder_layers=1,
            num_sparse_decoder_layers=1, router_jitter_noise=0.0, pad_token_id=0,
        ), translation, _SPLIT,
    ),
    "resnet-hf": Architecture(
        transformer("ResNetForImageClassification", embedding_size=8, hidden_sizes=[16, 32], depths=[2, 1], layer_type="basic", num_labels=10),
        square_pictures(32), _LAST,
    ),
    "efficientnet": Architecture(
        transformer(
            "EfficientNetForImageClassification", image_size=32, width_coefficient=1.0, depth_coefficient=1.0, depth_divisor=8,
            kernel_sizes=[3, 5], in_channels=[32, 16], out_channels=[16, 24], depthwise_padding=[], strides=[1, 2],
            num_block_repeats=[1, 2], expand_ratios=[1, 2], hidden_dim=1280, dropout_rate=0.0, drop_connect_rate=0.0, num_labels=10,
        ), square_pictures(32), _LAST,
    ),
    "convnext2": Architecture(
        transformer(
            "ConvNextV2ForImageClassification", num_channels=3, patch_size=2, num_stages=2, hidden_sizes=[16, 32], depths=[2, 2],
            image_size=16, num_labels=10,
        ), images("pixel_values"), _SPLIT,
    ),
    "levit": Architecture(
        transformer(
            "LevitForImageClassification", image_size=64, patch_size=16, stride=2, kernel_size=3, padding=1, hidden_sizes=[16, 24, 32],
            num_attention_heads=[2, 3, 4], depths=[1, 1, 1], key_dim=[8, 8, 8], drop_path_rate=0, mlp_ratio=[2, 2, 2],
            attention_ratio=[2, 2, 2], num_labels=10,
        ), square_pictures(64), _SPLIT,
    ),
    "cvt": Architecture(
        transformer(
            "CvtForImageClassification", patch_sizes=[3, 3], patch_stride=[2, 2], patch_padding=[1, 1], embed_dim=[16, 32],
            num_heads=[2, 4], depth=[1, 2], mlp_ratio=[2.0, 2.0], attention_drop_rate=[0.0, 0.0], drop_rate=[0.0, 0.0],
            drop_path_rate=[0.0, 0.0], qkv_bias=[True, True], cls_token=[False, True], qkv_projection_method=["dw_bn", "dw_bn"],
            kernel_qkv=[3, 3], padding_kv=[1, 1], stride_kv=[2, 2], padding_q=[1, 1], stride_q=[1, 1], num_labels=10,
        ), images("pixel_values"), _SPLIT,
    ),
    "focalnet": Architecture(
        transformer(
            "FocalNetForImageClassification", image_size=16, patch_size=2, embed_dim=16, hidden_sizes=[16, 32], depths=[2, 2],
            focal_levels=[2, 2], focal_windows=[3, 3], mlp_ratio=2.0, drop_path_rate=0.0, num_labels=10,
        ), images("pixel_values"), _LAST,
    ),
    "hiera": Architecture(
        transformer(
            "HieraForImageClassification", embed_dim=16, image_size=[16, 16], patch_size=[3, 3], patch_stride=[2, 2],
            patch_padding=[1, 1], mlp_ratio=2.0, depths=[1, 1], num_heads=[2, 4], embed_dim_multiplier=2.0, num_query_pool=1,
            query_stride=[2, 2], masked_unit_size=[4, 4], masked_unit_attention=[True, False], drop_path_rate=0.0, num_labels=10,
        ), images("pixel_values"), _SPLIT,
    ),
    "siglip": Architecture(
        transformer(
            "SiglipForImageClassification", num_labels=10,
            vision_config={"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
                           "image_size": 16, "patch_size": 4},
        ), images("pixel_values"), _EAGER,
    ),
    "ijepa": Architecture(transformer("IJepaForImageClassification", **_VIT), images("pixel_values"), _EAGER),
    "wavlm": Architecture(
        transformer("WavLMForSequenceClassification", **_SOUND, num_buckets=16, max_bucket_distance=32), _waves, _SPLIT
    ),
    "unispeech": Architecture(transformer("UniSpeechForSequenceClassification", **_SOUND), _waves, _EAGER),
    "actor": Architecture(lambda setup: networks.ActorCritic(), _games, _SPLIT),
    "codebook": Architecture(lambda setup: networks.QuantisedAutoencoder(), _vectors, _SPLIT),
    "points": Architecture(lambda setup: networks.PointNet(), _clouds, {"doubled": True}),
    "retriever": Architecture(lambda setup: networks.Retriever(), _texts, _SPLIT),
    "olmo-packed": Architecture(lambda setup: networks.PlainDecoder(), next_of, {}, True, _packed, "olmo"),
    "points-listed": Architecture(lambda setup: networks.Points(), _clouds, {}, False, partial(renamed, names=_POINT_NAMES), "points"),
}  # fmt: skip
