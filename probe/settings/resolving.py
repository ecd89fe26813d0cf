"""From what a configuration says to the settings of the table: by its names, by its model's name, by defaults, by arithmetic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from probe.settings.derived import DERIVATIONS
from probe.settings.setting import Dialect, Setting
from probe.settings.side import Origin, Settings, Value, shown, title_of
from probe.settings.source import Form, Names, Source
from probe.settings.table import FIXED, MINDFORMERS_TYPES, MODELS, PARAMS_JSON, TABLE
from probe.settings.values import MISSING, Unreadable, made, normalised

_TYPE = "model_type"
_MINDFORMERS_TYPE = "model_config.type"


def resolved(source: Source) -> Settings:
    """Return the settings of a configuration."""
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
    for name, value in FIXED.get(str(names.get(_TYPE)), {}).items():
        settings.put(name, value, Origin.IMPLIED)
    for row in TABLE:
        default = _default(row, source, names)
        if row.name not in settings.values and default is not None:
            settings.put(row.name, normalised(row, default, source.dialect), Origin.DEFAULT)
    for derive in DERIVATIONS:
        derive(settings, names)
    for row in TABLE:
        value = settings.values.get(row.name)
        if value is not None and value.origin is not Origin.GIVEN and row.keys(source.dialect) & source.unknown:
            del settings.values[row.name]
    settings.rest = {key: value for key, value in source.keys.items() if key not in used}
    return settings


def is_setting(name: str, dialect: Dialect) -> bool:
    """Return True if the table has a name."""
    return any(name in row.keys(dialect) for row in TABLE)


def _given(row: Setting, source: Source, names: Names) -> Iterator[tuple[Value, str]]:
    """Yield what a configuration says of a setting, the name that counts first, each with its whole key."""
    for name in dict.fromkeys(name for dialect in (source.dialect, *source.also) for name in row.names(dialect)):
        bare, _, action = name.partition("|")
        key = names.find(bare)
        if key is not None:
            yield from _value_of(row, source, source.keys[key], action, title_of(source, bare), key)
    for name in row.recorded.split():
        bare, _, action = name.partition("|")
        if bare in source.recorded:
            title = bare.removeprefix("group.").removeprefix("flags.")
            yield from _value_of(row, source, source.recorded[bare], action, title, "")
    for name in row.variables.split():
        if name in source.variables:
            yield from _value_of(row, source, source.variables[name], "", name, "")


def _value_of(row: Setting, source: Source, raw: Any, action: str, title: str, key: str) -> Iterator[tuple[Value, str]]:
    try:
        value = made(action, raw) if action else raw
        value = MISSING if value is MISSING else normalised(row, value, source.dialect)
    except Unreadable:
        return
    if value is not MISSING and value is not None:
        yield Value(value, shown(value if action else raw), title), key


def _implied(source: Source, names: Names) -> Mapping[str, Any]:
    """Return what the model's name says."""
    if not source.is_model or source.dialect is Dialect.MEGATRON:
        return {}
    if source.dialect is Dialect.META:
        return PARAMS_JSON
    if source.dialect is Dialect.MINDFORMERS:
        own = MINDFORMERS_TYPES.get(str(names.get(_MINDFORMERS_TYPE)))
        if own is not None:
            return own
    return MODELS.get(str(names.get(_TYPE)), {})


def _default(row: Setting, source: Source, names: Names) -> Any:
    """Return what it means that a configuration does not have a setting; None where that says nothing."""
    if source.form is Form.RECORDING or row.part not in source.parts:
        return None
    for owner, value in row.defaults.items():
        dialect, _, section = owner.partition(":")
        if dialect == source.dialect and (not section or any(key.split(".")[0] == section for key in source.keys)):
            return value
    return None
