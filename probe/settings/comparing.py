"""Holding two sides' settings against each other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from probe.errors import ConfigError
from probe.notes import named
from probe.settings.setting import Category, Effect, Setting
from probe.settings.side import Origin, Settings, Value, shown
from probe.settings.table import BY_NAME, TABLE
from probe.settings.values import alike, parsed

_NO_SETTING = re.compile(
    r"(^|[._])(path|dir|dirs|directory|file|files|filename|folder|url|name_or_path|project|exp_name|run_name|load|save|commit|hash|timestamp|date|"
    r"time|logging\w*|log\w*|tensorboard\w*|wandb\w*|interval|steps_per_print|print\w*|verbose|report_to|profile\w*|port|host|addr|rank|world_size|"
    r"num_workers|\w*_version|version|auto_map|id2label|label2id|hub\w*|push_to_hub|comment|keep\w*|prefix|cache|use_cache|workers)(_|\.|$)"
)
"""parts of names that are no settings of a computation: places, logs, programs"""
_SHORT = 200
"""characters of a value that the table does not have"""


@dataclass(frozen=True, slots=True)
class Difference:
    """A setting that has other values on the two sides."""

    setting: str
    """its name in the table, or its key where the table does not have it"""
    category: Category
    effect: Effect
    a: Value
    b: Value

    @property
    def row(self) -> Setting | None:
        """The row of the table."""
        return BY_NAME.get(self.setting)

    @property
    def title(self) -> str:
        """What both sides call it."""
        return self.a.name if self.a.name == self.b.name else f"{self.a.name} / {self.b.name}"

    def as_json(self) -> dict[str, object]:
        """Return the fields by their names in JSON."""
        sides = (("a", self.a), ("b", self.b))
        values = {side: named(each, "name", "value", "shown") | {"from": each.origin.value} for side, each in sides}
        return {**named(self, "setting", "category", "effect"), "counts": self.effect.counts, **values}


@dataclass(frozen=True, slots=True)
class Held:
    """Two sides, held against each other."""

    a: Settings
    b: Settings
    differences: tuple[Difference, ...]
    """what is likelier to explain other numbers first"""
    equal: tuple[str, ...]
    """settings of the table that mean the same on both sides"""
    only_a: tuple[str, ...]
    """settings that B says nothing of"""
    only_b: tuple[str, ...]

    @property
    def counting(self) -> tuple[Difference, ...]:
        """The differences for which the two cannot be expected to agree."""
        return tuple(each for each in self.differences if each.effect.counts)

    def require_common(self) -> None:
        """Raise ConfigError where the two have no setting in common: nothing was compared."""
        if not self.equal and not self.differences:
            sources = (self.a.source, self.b.source)
            about = [f"{each.path} ({each.form}, names of {each.dialect})" for each in sources]
            raise ConfigError(
                f"{about[0]} and {about[1]} have no setting in common: expected two configurations of the same part of a run"
            )


_ORDER = (Effect.NUMBERS, Effect.RANDOM, Effect.PRECISION, Effect.UNKNOWN, Effect.ROUNDING, Effect.NONE)


def held_against(a: Settings, b: Settings) -> Held:
    """Hold two sides' settings against each other."""
    differences, equal, only_a, only_b = [], [], [], []
    for row in TABLE:
        mine, theirs = (_applying(row, side) for side in (a, b))
        if mine is None and theirs is None:
            continue
        if mine is None or theirs is None:
            mine, theirs = _unset(row, a, b, mine, theirs)
        if mine is None or theirs is None:
            (only_b if mine is None else only_a).append(row.name)
        elif alike(mine.value, theirs.value, max(mine.slack, theirs.slack)):
            equal.append(row.name)
        else:
            differences.append(Difference(row.name, row.category, row.effect, *_by_one_name(mine, theirs, a, b)))
    named = {each.setting for each in differences}
    own = [each for each in differences if not (each.a.of in named and each.b.of in named)]
    ranked = sorted([*own, *_of_the_rest(a, b)], key=lambda each: _ORDER.index(each.effect))
    return Held(a, b, tuple(ranked), tuple(equal), tuple(only_a), tuple(only_b))


def _by_one_name(mine: Value, theirs: Value, a: Settings, b: Settings) -> tuple[Value, Value]:
    """Return both values by the name that one side has given, where the other has no name for it in the same code base."""
    if a.source.dialect is b.source.dialect and a.source.form is b.source.form:
        if mine.origin is Origin.GIVEN and theirs.origin is not Origin.GIVEN:
            return mine, replace(theirs, name=mine.name)
        if theirs.origin is Origin.GIVEN and mine.origin is not Origin.GIVEN:
            return replace(mine, name=theirs.name), theirs
    return mine, theirs


def _applying(row: Setting, side: Settings) -> Value | None:
    """Return a side's value where it does something there."""
    for when in row.only_with:
        known = side.known(when.setting)
        if known is not None and known not in when.values:
            return None
    return side.values.get(row.name)


def _unset(
    row: Setting, a: Settings, b: Settings, mine: Value | None, theirs: Value | None
) -> tuple[Value | None, Value | None]:
    """Return values where one side has set a variable, and the other is known not to have."""
    lacking = a if mine is None else b
    is_variable = row.variables and not row.recorded and not any(row.names(side.source.dialect) for side in (a, b))
    if not is_variable or not lacking.source.knows_variables or _frameworks(a) != _frameworks(b):
        return mine, theirs
    unset = Value(None, "not set", row.variables.split()[0])
    return (unset, theirs) if mine is None else (mine, unset)


def _frameworks(side: Settings) -> str:
    return str(side.source.recorded.get("framework_version", "")).partition(" ")[0]


def _of_the_rest(a: Settings, b: Settings) -> Iterator[Difference]:
    """Yield entries of one name that the table does not have."""
    if a.source.dialect is not b.source.dialect:
        return
    for key in sorted(a.rest.keys() & b.rest.keys()):
        mine, theirs = a.rest[key], b.rest[key]
        if _NO_SETTING.search(key.lower()) or key.rpartition(".")[2].startswith("_") or _means_same(mine, theirs):
            continue
        values = [Value(None, _short(each), key) for each in (mine, theirs)]
        yield Difference(key, Category.OTHER, Effect.UNKNOWN, *values)


def _means_same(a: Any, b: Any) -> bool:
    a, b = (parsed(each) if isinstance(each, str) else each for each in (a, b))
    try:
        return bool(a == b) or (alike(a, b) if not isinstance(a, (list, tuple, dict)) else list(a) == list(b))
    except (TypeError, ValueError, RecursionError):
        return str(a) == str(b)


def _short(value: Any) -> str:
    text = shown(value)
    return text if len(text) <= _SHORT else f"{text[:_SHORT]}…"


__all__ = ["Difference", "Held", "held_against"]
