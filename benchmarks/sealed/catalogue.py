"""All models of the sealed set."""

from __future__ import annotations

import functools
import importlib
import pkgutil

from ..blind.spec import Model, Pair, pairs_of
from . import models as folder
from .precision import precise

FILES = tuple(sorted(file.name for file in pkgutil.iter_modules(folder.__path__)))


@functools.cache
def of(file: str) -> tuple[Model, ...]:
    """The models of one file; it is named after its subject."""
    return tuple(map(precise, importlib.import_module(f".models.{file}", __package__).MODELS))


def pairs(files: tuple[str, ...] = FILES) -> list[Pair]:
    """All pairs of these files."""
    return [pair for file in files for model in of(file) for pair in pairs_of(model)]
