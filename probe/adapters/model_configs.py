"""A model's own configuration: number of heads, eps, …"""

from __future__ import annotations

from collections.abc import Iterable

_SIMPLE = (str, int, float, bool, list, tuple, dict, type(None))
_LONG = 2000


def config_of(modules: Iterable[object]) -> dict[str, object]:
    """Return the plain values of the first attribute ``config`` of a module that has any."""
    for module in modules:
        facts = _plain_facts(getattr(module, "config", None))
        if facts:
            return facts
    return {}


def _plain_facts(config: object) -> dict[str, object]:
    """Return the plain values of a configuration object (a dict, a dataclass, a transformers or PaddleNLP config)."""
    if config is None or isinstance(config, (str, int, float, bool, type)):
        return {}
    to_dict = getattr(config, "to_dict", None)
    values = config if isinstance(config, dict) else to_dict() if callable(to_dict) else getattr(config, "__dict__", {})
    return {
        str(key): value
        for key, value in values.items()
        if isinstance(value, _SIMPLE) and not str(key).startswith("_") and len(str(value)) < _LONG
    }
