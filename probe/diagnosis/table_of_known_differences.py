"""Where frameworks do other things under the same name: `known_differences.yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from probe.answer.result import Kind
from probe.records import Phase, Role


@dataclass(frozen=True, slots=True)
class Habit:
    """What one framework does."""

    classes: tuple[str, ...]
    """globs of class names"""
    does: str
    instead: str = ""
    """what to set there to get what another one does"""


@dataclass(frozen=True, slots=True)
class KnownDifference:
    """A row of the table."""

    name: str
    about: str
    """how the sentence begins that goes on with what each framework does"""
    habits: Mapping[str, Habit]
    """by framework"""
    phases: tuple[Phase, ...]
    """of the findings that it explains"""
    roles: tuple[Role, ...] = ()
    """of these findings; empty for all"""
    kinds: tuple[Kind, ...] = ()
    """of these findings; empty for all"""
    slots: str = "*"
    """glob"""
    settings: tuple[str, ...] = ()
    """names of a setting of the optimizer: where both sides have recorded the same, it explains nothing"""
    is_of_optimizer: bool = False
    """the classes are those of optimizers, not of modules"""
    is_one_sided: bool = False
    """it explains only what one side lacks, or where it is zero"""
    first_step: int = 0
    """it explains nothing before this step"""
    advice: str = ""
    """what to do where nothing can be set"""


def _row(name: str, row: Mapping[str, Any]) -> KnownDifference:
    habits = {each: Habit(**{**row[each], "classes": tuple(row[each]["classes"])}) for each in VERIFIED if each in row}
    fields = {key: value for key, value in row.items() if key not in VERIFIED}
    given: dict[str, Any] = {key: tuple(each) if isinstance(each, list) else each for key, each in fields.items()}
    for key, kinds in (("phases", Phase), ("roles", Role)):
        given[key] = tuple(kinds[each.upper()] for each in given.get(key, ()))
    given["kinds"] = tuple(map(Kind, given.get("kinds", ())))
    return KnownDifference(name, habits=habits, **given)


_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TABLE = yaml.load(Path(__file__).with_name("known_differences.yaml").read_text(encoding="utf-8"), _LOADER)
VERIFIED: dict[str, str] = _TABLE["versions"]
"""versions that the experiments were made with, on the CPU"""
KNOWN_DIFFERENCES = tuple(_row(name, row) for name, row in _TABLE["rows"].items())
