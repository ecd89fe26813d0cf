"""The architectures of the ports, and of the models that they are ports of."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from benchmarks.localisation.models.architecture import Architecture
from benchmarks.localisation.models.batches import (
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
from benchmarks.localisation.models.ports.blocks import Sizes, sizes_of
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
