"""The architectures of the fourth set: models that the others have not."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.localisation import fourth_networks as networks
from benchmarks.localisation.construction import (
    DECODER,
    PADDING,
    ROWS,
    SIZES,
    VOCABULARY,
    Architecture,
    Batch,
    images,
    masked_tokens,
    next_of,
    next_tokens,
    normal,
    padded_tokens,
    padded_translation,
    padding_mask,
    renamed,
    square_pictures,
    token_ids,
    transformer,
)


def _padded_next_tokens(generator: torch.Generator) -> Batch:
    ids, mask = token_ids(generator), padding_mask(16)
    return {"input_ids": ids, "attention_mask": mask, "target": ids.masked_fill(mask == 0, -100)}


def _segments(generator: torch.Generator) -> Batch:
    return {"pixel_values": normal(generator, ROWS, 3, 32, 32), "target": normal(generator, ROWS, 10, 8, 8)}


def _waves(generator: torch.Generator) -> Batch:
    target = torch.randint(10, (ROWS,), generator=generator)
    return {"input_values": normal(generator, ROWS, 320), "target": target}


def _noised(generator: torch.Generator) -> Batch:
    time = torch.randint(1000, (ROWS,), generator=generator)
    x = normal(generator, ROWS, 3, 16, 16)
    return {"x": x, "time": time, "target": normal(generator, ROWS, 3, 16, 16)}


def _graphs(generator: torch.Generator) -> Batch:
    edges = (torch.rand(ROWS, 12, 12, generator=generator) < 0.15).float()
    edges = ((edges + edges.transpose(1, 2)) > 0).float() * (1 - torch.eye(12))
    target = torch.randint(10, (ROWS,), generator=generator)
    return {"nodes": normal(generator, ROWS, 12, 8), "edges": edges, "target": target}


def _matches(generator: torch.Generator) -> Batch:
    return {"ids": token_ids(generator, 8), "x": normal(generator, ROWS, 48), "target": torch.arange(ROWS)}


def _numbers(generator: torch.Generator) -> Batch:
    return {"x": normal(generator, ROWS, 24), "target": torch.randint(10, (ROWS,), generator=generator)}


def _split(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Cut Phi-3's weights as `SplitDecoder` has them."""
    found = {
        "embedding.weight": weights["model.embed_tokens.weight"],
        "final_norm.weight": weights["model.norm.weight"],
        "output.weight": weights["lm_head.weight"],
    }
    for layer in range(3):
        old, new = f"model.layers.{layer}", f"blocks.{layer}"
        parts = weights[f"{old}.self_attn.qkv_proj.weight"].split([32, 16, 16])
        parts += weights[f"{old}.mlp.gate_up_proj.weight"].chunk(2)
        names = ("attention.query", "attention.key", "attention.value", "gate", "up")
        found |= {f"{new}.{name}.weight": part for name, part in zip(names, parts, strict=True)}
        for source, name in _LAYER_NAMES.items():
            if name != "attention":
                found[f"{new}.{name}.weight"] = weights[f"{old}.{source}.weight"]
    return found


_LAYER_NAMES = {
    "input_layernorm": "norm1",
    "post_attention_layernorm": "norm2",
    "self_attn": "attention",
    "self_attn.o_proj": "attention.out",
    "mlp.down_proj": "down",
}
_STACKED_NAMES = {
    name: f"layers.{place}"
    for place, name in enumerate(("fc1", "bn1", "act1", "fc2", "bn2", "act2", "fc3", "bn3", "act3", "head"))
}


FOURTH_MAPPINGS: dict[str, Mapping[str, Any]] = {
    "phi3-split": {
        "Phi3ForCausalLM": {
            "model.embed_tokens": "embedding",
            "model.rotary_emb": "rotary",
            "model.layers": "blocks",
            "model.norm": "final_norm",
            "lm_head": "output",
        },
        "Phi3DecoderLayer": _LAYER_NAMES,
    },
    "perceptron-stacked": {"Perceptron": _STACKED_NAMES},
}
_EAGER, _SPLIT, _LAST = {"attention": "eager"}, {"split": 2}, {"channels_last": True}
_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_BERT = {**SIZES, "num_hidden_layers": 3, "max_position_embeddings": 32, **_NO_DROPOUT}
_LAYER_NORM = {name: value for name, value in DECODER.items() if name != "rms_norm_eps"}
_EXPERTS = {"moe_intermediate_size": 16, "num_experts_per_tok": 2}

FOURTH_ARCHITECTURES: dict[str, Architecture] = {
    "falcon": Architecture(
        transformer(
            "FalconForCausalLM", vocab_size=VOCABULARY, hidden_size=32, num_attention_heads=4, num_hidden_layers=3,
            hidden_dropout=0.0, attention_dropout=0.0, max_position_embeddings=32,
        ), next_tokens, _EAGER, True,
    ),
    "bloom": Architecture(
        transformer(
            "BloomForCausalLM", vocab_size=VOCABULARY, hidden_size=32, n_head=4, n_layer=3, hidden_dropout=0.0,
            attention_dropout=0.0,
        ), _padded_next_tokens, _SPLIT, True,
    ),
    "phi": Architecture(
        transformer(
            "PhiForCausalLM", **SIZES, num_hidden_layers=3, num_key_value_heads=2, embd_pdrop=0.0, resid_pdrop=0.0,
            max_position_embeddings=32,
        ), next_tokens, _EAGER, True,
    ),
    "phi3": Architecture(
        transformer("Phi3ForCausalLM", **DECODER, max_position_embeddings=32, original_max_position_embeddings=32, pad_token_id=0),
        next_tokens, _EAGER, True,
    ),
    "stablelm": Architecture(transformer("StableLmForCausalLM", **_LAYER_NORM), next_tokens, _EAGER, True),
    "olmo2": Architecture(transformer("Olmo2ForCausalLM", **DECODER), next_tokens, _EAGER, True),
    "cohere": Architecture(
        transformer("CohereForCausalLM", **{**_LAYER_NORM, "tie_word_embeddings": True}, logit_scale=0.25),
        next_tokens, _EAGER, True,
    ),
    "qwen2-moe": Architecture(
        transformer(
            "Qwen2MoeForCausalLM", **DECODER, **_EXPERTS, num_experts=4, shared_expert_intermediate_size=32,
            output_router_logits=True,
        ), next_tokens, _EAGER, True, auxiliary=0.1,
    ),
    "gpt-oss": Architecture(
        transformer(
            "GptOssForCausalLM", **DECODER, head_dim=8, num_local_experts=4, num_experts_per_tok=2, sliding_window=8,
            max_position_embeddings=32,
            rope_parameters={"rope_type": "default", "rope_theta": 150000.0},
        ), next_tokens, _SPLIT, True,
    ),
    "deepseek": Architecture(
        transformer(
            "DeepseekV3ForCausalLM", **{**DECODER, "num_key_value_heads": 4}, **_EXPERTS, n_routed_experts=4, n_shared_experts=1,
            n_group=2, topk_group=1, first_k_dense_replace=1, q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=4,
            qk_nope_head_dim=8, v_head_dim=8, max_position_embeddings=32,
        ), next_tokens, _EAGER, True,
    ),
    "deberta": Architecture(
        transformer(
            "DebertaV2ForMaskedLM", **_BERT, relative_attention=True, position_buckets=8, pos_att_type=["p2c", "c2p"],
            share_att_key=False, norm_rel_ebd="layer_norm", position_biased_input=False, type_vocab_size=0,
        ), masked_tokens, _SPLIT,
    ),
    "albert": Architecture(transformer("AlbertForMaskedLM", **_BERT, embedding_size=16), masked_tokens, _EAGER),
    "roberta": Architecture(
        transformer("RobertaForMaskedLM", **_BERT, pad_token_id=PADDING), padded_tokens, _EAGER
    ),
    "electra": Architecture(
        transformer("ElectraForMaskedLM", **_BERT, embedding_size=16), masked_tokens, _EAGER
    ),
    "mpnet": Architecture(transformer("MPNetForMaskedLM", **_BERT), padded_tokens, _SPLIT),
    "swin": Architecture(
        transformer(
            "SwinForImageClassification", image_size=16, patch_size=2, embed_dim=16, depths=[2, 2], num_heads=[2, 4],
            window_size=4, mlp_ratio=2.0, drop_path_rate=0.0, num_labels=10,
        ), images("pixel_values"), _EAGER,
    ),
    "beit": Architecture(
        transformer(
            "BeitForImageClassification", hidden_size=32, intermediate_size=64, num_attention_heads=4, image_size=16,
            patch_size=4, num_hidden_layers=3, num_labels=10, drop_path_rate=0.0, layer_scale_init_value=0.5,
            use_relative_position_bias=True, **_NO_DROPOUT,
        ), images("pixel_values"), _EAGER,
    ),
    "clip": Architecture(
        transformer(
            "CLIPForImageClassification", num_labels=10,
            vision_config={"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
                           "image_size": 16, "patch_size": 4},
        ), images("pixel_values"), _EAGER,
    ),
    "wav2vec2": Architecture(
        transformer(
            "Wav2Vec2ForSequenceClassification", hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
            intermediate_size=64, conv_dim=[16, 16, 16], conv_kernel=[8, 3, 3], conv_stride=[4, 2, 2],
            num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=4, classifier_proj_size=16, num_labels=10,
            hidden_dropout=0.0, attention_dropout=0.0, activation_dropout=0.0, feat_proj_dropout=0.0, layerdrop=0.0,
            apply_spec_augment=False,
        ), _waves, _EAGER,
    ),
    "segformer": Architecture(
        transformer(
            "SegformerForSemanticSegmentation", num_encoder_blocks=2, depths=[2, 1], sr_ratios=[2, 1], hidden_sizes=[16, 32],
            patch_sizes=[7, 3], strides=[4, 2], num_attention_heads=[2, 4], mlp_ratios=[2, 2], decoder_hidden_size=16,
            num_labels=10, drop_path_rate=0.0, classifier_dropout_prob=0.0, **_NO_DROPOUT,
        ), _segments, _SPLIT,
    ),
    "mobilevit": Architecture(
        transformer(
            "MobileViTForImageClassification", image_size=64, patch_size=2, hidden_sizes=[16, 24, 32],
            neck_hidden_sizes=[8, 8, 16, 16, 24, 32, 32], num_attention_heads=4, mlp_ratio=2.0, expand_ratio=2.0,
            num_labels=10, classifier_dropout_prob=0.0, **_NO_DROPOUT,
        ), square_pictures(64), _LAST,
    ),
    "falcon-mamba": Architecture(
        transformer("FalconMambaForCausalLM", vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, state_size=8),
        next_tokens, _SPLIT, True,
    ),
    "mbart": Architecture(
        transformer(
            "MBartForConditionalGeneration", vocab_size=VOCABULARY, d_model=32, encoder_layers=2, decoder_layers=2,
            encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64,
            max_position_embeddings=32, dropout=0.0, scale_embedding=True, pad_token_id=PADDING,
        ), padded_translation, _EAGER,
    ),
    "denoiser": Architecture(lambda setup: networks.Denoiser(), _noised, _LAST),
    "graph": Architecture(lambda setup: networks.GraphNet(), _graphs, _SPLIT),
    "wavenet": Architecture(lambda setup: networks.WaveNet(), next_of, _SPLIT, True),
    "towers": Architecture(lambda setup: networks.Towers(), _matches, {"doubled": True}),
    "rnn-lm": Architecture(lambda setup: networks.RecurrentLanguageModel(), next_of, _SPLIT, True),
    "perceptron": Architecture(lambda setup: networks.Perceptron(), _numbers, _SPLIT),
    "phi3-split": Architecture(lambda setup: networks.SplitDecoder(), next_of, {}, True, _split, "phi3"),
    "perceptron-stacked": Architecture(lambda setup: networks.Stacked(), _numbers, {}, False, partial(renamed, names=_STACKED_NAMES), "perceptron"),
}  # fmt: skip
