"""All models and pairs of a set, `blind` or `sealed`."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from pathlib import Path

from .spec import Model, Pair, pairs_of


def folder(which: str) -> Path:
    """Where a set lies."""
    return Path(__file__).parents[1] / which


@functools.cache
def files(which: str) -> tuple[str, ...]:
    """The files of models of a set; each is named after its subject."""
    return tuple(sorted(found.name for found in pkgutil.iter_modules([str(folder(which) / "models")])))


@functools.cache
def models(which: str, file: str) -> tuple[Model, ...]:
    """The models of one file."""
    return importlib.import_module(f"benchmarks.{which}.models.{file}").MODELS


def pairs(which: str = "blind", some: tuple[str, ...] | None = None) -> list[Pair]:
    """All pairs of these files of models, of all when left out."""
    return [pair for file in some or files(which) for model in models(which, file) for pair in pairs_of(model)]
