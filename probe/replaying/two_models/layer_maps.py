"""Pairs of modules as a layer mapping."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from probe.adapters.base import adapter_for
from probe.errors import ConfigError


def mapping_of(given: Any, model_a: Any, model_b: Any) -> Any:
    """Return what `probe.compare` takes as a mapping.

    Parameters
    ----------
    given
        such a mapping, or pairs of modules or paths: a list of them, a dict, or an object whose ``map`` is one (PaDiff's LayerMap)

    Raises
    ------
    ConfigError
        a module is in neither model
    """
    if given is None or isinstance(given, (str, Path)):
        return given
    if isinstance(given, Mapping) and all(isinstance(name, str) for name in given):
        return given
    given = getattr(given, "map", given)
    pairs = list(given.items()) if isinstance(given, Mapping) else list(given) if isinstance(given, Iterable) else None
    if pairs is None or not all(isinstance(pair, (tuple, list)) and len(pair) == 2 for pair in pairs):
        raise ConfigError(
            f"layer_map={type(given).__name__} cannot be used; expected a layer mapping, or pairs of modules or paths"
        )
    return {"TopLayer": dict(_paths((model_a, model_b), *pair) for pair in pairs)}


def _paths(models: tuple[Any, Any], one: Any, other: Any) -> tuple[str, str]:
    """Return the paths of a pair in A and B, whichever of the two comes first. Raises ConfigError."""
    for pair in ((one, other), (other, one)):
        a, b = map(_path, models, pair)
        if a is not None and b is not None:
            return a, b
    raise ConfigError(
        f"layer_map pairs a {type(one).__name__} with a {type(other).__name__}, and they are not one of A and one of B"
    )


def _path(model: Any, module: Any) -> str | None:
    if isinstance(module, str) or isinstance(model, str):
        return module if isinstance(module, str) else None
    return next((each.path for each in adapter_for(model).modules(model) if each.module is module), None)
