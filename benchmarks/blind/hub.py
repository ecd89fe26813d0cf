"""Frames for trainings of transformers' models, with random weights and small configurations."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import yaml

from .training import Training, batches, ids, lively, next_token_loss, token_loss


def causal(
    name: str, make: Callable[[Any], Any], words: int = 50, shape: tuple[int, int] = (3, 12), **options: Any
) -> Training:
    """A causal language model: `make` gets the transformers module."""

    def data(g):
        seen = ids(g, *shape, below=words - 3) + 3
        return {"tokens": seen, "labels": seen}

    def predict(model, batch):
        return model(input_ids=batch["tokens"], use_cache=False)

    return Training(made(make), predict, next_token_loss, batches(data, name), **options)


def masked(
    name: str,
    make: Callable[[Any], Any],
    words: int = 50,
    shape: tuple[int, int] = (3, 16),
    padded: bool = True,
    **options: Any,
) -> Training:
    """A masked language model with padding in one row."""

    def data(g):
        seen = ids(g, *shape, below=words - 3) + 3
        mask = torch.ones_like(seen)
        if padded:
            mask[-1, -4:] = 0
        labels = torch.where(torch.rand(shape, generator=g) < 0.4, seen, -100)
        return {"tokens": seen * mask, "mask": mask, "labels": labels}

    def predict(model, batch):
        return model(input_ids=batch["tokens"], attention_mask=batch["mask"] if padded else None)

    return Training(made(make), predict, token_loss, batches(data, name), **options)


def of(name: str) -> Callable[[Any], Any]:
    """What makes a model of ``configurations.yaml``, given the transformers module."""

    def make(transformers: Any) -> Any:
        row = yaml.safe_load(Path(__file__).with_name("configurations.yaml").read_text(encoding="utf-8"))[name]
        configuration = getattr(transformers, row["configuration"])(**row["values"])
        return getattr(transformers, row["class"])(configuration)

    return make


def made(make: Callable[[Any], Any]) -> Any:
    """A model in training mode, with eager attention and lively weights."""
    import transformers

    transformers.logging.set_verbosity_error()
    model = make(transformers)
    if hasattr(model, "set_attn_implementation"):
        model.set_attn_implementation("eager")
    return lively(model).train()


def attention(kind: str) -> Callable[[Training], None]:
    """Another implementation of attention."""
    return lambda training: training.model.set_attn_implementation(kind)


def checkpointed(training: Training) -> None:
    """Activation checkpointing as transformers switches it on."""
    training.model.gradient_checkpointing_enable({"use_reentrant": False})


def rotary_of(name: str) -> tuple[str, str]:
    """Where a model's rotary function lives."""
    return f"transformers.models.{name}.modeling_{name}", "apply_rotary_pos_emb"


SMALL = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
