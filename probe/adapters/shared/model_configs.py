"""A model's own configuration: number of heads, eps, …"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from probe.adapters.shared.user_objects import attribute

_SIMPLE = (str, int, float, bool, list, tuple, dict, type(None))
_LONG = 2000


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
        return {
            str(key): value
            for key, value in values.items()
            if isinstance(value, _SIMPLE) and not str(key).startswith("_") and len(str(value)) < _LONG
        }
    except Exception:  # noqa: BLE001  an object of the user's, which may be anything
        return {}


def _values_of(config: Any) -> dict[Any, Any]:
    to_dict = attribute(config, "to_dict")
    return config if isinstance(config, dict) else to_dict() if callable(to_dict) else vars(config)
