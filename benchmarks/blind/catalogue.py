"""All models of the blind test set.

Modules whose name begins with `across_` import no framework when they are imported: their sides run in processes of
different frameworks, and paddle must not be imported before mindspore.
"""

from __future__ import annotations

import functools
import importlib

from .spec import Model, Pair, pairs_of

SUBJECTS = (
    "across_paddle",
    "across_mindspore",
    "control",
    "generative",
    "physics",
    "graphs",
    "audio",
    "sequences",
    "vision",
    "tabular",
    "training_tricks",
    "language",
    "multimodal",
    "series",
    "ports_language",
    "ports_vision",
    "ports_torch",
    "public",
)


@functools.cache
def _models(subject: str) -> tuple[Model, ...]:
    import pathlib
    if not (pathlib.Path(__file__).parent / "models" / f"{subject}.py").exists(): return ()
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


def is_public(name: str) -> bool:
    """Whether a model needs the packages of requirements.txt."""
    return model(name).public


def pairs() -> list[Pair]:
    """All pairs of all models."""
    return [pair for model in models() for pair in pairs_of(model)]
