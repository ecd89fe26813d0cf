"""The architectures of the ports, and of the models that they are ports of."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from benchmarks.localisation.models.architecture import EAGER, NO_DROPOUT, Architecture, transformer
from benchmarks.localisation.models.batches import (
    PADDING,
    VOCABULARY,
    Batch,
    images,
    next_ids,
    next_tokens,
    numbers,
    padded_tokens,
    point_clouds,
    renamed_arguments,
    speech,
    translation,
)
from benchmarks.localisation.models.ports import (
    decoders,
    encoder_decoders,
    encoders,
    mixtures,
    restructured,
    state_space,
)
from benchmarks.localisation.models.ports.blocks import THETA, Sizes, sizes_of
from benchmarks.localisation.models.ports.counterparts import converted
from benchmarks.localisation.models.ports.restructured_weights import (
    CNN_LIST,
    PERCEPTRON_LIST,
    POINTS_LIST,
    SQUEEZE_LIST,
    packed_llama,
    packed_olmo,
    packed_starcoder2,
    renamed_modules,
    split_phi3,
)

_SIZES = {"vocab_size": VOCABULARY, "hidden_size": 48, "intermediate_size": 80, "num_attention_heads": 6}
_DECODER = {
    **_SIZES, "num_hidden_layers": 3, "num_key_value_heads": 2, "tie_word_embeddings": False, "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": THETA},
}  # fmt: skip
_GPT = {
    "vocab_size": VOCABULARY, "n_embd": 48, "n_layer": 3, "n_head": 6, "n_positions": 32, "attn_pdrop": 0.0,
    "embd_pdrop": 0.0, "resid_pdrop": 0.0,
}  # fmt: skip
_BERT = {**_SIZES, "num_hidden_layers": 3, "max_position_embeddings": 32, "pad_token_id": PADDING, **NO_DROPOUT}
_VIT = {
    "hidden_size": 48, "intermediate_size": 80, "num_attention_heads": 6, "image_size": 16, "num_hidden_layers": 3,
    "patch_size": 4, "num_labels": 10, **NO_DROPOUT,
}  # fmt: skip


def _port(
    name: str,
    build: Callable[[Sizes], nn.Module],
    baseline: str,
    batch: Callable[[torch.Generator], Batch],
    shifted: bool,
    layers: int = 3,
    **more: Any,
) -> Architecture:
    weights = partial(converted, name)
    return Architecture(lambda setup: build(sizes_of(setup, layers)), batch, {}, shifted, weights, baseline, **more)


BASELINES: dict[str, Architecture] = {
    "hf-qwen2": Architecture(transformer("Qwen2ForCausalLM", **_DECODER), next_tokens, EAGER, True),
    "hf-llama": Architecture(transformer("LlamaForCausalLM", **_DECODER), next_tokens, EAGER, True),
    "hf-qwen3": Architecture(
        transformer("Qwen3ForCausalLM", **{**_DECODER, "tie_word_embeddings": True}, head_dim=8), next_tokens, EAGER, True
    ),
    "hf-gpt2": Architecture(transformer("GPT2LMHeadModel", **_GPT), next_tokens, EAGER, True),
    "hf-mixtral": Architecture(
        transformer("MixtralForCausalLM", **_DECODER, head_dim=8, num_local_experts=4, output_router_logits=True),
        next_tokens, EAGER, True, auxiliary=0.1,
    ),
    "hf-gemma2": Architecture(
        transformer("Gemma2ForCausalLM", **{**_DECODER, "tie_word_embeddings": True}, head_dim=8, sliding_window=6),
        next_tokens, {}, True,
    ),
    "hf-bert": Architecture(transformer("BertForMaskedLM", **_BERT), padded_tokens, EAGER),
    "hf-vit": Architecture(transformer("ViTForImageClassification", **_VIT), images("pixel_values"), EAGER),
    "hf-t5": Architecture(
        transformer(
            "T5ForConditionalGeneration", vocab_size=VOCABULARY, d_model=48, d_kv=8, d_ff=80, num_layers=2, num_decoder_layers=2,
            num_heads=6, dropout_rate=0.0,
        ), translation, EAGER,
    ),
    "hf-whisper": Architecture(
        transformer(
            "WhisperForConditionalGeneration", vocab_size=VOCABULARY, num_mel_bins=16, d_model=48, encoder_layers=2,
            decoder_layers=2, encoder_attention_heads=6, decoder_attention_heads=6, encoder_ffn_dim=80, decoder_ffn_dim=80,
            max_source_positions=16, max_target_positions=24, dropout=0.0, pad_token_id=0, bos_token_id=1, eos_token_id=2,
            decoder_start_token_id=1, suppress_tokens=None, begin_suppress_tokens=None,
        ), speech, EAGER,
    ),
    "hf-mamba": Architecture(
        transformer("MambaForCausalLM", vocab_size=VOCABULARY, hidden_size=48, num_hidden_layers=3, state_size=8),
        next_tokens, {}, True,
    ),
    "hf-convnext": Architecture(
        transformer(
            "ConvNextForImageClassification", num_channels=3, patch_size=2, num_stages=2, hidden_sizes=[16, 32], depths=[2, 2],
            image_size=16, num_labels=10, layer_scale_init_value=1.0,
        ), images("pixel_values"), {},
    ),
}  # fmt: skip
PORTS: dict[str, Architecture] = {
    "megatron-qwen2": _port("megatron-qwen2", decoders.GPTModel, "hf-qwen2", next_tokens, True),
    "vllm-llama": _port("vllm-llama", decoders.FlatLlama, "hf-llama", next_tokens, True),
    "meta-llama": _port("meta-llama", decoders.MetaLlama, "hf-llama", renamed_arguments(next_tokens, input_ids="tokens"), True),
    "own-qwen3": _port("own-qwen3", decoders.OwnQwen3, "hf-qwen3", next_tokens, True),
    "nano-gpt2": _port("nano-gpt2", decoders.NanoGPT, "hf-gpt2", renamed_arguments(next_tokens, input_ids="idx"), True),
    "own-mixtral": _port("own-mixtral", mixtures.OwnMixtral, "hf-mixtral", next_tokens, True, auxiliary=0.1),
    "own-gemma2": _port(
        "own-gemma2", decoders.OwnGemma2, "hf-gemma2", renamed_arguments(next_tokens, input_ids="input_token_ids"), True
    ),
    "flat-bert": _port("flat-bert", encoders.FlatBert, "hf-bert", padded_tokens, False),
    "own-vit": _port("own-vit", encoders.OwnViT, "hf-vit", renamed_arguments(images("pixel_values"), pixel_values="pixels"), False),
    "own-t5": _port("own-t5", encoder_decoders.OwnT5, "hf-t5", translation, False, layers=2),
    "own-whisper": _port(
        "own-whisper", encoder_decoders.OwnWhisper, "hf-whisper", renamed_arguments(speech, input_features="mel", decoder_input_ids="tokens"),
        False, layers=2,
    ),
    "own-mamba": _port("own-mamba", state_space.OwnMamba, "hf-mamba", next_tokens, True),
    "own-convnext": _port(
        "own-convnext", lambda sizes: encoders.OwnConvNext(), "hf-convnext", renamed_arguments(images("pixel_values"), pixel_values="images"),
        False,
    ),
}  # fmt: skip
RESTRUCTURED: dict[str, Architecture] = {
    "llama-fused": Architecture(lambda setup: restructured.FusedDecoder(), next_ids, {}, True, packed_llama, "llama"),
    "phi3-split": Architecture(lambda setup: restructured.SplitDecoder(), next_ids, {}, True, split_phi3, "phi3"),
    "starcoder2-packed": Architecture(
        lambda setup: restructured.PackedDecoder(), next_ids, {}, True, packed_starcoder2, "starcoder2"
    ),
    "olmo-packed": Architecture(lambda setup: restructured.PlainDecoder(), next_ids, {}, True, packed_olmo, "olmo"),
    "cnn-sequence": Architecture(
        lambda setup: restructured.Sequence(), images("x"), {}, False, partial(renamed_modules, names=CNN_LIST), "cnn"
    ),
    "perceptron-stacked": Architecture(
        lambda setup: restructured.Stacked(), numbers, {}, False, partial(renamed_modules, names=PERCEPTRON_LIST), "perceptron"
    ),
    "squeeze-listed": Architecture(
        lambda setup: restructured.Listed(), images("x"), {}, False, partial(renamed_modules, names=SQUEEZE_LIST), "squeeze"
    ),
    "points-listed": Architecture(
        lambda setup: restructured.Points(), point_clouds, {}, False, partial(renamed_modules, names=POINTS_LIST), "points"
    ),
}  # fmt: skip
"""ports whose structure alone is another one"""
