"""A model's own configuration: number of heads, eps, …"""

from __future__ import annotations

import enum
import types
from collections.abc import Iterable
from typing import Any

from probe.adapters.shared.user_objects import attribute

_SIMPLE = (str, int, float, bool, list, tuple, dict, type(None))
_LONG = 2000
_DTYPES = ("dtype", "datatype", "float", "bfloat", "int")
"""classes of dtypes, in small letters"""
_NONE_OF_THEM = object()


def config_of(modules: Iterable[object]) -> dict[str, object]:
    """Return the plain values of the first attribute ``config`` of a module that has any."""
    for module in modules:
        facts = _plain_facts(attribute(module, "config"))
        if facts:
            return facts
    return {}


def _plain_facts(config: object) -> dict[str, object]:
    """Return the plain values of a configuration object (a dict, a dataclass, a transformers or PaddleNLP config)."""
    if config is None or isinstance(config, (str, int, float, bool, type)):
        return {}
    try:
        values = _values_of(config)
        plain = {str(key): _plain(value) for key, value in values.items() if not str(key).startswith("_")}
        return {key: value for key, value in plain.items() if value is not _NONE_OF_THEM and len(str(value)) < _LONG}
    except Exception:  # noqa: BLE001  an object of the user's, which may be anything
        return {}


def _plain(value: Any) -> Any:
    """Return a plain value as it is, a dtype and an enumeration's member by their text, a function by its name."""
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, _SIMPLE):
        return value
    if type(value).__name__.lower() in _DTYPES:
        return str(value)
    if isinstance(value, (types.FunctionType, types.BuiltinFunctionType)):
        return value.__name__
    return _NONE_OF_THEM


def _values_of(config: Any) -> dict[Any, Any]:
    to_dict = attribute(config, "to_dict")
    return config if isinstance(config, dict) else to_dict() if callable(to_dict) else vars(config)
