"""What a file or a recording says, before it is known what it means."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from probe.settings.setting import Dialect, Part
from probe.settings.table import OWN_SECTIONS


class Form(enum.StrEnum):
    """What a configuration stands in."""

    CONFIG_JSON = "config.json"
    ARGUMENTS_JSON = "arguments as JSON"
    YAML = "YAML"
    PRINTED = "printed arguments"
    SHELL = "shell script"
    RECORDING = "recording"


@dataclass(frozen=True, slots=True)
class Source:
    """One side's configuration, as it is written."""

    path: str
    form: Form
    dialect: Dialect
    keys: Mapping[str, Any]
    """by name, with dots between a section and what is in it"""
    parts: frozenset[Part] = frozenset()
    """what it is of: a setting of these that is missing has its default"""
    variables: Mapping[str, str] = field(default_factory=dict)
    """environment variables that it sets, or that were set"""
    recorded: Mapping[str, Any] = field(default_factory=dict)
    """facts of a recording's environment, and of its optimizers behind ``group.``"""
    knows_variables: bool = False
    """a variable that is not among them was not set"""
    also: tuple[Dialect, ...] = ()
    """whose names are looked for too, where it is not sure whose it uses"""
    unknown: frozenset[str] = frozenset()
    """names that it gives values that only a shell knows"""
    is_complete: bool = True
    """no further entries come from what only a shell knows"""

    @property
    def is_model(self) -> bool:
        """Return True if it says what the model is."""
        return Part.MODEL in self.parts


_DEEPEST = 12
"""sections inside of sections"""


def flattened(values: Mapping[Any, Any], before: str = "", depth: int = 0) -> dict[str, Any]:
    """Return the entries of nested dicts by their names with dots; empty ones, lists and what lies too deep stay whole."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{before}.{key}" if before else str(key)
        if isinstance(value, Mapping) and value and depth < _DEEPEST:
            found |= flattened(value, name, depth + 1)
        else:
            found[name] = value
    return found


class Names:
    """Finds keys by the ends of their names; of several the one in the fewest sections."""

    def __init__(self, keys: Mapping[str, Any]) -> None:
        self._keys = keys
        self._places: dict[str, tuple[int, str]] = {}
        for key in keys:
            parts = key.split(".")
            for depth in range(len(parts)):
                name = ".".join(parts[depth:])
                known = self._places.get(name)
                if known is None or depth < known[0]:
                    self._places[name] = depth, key
                if parts[depth] in OWN_SECTIONS:
                    break

    def find(self, name: str) -> str | None:
        """Return the whole name of a key, None where there is none."""
        place = self._places.get(name)
        return None if place is None else place[1]

    def get(self, name: str) -> Any:
        """Return the value of a key, None where there is none."""
        place = self._places.get(name)
        return None if place is None else self._keys[place[1]]
