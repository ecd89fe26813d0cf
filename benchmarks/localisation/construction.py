"""What architectures are made of: how models of transformers are built, and what models are given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.localisation.pairs.pair import Setup

VOCABULARY = 96
ROWS = 4
"""samples in a step's batch"""
PADDING = 1
"""the id of padding tokens"""

Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Architecture:
    """One kind of model."""

    build: Callable[[Setup], nn.Module]
    batch: Callable[[torch.Generator], Batch]
    """the model's arguments by name, and ``target``"""
    noise: Mapping[str, Any]
    """fields of a `Setup` in which side B of a faulty pair differs besides its fault"""
    shifted: bool = False
    """the target of a token is the next one"""
    weights_of: Callable[[Mapping[str, Tensor]], dict[str, Tensor]] | None = field(default=None)
    """makes this structure's weights from those of the baseline's"""
    baseline: str = ""
    auxiliary: float = 0.0
    """by which the auxiliary loss that the model returns is multiplied; 0 for none"""


def token_ids(generator: torch.Generator, length: int = 16) -> Tensor:
    return torch.randint(2, VOCABULARY, (ROWS, length), generator=generator)


def padding_mask(length: int) -> Tensor:
    mask = torch.ones(ROWS, length, dtype=torch.long)
    mask[1, length - 5 :] = 0
    return mask


def next_tokens(generator: torch.Generator) -> Batch:
    ids = token_ids(generator)
    return {"input_ids": ids, "target": ids}


def masked_tokens(generator: torch.Generator) -> Batch:
    ids, mask = token_ids(generator), padding_mask(16)
    target = torch.where(torch.rand(ids.shape, generator=generator) < 0.3, ids, -100).where(mask.bool(), -100)
    return {"input_ids": ids, "attention_mask": mask, "target": target}


def padded_tokens(generator: torch.Generator) -> Batch:
    """Return masked tokens with padding where the mask says so."""
    found = masked_tokens(generator)
    return {**found, "input_ids": found["input_ids"].masked_fill(found["attention_mask"] == 0, PADDING)}


def padded_next_tokens(generator: torch.Generator) -> Batch:
    ids, mask = token_ids(generator), padding_mask(16)
    ids = ids.masked_fill(mask == 0, PADDING)
    return {"input_ids": ids, "attention_mask": mask, "target": ids.masked_fill(mask == 0, -100)}


def translation(generator: torch.Generator) -> Batch:
    target = token_ids(generator, 10)
    target[2, 7:] = -100
    given = torch.roll(target, 1, 1).clamp_min(0)
    given[:, 0] = 0
    mask = padding_mask(16)
    return {"input_ids": token_ids(generator), "attention_mask": mask, "decoder_input_ids": given, "target": target}


def padded_translation(generator: torch.Generator) -> Batch:
    found = translation(generator)
    source = found["input_ids"].masked_fill(found["attention_mask"] == 0, PADDING)
    given = torch.roll(found["target"], 1, 1)
    return {**found, "input_ids": source, "decoder_input_ids": given.masked_fill(given < 0, PADDING)}


def speech(generator: torch.Generator) -> Batch:
    target = token_ids(generator, 10)
    given = torch.roll(target, 1, 1)
    return {"input_features": normal(generator, ROWS, 16, 32), "decoder_input_ids": given, "target": target}


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=generator)


def square_pictures(side: int) -> Callable[[torch.Generator], Batch]:
    def draw(generator: torch.Generator) -> Batch:
        target = torch.randint(10, (ROWS,), generator=generator)
        return {"pixel_values": normal(generator, ROWS, 3, side, side), "target": target}

    return draw


def images(name: str) -> Callable[[torch.Generator], Batch]:
    def draw(generator: torch.Generator) -> Batch:
        return {name: normal(generator, ROWS, 3, 16, 16), "target": torch.randint(10, (ROWS,), generator=generator)}

    return draw


def pictures(generator: torch.Generator) -> Batch:
    return {"x": normal(generator, ROWS, 3, 16, 16), "target": normal(generator, ROWS, 3, 16, 16)}


def tokens(generator: torch.Generator) -> Batch:
    return {"ids": token_ids(generator), "target": token_ids(generator)}


def labelled(generator: torch.Generator) -> Batch:
    return {"ids": token_ids(generator), "target": torch.randint(10, (ROWS,), generator=generator)}


def columns(generator: torch.Generator) -> Batch:
    categories = torch.randint(40, (ROWS, 3, 4), generator=generator)
    target = torch.randint(10, (ROWS,), generator=generator)
    return {"numbers": normal(generator, ROWS, 13), "categories": categories, "target": target}


def vectors(generator: torch.Generator) -> Batch:
    x = normal(generator, ROWS, 48)
    return {"x": x, "noise": normal(generator, ROWS, 8), "target": x}


def game(generator: torch.Generator) -> Batch:
    return {"noise": normal(generator, ROWS, 8), "real": normal(generator, ROWS, 3, 8, 8)}


def next_of(generator: torch.Generator) -> Batch:
    ids = token_ids(generator)
    return {"ids": ids, "target": ids}


SIZES = {"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4}
DECODER = {
    **SIZES,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-6,
}


def transformer(name: str, **options: Any) -> Callable[[Setup], nn.Module]:
    """Return what builds a model of transformers by its class's name."""

    def construct(setup: Setup) -> nn.Module:
        import transformers

        cls = getattr(transformers, name)
        attention = {"attn_implementation": setup.attention} if cls._supports_sdpa else {}
        if name.startswith("Gemma2"):  # caps its scores, which sdpa cannot
            attention = {"attn_implementation": "eager"}
        config = cls.config_class(**_sized(options, setup), **attention)
        config.use_cache = False
        return cls(config)

    return construct


_WIDTHS = (
    "hidden_size",
    "intermediate_size",
    "n_embd",
    "d_model",
    "d_kv",
    "d_ff",
    "encoder_ffn_dim",
    "decoder_ffn_dim",
)
_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "num_decoder_layers", "encoder_layers", "decoder_layers")


def _sized(options: Mapping[str, Any], setup: Setup) -> dict[str, Any]:
    sized = {name: value * setup.width if name in _WIDTHS else value for name, value in options.items()}
    return sized | {name: setup.layers for name in options if setup.layers and name in _LAYERS}


def renamed(weights: Mapping[str, Tensor], names: Mapping[str, str]) -> dict[str, Tensor]:
    """Return weights whose outermost modules have other names."""
    parts = {name: name.split(".", 1) for name in weights}
    return {f"{names[first]}.{rest}": weights[name] for name, (first, rest) in parts.items()}


def packed_layers(weights: Mapping[str, Tensor], names: Mapping[str, str]) -> dict[str, Tensor]:
    """Return the weights of three layers of a Llama as a decoder has them that packs query, key and value, and gate and up."""
    found = {}
    for layer in range(3):
        old, new = f"model.layers.{layer}", f"blocks.{layer}"
        packed = [weights[f"{old}.self_attn.{part}_proj.weight"] for part in "qkv"]
        gates = [weights[f"{old}.mlp.{part}_proj.weight"] for part in ("gate", "up")]
        found |= {f"{new}.attention.qkv.weight": torch.cat(packed), f"{new}.gate_up.weight": torch.cat(gates)}
        for name, source in names.items():
            found[f"{new}.{name}.weight"] = weights[f"{old}.{source}.weight"]
    return found
