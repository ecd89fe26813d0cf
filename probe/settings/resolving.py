"""From what a configuration says to the settings of the table: by its names, by its model's name, by defaults, by arithmetic."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from probe.settings.setting import Dialect, Kind, Setting
from probe.settings.source import Form, Names, Source
from probe.settings.table import BY_NAME, TABLE
from probe.settings.table.models import MINDFORMERS_TYPES, MODELS
from probe.settings.values import MISSING, Unreadable, made, normalised

_TYPES = ("model_type",)
_MINDFORMERS_TYPE = "model_config.type"


class Origin(enum.StrEnum):
    """Where a value comes from."""

    GIVEN = "given"
    DEFAULT = "default"
    """of a key that is missing"""
    IMPLIED = "implied"
    """by the model's name"""
    DERIVED = "derived"
    """from others"""


@dataclass(frozen=True, slots=True)
class Value:
    """A setting on one side."""

    value: Any
    """normalised"""
    shown: str
    """as the configuration has it"""
    name: str
    """what the configuration calls it"""
    origin: Origin = Origin.GIVEN
    slack: float = 0.0
    """by how much a number may be apart that means the same"""


@dataclass(slots=True)
class Settings:
    """One side's settings."""

    source: Source
    values: dict[str, Value] = field(default_factory=dict)
    """by the names of the table"""
    facts: dict[str, Any] = field(default_factory=dict)
    """what conditions ask for beside settings"""
    rest: dict[str, Any] = field(default_factory=dict)
    """entries that the table does not have, by their whole names"""

    def known(self, name: str) -> Any:
        """Return a value, or a fact; None where it is not known."""
        value = self.values.get(name)
        return value.value if value is not None else self.facts.get(name)

    def put(self, name: str, value: Any, origin: Origin = Origin.DERIVED, like: str = "", slack: float = 0.0) -> None:
        """Set a value; by the name that the configuration has for it, or for the setting ``like``."""
        row, known = BY_NAME[name], self.values.get(like or name)
        title = known.name if known else _title(self.source, next(iter(row.names(self.source.dialect)), name))
        self.values[name] = Value(value, shown(value), title, origin, slack)


def resolved(source: Source) -> Settings:
    """Return the settings of a configuration."""
    from probe.settings.derived import DERIVATIONS

    names = Names(source.keys)
    settings = Settings(source)
    used: set[str] = set()
    for row in TABLE:
        for value, key in _given(row, source, names):
            used.add(key)
            if row.name not in settings.values:
                settings.values[row.name] = value
    for name, value in _implied(source, names).items():
        if name not in settings.values:
            settings.put(name, value, Origin.IMPLIED)
    for row in TABLE:
        default = _default(row, source, names)
        if row.name not in settings.values and default is not None:
            settings.put(row.name, normalised(row, default, source.dialect), Origin.DEFAULT)
    for derive in DERIVATIONS:
        derive(settings, names)
    settings.rest = {key: value for key, value in source.keys.items() if key not in used}
    return settings


def _given(row: Setting, source: Source, names: Names) -> Iterator[tuple[Value, str]]:
    """Yield what a configuration says of a setting, the name that counts first, each with its whole key."""
    for name in row.names(source.dialect):
        bare, _, action = name.partition("|")
        key = names.find(bare)
        if key is not None:
            yield from _value_of(row, source, source.keys[key], action, _title(source, bare), key)
    for name in row.recorded.split():
        bare, _, action = name.partition("|")
        if bare in source.recorded:
            yield from _value_of(row, source, source.recorded[bare], action, bare.removeprefix("group.").removeprefix("flags."), "")
    for name in row.variables.split():
        if name in source.variables:
            yield from _value_of(row, source, source.variables[name], "", name, "")


def _value_of(row: Setting, source: Source, raw: Any, action: str, title: str, key: str) -> Iterator[tuple[Value, str]]:
    try:
        value = made(action, raw) if action else raw
        value = MISSING if value is MISSING else normalised(row, value, source.dialect)
    except Unreadable:
        yield from ()
        return
    if value is MISSING or value is None:
        return
    yield Value(value, shown(value if action else raw), title), key


def _implied(source: Source, names: Names) -> Mapping[str, Any]:
    """Return what the model's name says."""
    if not source.is_model or source.dialect is Dialect.MEGATRON:
        return {}
    if source.dialect is Dialect.MINDFORMERS:
        own = MINDFORMERS_TYPES.get(str(names.get(_MINDFORMERS_TYPE)))
        if own is not None:
            return own
    return next((MODELS[str(names.get(name))] for name in _TYPES if str(names.get(name)) in MODELS), {})


def _default(row: Setting, source: Source, names: Names) -> Any:
    """Return what it means that a configuration does not have a setting; None where that says nothing."""
    if source.form is Form.RECORDING or row.part not in source.parts:
        return None
    for owner, value in row.defaults.items():
        dialect, _, section = owner.partition(":")
        if dialect == source.dialect and (not section or any(key.split(".")[0] == section for key in source.keys)):
            return value
    return None


def _title(source: Source, name: str) -> str:
    """Return a name as the configuration writes it."""
    return f"--{name.replace('_', '-')}" if source.form is Form.SHELL else name


def shown(value: Any) -> str:
    """Return a value as a report shows it."""
    if isinstance(value, bool) or value is None:
        return str(value)
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else f"{value:.10g}"
    return str(value)


def is_flag(name: str) -> bool:
    """Tell whether a setting is on or off."""
    return name in BY_NAME and BY_NAME[name].kind is Kind.FLAG
