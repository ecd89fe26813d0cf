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
        such a mapping, or pairs of modules or paths: a list of them, or a dict

    Raises
    ------
    ConfigError
        a module is in neither model
    """
    if given is None or isinstance(given, (str, Path)):
        return given
    if isinstance(given, Mapping) and all(isinstance(name, str) for name in given):
        return given
    pairs = list(given.items()) if isinstance(given, Mapping) else list(given) if isinstance(given, Iterable) else None
    if pairs is None or not all(isinstance(pair, (tuple, list)) and len(pair) == 2 for pair in pairs):
        raise ConfigError(
            f"layer_map={type(given).__name__} cannot be used; expected a layer mapping, or pairs of modules or paths"
        )
    return {"TopLayer": {_path(model_a, a): _path(model_b, b) for a, b in pairs}}


def _path(model: Any, module: Any) -> str:
    if isinstance(module, str):
        return module
    found = (
        []
        if isinstance(model, str)
        else [each.path for each in adapter_for(model).modules(model) if each.module is module]
    )
    if not found:
        raise ConfigError(
            f"layer_map names a {type(module).__name__} that is not in its model; expected pairs (module of A, module of B)"
        )
    return found[0]
