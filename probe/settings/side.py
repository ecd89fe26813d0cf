"""One side's settings, by the names of the table."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

from probe.settings.source import Form, Source
from probe.settings.table import BY_NAME


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
    of: str = ""
    """the setting whose value it takes over"""


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
        title = known.name if known else title_of(self.source, next(iter(row.names(self.source.dialect)), name))
        self.values[name] = Value(value, shown(value), title, origin, slack)


def title_of(source: Source, name: str) -> str:
    """Return a name as the configuration writes it."""
    return f"--{name.replace('_', '-')}" if source.form is Form.SHELL else name


def shown(value: Any) -> str:
    """Return a value as a report shows it."""
    if isinstance(value, bool) or value is None:
        return str(value)
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else f"{value:.10g}"
    return str(value)
