"""The architectures: how each is built, what it is given, and what two right trainings of it may differ in.

Weights and data are drawn per name from a fixed seed: a fault that adds or removes a module does not shift others.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.localisation import networks
from benchmarks.localisation.construction import (
    DECODER,
    SIZES,
    VOCABULARY,
    Architecture,
    Batch,
    columns,
    game,
    images,
    labelled,
    masked_tokens,
    next_of,
    next_tokens,
    packed_layers,
    pictures,
    renamed,
    speech,
    tokens,
    transformer,
    translation,
    vectors,
)
from benchmarks.localisation.fifth_architectures import FIFTH_ARCHITECTURES, FIFTH_MAPPINGS
from benchmarks.localisation.fourth_architectures import FOURTH_ARCHITECTURES, FOURTH_MAPPINGS
from benchmarks.localisation.pairs.pair import Setup
from benchmarks.localisation.seventh_architectures import SEVENTH_ARCHITECTURES
from benchmarks.localisation.seventh_mappings import SEVENTH_MAPPINGS
from benchmarks.localisation.sixth_architectures import SIXTH_ARCHITECTURES, SIXTH_MAPPINGS

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "autocast": torch.float32}
_KEPT = re.compile(r"A_log$|\.D$|dt_proj\.bias$")
"""parameters whose initial values have a meaning"""


def build(setup: Setup) -> nn.Module:
    """Return the model of a setup with its weights, without its faults."""
    architecture = ARCHITECTURES[setup.architecture]
    torch.manual_seed(setup.seed)
    model = architecture.build(setup).train()
    if architecture.weights_of is not None:
        other = build(Setup(architecture.baseline, seed=setup.seed, width=setup.width, layers=setup.layers))
        model.load_state_dict(architecture.weights_of(other.state_dict()))
    else:
        _draw_weights(model, setup.seed)
    if setup.rounded_to:
        model.to(DTYPES[setup.rounded_to])
    model.to(DTYPES[setup.dtype])
    if setup.channels_last:
        model.to(memory_format=torch.channels_last)
    return model


def batch(setup: Setup, step: int) -> Batch:
    """Return what the step is given."""
    generator = torch.Generator().manual_seed(1000 * setup.seed + step)
    found = ARCHITECTURES[setup.architecture].batch(generator)
    first, dtype = DTYPES[setup.rounded_to or setup.dtype], DTYPES[setup.dtype]
    found = {key: value.to(first).to(dtype) if value.is_floating_point() else value for key, value in found.items()}
    if setup.channels_last:
        found = {k: v.to(memory_format=torch.channels_last) if v.dim() == 4 else v for k, v in found.items()}
    return found


@torch.no_grad()
def _draw_weights(model: nn.Module, seed: int) -> None:
    for name, parameter in model.named_parameters():
        if not _KEPT.search(name):
            parameter.copy_(_weight(name, parameter, seed))


def _weight(name: str, parameter: Tensor, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()) + seed)
    noise = torch.randn(parameter.shape, generator=generator)
    if parameter.dim() < 2:
        return 0.1 * noise + (0.0 if name.endswith("bias") or "bias_" in name else 1.0)
    is_table = re.search(r"embed|shared|wte|wpe|tables|relative|position|cls_token", name)
    if is_table:  # of unit variance at the models' own widths; wider ones would saturate every softmax
        return noise * min(1.0, 32 / parameter.shape[-1]) ** 0.5
    fan_in = parameter[0].numel() if parameter.dim() != 3 or "conv" in name else parameter.shape[-1]
    return noise * fan_in**-0.5


def _fused(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Pack Llama's weights as `FusedDecoder` has them."""
    whole = {
        "embedding.weight": weights["model.embed_tokens.weight"],
        "final_norm.weight": weights["model.norm.weight"],
        "output.weight": weights["lm_head.weight"],
    }
    return whole | packed_layers(weights, _FUSED_NAMES)


_FUSED_NAMES = {
    "norm1": "input_layernorm",
    "norm2": "post_attention_layernorm",
    "attention.proj": "self_attn.o_proj",
    "down": "mlp.down_proj",
}
_SEQUENCE_NAMES = {
    "conv1": "features.0",
    "bn1": "features.1",
    "act1": "features.2",
    "pool1": "features.3",
    "conv2": "features.4",
    "bn2": "features.5",
    "act2": "features.6",
    "pool2": "features.7",
    "drop": "features.9",
    "head": "classifier",
}


MAPPINGS: dict[str, Mapping[str, Any]] = {
    "llama-fused": {
        "LlamaForCausalLM": {
            "model.embed_tokens": "embedding",
            "model.rotary_emb": "rotary",
            "model.layers": "blocks",
            "model.norm": "final_norm",
            "lm_head": "output",
        },
        "LlamaDecoderLayer": {
            "input_layernorm": "norm1",
            "post_attention_layernorm": "norm2",
            "self_attn": "attention",
            "self_attn.o_proj": "attention.proj",
            "mlp.down_proj": "down",
        },
    },
    "cnn-sequence": {"ConvNet": _SEQUENCE_NAMES},
    **FOURTH_MAPPINGS,
    **FIFTH_MAPPINGS,
    **SIXTH_MAPPINGS,
    **SEVENTH_MAPPINGS,
}
"""for each architecture that is another structure of another one"""
_EAGER, _SPLIT, _LAST = {"attention": "eager"}, {"split": 2}, {"channels_last": True}

ARCHITECTURES: dict[str, Architecture] = {
    "qwen2": Architecture(transformer("Qwen2ForCausalLM", **DECODER), next_tokens, _EAGER, True),
    "llama": Architecture(transformer("LlamaForCausalLM", **DECODER), next_tokens, _EAGER, True),
    "mixtral": Architecture(
        transformer("MixtralForCausalLM", **DECODER, num_local_experts=4), next_tokens, _EAGER, True
    ),
    "gpt2": Architecture(
        transformer(
            "GPT2LMHeadModel", vocab_size=VOCABULARY, n_embd=32, n_layer=3, n_head=4, n_positions=32,
            attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0,
        ), next_tokens, _EAGER, True,
    ),
    "bert": Architecture(
        transformer(
            "BertForMaskedLM", **SIZES, num_hidden_layers=3, max_position_embeddings=32,
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        ), masked_tokens, _EAGER,
    ),
    "vit": Architecture(
        transformer(
            "ViTForImageClassification", hidden_size=32, intermediate_size=64, num_attention_heads=4, image_size=16,
            num_hidden_layers=3, patch_size=4, num_labels=10, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        ), images("pixel_values"), _EAGER,
    ),
    "t5": Architecture(
        transformer(
            "T5ForConditionalGeneration", vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=64, num_layers=2,
            num_decoder_layers=2, num_heads=4, dropout_rate=0.0,
        ), translation, _EAGER,
    ),
    "whisper": Architecture(
        transformer(
            "WhisperForConditionalGeneration", vocab_size=VOCABULARY, num_mel_bins=16, d_model=32, encoder_layers=2,
            decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=64,
            decoder_ffn_dim=64, max_source_positions=16, max_target_positions=24, dropout=0.0, pad_token_id=0,
            bos_token_id=1, eos_token_id=2, decoder_start_token_id=1, suppress_tokens=None, begin_suppress_tokens=None,
        ), speech, _EAGER,
    ),
    "mamba": Architecture(
        transformer("MambaForCausalLM", vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=3, state_size=8),
        next_tokens, _SPLIT, True,
    ),
    "cnn": Architecture(lambda setup: networks.ConvNet(), images("x"), _LAST),
    "resnet": Architecture(lambda setup: networks.ResNet(), images("x"), _LAST),
    "lstm": Architecture(lambda setup: networks.Tagger(), tokens, _SPLIT),
    "unet": Architecture(lambda setup: networks.UNet(), pictures, _LAST),
    "gan": Architecture(
        lambda setup: nn.ModuleList([networks.Generator(), networks.Discriminator()]), game, {"doubled": True}
    ),
    "encoder": Architecture(lambda setup: networks.Encoder(), labelled, {"doubled": True}),
    "recommender": Architecture(lambda setup: networks.Recommender(), columns, _SPLIT),
    "vae": Architecture(lambda setup: networks.Autoencoder(), vectors, _SPLIT),
    "qwen3": Architecture(transformer("Qwen3ForCausalLM", **DECODER, head_dim=8), next_tokens, _EAGER, True),
    "gemma2": Architecture(
        transformer("Gemma2ForCausalLM", **DECODER, head_dim=8, sliding_window=8), next_tokens, _SPLIT, True
    ),
    "opt": Architecture(
        transformer(
            "OPTForCausalLM", vocab_size=VOCABULARY, hidden_size=32, ffn_dim=64, num_attention_heads=4, num_hidden_layers=3,
            max_position_embeddings=32, word_embed_proj_dim=32, dropout=0.0,
        ), next_tokens, _EAGER, True,
    ),
    "neox": Architecture(
        transformer("GPTNeoXForCausalLM", **SIZES, num_hidden_layers=3, max_position_embeddings=32), next_tokens, _EAGER, True
    ),
    "bart": Architecture(
        transformer(
            "BartForConditionalGeneration", vocab_size=VOCABULARY, d_model=32, encoder_layers=2, decoder_layers=2,
            encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64,
            max_position_embeddings=32, dropout=0.0,
        ), translation, _EAGER,
    ),
    "distilbert": Architecture(
        transformer(
            "DistilBertForMaskedLM", vocab_size=VOCABULARY, dim=32, hidden_dim=64, n_heads=4, n_layers=3,
            max_position_embeddings=32, dropout=0.0, attention_dropout=0.0,
        ), masked_tokens, _EAGER,
    ),
    "convnext": Architecture(
        transformer(
            "ConvNextForImageClassification", num_channels=3, patch_size=2, num_stages=2, hidden_sizes=[16, 32], depths=[2, 2],
            image_size=16, num_labels=10, layer_scale_init_value=1.0,
        ), images("pixel_values"), _LAST,
    ),
    "gru": Architecture(lambda setup: networks.Recurrent(), labelled, _SPLIT),
    "mixer": Architecture(lambda setup: networks.Mixer(), images("x"), {"doubled": True}),
    "llama-fused": Architecture(
        lambda setup: networks.FusedDecoder(), next_of, {}, True, _fused, "llama"
    ),
    "cnn-sequence": Architecture(lambda setup: networks.Sequence(), images("x"), {}, False, partial(renamed, names=_SEQUENCE_NAMES), "cnn"),
    **FOURTH_ARCHITECTURES,
    **FIFTH_ARCHITECTURES,
    **SIXTH_ARCHITECTURES,
    **SEVENTH_ARCHITECTURES,
}  # fmt: skip
FURTHER = ("qwen3", "gemma2", "opt", "neox", "bart", "distilbert", "convnext", "gru", "mixer")
"""those of the held-out third"""
