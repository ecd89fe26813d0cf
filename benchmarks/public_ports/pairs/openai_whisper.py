"""openai-whisper against transformers: loose positions, activations inside Sequentials, a head that is the embedding's weight."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import benchmarks.public_ports.torchvision_operators  # noqa: F401  before anything imports torchvision
from benchmarks.public_ports import planting as plant
from benchmarks.public_ports.pair import Batch, Fault, Pair, Side
from benchmarks.public_ports.training import same

HIDDEN, HEADS, LAYERS, VOCABULARY, MELS, FRAMES, LENGTH = 32, 4, 2, 64, 8, 16, 12
STACKS = {"model.encoder.layers": "encoder.blocks", "model.decoder.layers": "decoder.blocks"}
EA, EB, DA, DB = (each for pair in STACKS.items() for each in pair)


def _transformers() -> nn.Module:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    return WhisperForConditionalGeneration(
        WhisperConfig(
            vocab_size=VOCABULARY, num_mel_bins=MELS, encoder_layers=LAYERS, encoder_attention_heads=HEADS,
            decoder_layers=LAYERS, decoder_attention_heads=HEADS, decoder_ffn_dim=4 * HIDDEN, encoder_ffn_dim=4 * HIDDEN,
            d_model=HIDDEN, max_source_positions=FRAMES, max_target_positions=LENGTH, pad_token_id=0, bos_token_id=1,
            eos_token_id=2, decoder_start_token_id=1, dropout=0.0,
        )
    )  # fmt: skip


def _whisper() -> nn.Module:
    from whisper.model import ModelDimensions, Whisper

    return Whisper(
        ModelDimensions(
            n_mels=MELS, n_audio_ctx=FRAMES, n_audio_state=HIDDEN, n_audio_head=HEADS, n_audio_layer=LAYERS,
            n_vocab=VOCABULARY, n_text_ctx=LENGTH, n_text_state=HIDDEN, n_text_head=HEADS, n_text_layer=LAYERS,
        )
    )  # fmt: skip


def _batch(index: int) -> Batch:
    generator = torch.Generator().manual_seed(index)
    tokens = torch.randint(3, VOCABULARY, (3, LENGTH + 1), generator=generator)
    return {
        "mel": torch.randn(3, MELS, 2 * FRAMES, generator=generator),
        "tokens": tokens[:, :-1],
        "wanted": tokens[:, 1:],
    }


def _loss_a(model: nn.Module, batch: Batch) -> Tensor:
    logits = model(input_features=batch["mel"], decoder_input_ids=batch["tokens"], use_cache=False).logits
    return F.cross_entropy(logits.flatten(0, 1), batch["wanted"].flatten())


def _loss_b(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch["mel"], batch["tokens"]).flatten(0, 1), batch["wanted"].flatten())


def _smoothed(model: nn.Module, batch: Batch) -> Tensor:
    logits = model(batch["mel"], batch["tokens"]).flatten(0, 1)
    return F.cross_entropy(logits, batch["wanted"].flatten(), label_smoothing=0.1)


def _scaled(factor: float) -> Any:
    return lambda attend, q, k, v, mask=None: attend(q * factor, k, v, mask)


PAIR = Pair(
    name="openai_whisper",
    a=Side(("transformers 5.23.0",), _transformers, _loss_a),
    b=Side(("openai-whisper 20250625",), _whisper, _loss_b),
    batch=_batch,
    weights={
        "encoder.positional_embedding": (same, "model.encoder.embed_positions.weight"),
        "decoder.positional_embedding": (same, "model.decoder.embed_positions.weight"),
    },
    faults=(
        Fault("norm_eps", plant.attribute(f"{EB}.1.mlp_ln", eps=1e-3), (f"{EA}.1.final_layer_norm",), ("forward",)),
        Fault("cross_norm_eps", plant.attribute(f"{DB}.0.cross_attn_ln", eps=1e-3), (f"{DA}.0.encoder_attn_layer_norm",), ("forward",)),
        Fault("gelu_tanh", plant.attribute(f"{DB}.1.mlp.1", approximate="tanh"), (f"{DA}.1.activation_fn",), ("forward",)),
        Fault("scaled_twice", plant.calls(f"{EB}.0.attn", "qkv_attention", _scaled((HIDDEN // HEADS) ** -0.25)), (f"{EA}.0.self_attn",), ("forward",)),
        Fault("heads", plant.attribute(f"{DB}.1.cross_attn", n_head=2), (f"{DA}.1.encoder_attn",), ("forward",)),
        Fault("no_mask", plant.calls(f"{DB}.0.attn", "qkv_attention", lambda attend, q, k, v, mask=None: attend(q, k, v)), (f"{DA}.0.self_attn",), ("forward",)),
        Fault("position_offset", plant.weight("decoder", lambda x: x.roll(1, 0), "positional_embedding"), ("model.decoder.embed_positions",), ("init",)),
        Fault("sines", plant.weight("encoder", lambda x: x.roll(HIDDEN // 2, 1), "positional_embedding"), ("model.encoder.embed_positions",), ("init",)),
        Fault("no_bias", plant.weight(f"{EB}.1.attn.value", lambda x: 0 * x, "bias"), (f"{EA}.1.self_attn.v_proj",), ("init",)),
        Fault("wrong_layer", plant.weights_of(f"{DB}.1.cross_attn.key", f"{DB}.0.cross_attn.key"), (f"{DA}.1.encoder_attn.k_proj",), ("init",)),
        Fault("encoder_unnormed", plant.forward("encoder.ln_post", lambda forward, x: x * 1.0), ("model.encoder.layer_norm",), ("forward",)),
        Fault("query_for_value", plant.calls(f"{DB}.1.attn", "qkv_attention", lambda attend, q, k, v, mask=None: attend(k, q, v, mask)), (f"{DA}.1.self_attn",), ("forward",)),
        Fault("detached_encoder", plant.detached("encoder"), ("model.encoder", "model.encoder.layer_norm"), ("backward", "gradient")),
        Fault("residual", plant.forward(f"{DB}.0.mlp", lambda forward, x: forward(x) + x), (f"{DA}.0.fc2", f"{DA}.0"), ("forward",)),
        Fault("label_smoothing", plant.loss_by(lambda old, model, batch: _smoothed(model, batch)), ("",), ("loss",)),
        Fault("learning_rate", plant.optimizer(lr=1.1e-3), ("",), ("update",)),
    ),
)  # fmt: skip
