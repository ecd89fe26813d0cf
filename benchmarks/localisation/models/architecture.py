"""What an architecture is, and how those of ``transformers.yaml`` are built."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor, nn

from benchmarks.localisation.models import batches
from benchmarks.localisation.models.batches import Batch
from benchmarks.localisation.pairs.pair import Setup

EAGER: dict[str, Any] = {"attention": "eager"}
SPLIT: dict[str, Any] = {"split": 2}
CHANNELS_LAST: dict[str, Any] = {"channels_last": True}
DOUBLED: dict[str, Any] = {"doubled": True}


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
    """converts the baseline's weights to those of this structure"""
    baseline: str = ""
    """the architecture of which this one is a port"""
    auxiliary: float = 0.0
    """the factor of the auxiliary loss that the model returns; 0 for none"""


def transformer(name: str, **options: Any) -> Callable[[Setup], nn.Module]:
    """Return a function that builds a model of transformers.

    Parameters
    ----------
    name
        the model's class
    options
        fields of its configuration
    """

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


def _of_transformers() -> dict[str, Architecture]:
    found = {}
    models = yaml.safe_load(Path(__file__).with_name("transformers.yaml").read_text(encoding="utf-8"))["models"]
    for name, row in models.items():
        function, *words = row.pop("batch").split()
        batch, argument = getattr(batches, function), [int(word) if word.isdigit() else word for word in words]
        build = transformer(row.pop("class"), **row.pop("config"))
        found[name] = Architecture(build, batch(*argument) if argument else batch, row.pop("noise", {}), **row)
    return found


TRANSFORMERS = _of_transformers()
