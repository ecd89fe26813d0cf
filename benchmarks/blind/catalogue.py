"""All models of the blind test set."""

from __future__ import annotations

import functools
import importlib

from .spec import Model, Pair, pairs_of

SUBJECTS = (
    "control",
    "generative",
    "physics",
    "graphs",
    "audio",
    "sequences",
    "vision",
    "training_tricks",
    "language",
    "ports_language",
)


@functools.cache
def _models(subject: str) -> tuple[Model, ...]:
    return importlib.import_module(f".models.{subject}", __package__).MODELS


def models() -> list[Model]:
    """All models."""
    return [model for subject in SUBJECTS for model in _models(subject)]


def names() -> list[str]:
    """The names of all models."""
    return [model.name for model in models()]


def model(name: str) -> Model:
    """The model of this name; imports no more subjects than it takes to find it."""
    return next(model for subject in SUBJECTS for model in _models(subject) if model.name == name)


def pairs() -> list[Pair]:
    """All pairs of all models."""
    return [pair for model in models() for pair in pairs_of(model)]
