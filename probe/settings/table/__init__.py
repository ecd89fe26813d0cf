"""The tables of settings: YAML beside this file, read when this package is first imported.

`settings.yaml` has the settings, `models.yaml` what the name of a model says, `dialects.yaml` whose names a
configuration uses, `checklist.yaml` the checklist of MindFormers; `determinism` reads its own.
`docs/reference/settings.md` is made from them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from probe.settings.setting import Category, Effect, Kind, Place, Setting, When

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def table(name: str) -> dict[str, Any]:
    """Return a table's contents."""
    found: dict[str, Any] = yaml.load(Path(__file__).with_name(f"{name}.yaml").read_text(encoding="utf-8"), _LOADER)
    return found


def conditions(wanted: dict[str, Any]) -> tuple[When, ...]:
    """Return conditions, each with one value or several."""
    return tuple(When(name, tuple(each) if isinstance(each, list) else (each,)) for name, each in wanted.items())


def _place(fields: dict[str, list[str]]) -> Place:
    return Place(**{name: tuple(values) for name, values in fields.items()})


def _setting(name: str, category: str, row: dict[str, Any]) -> Setting:
    """Return a row as `Setting`."""
    return Setting(
        name=name,
        category=Category(category),
        kind=Kind(row.pop("kind", Kind.NUMBER)),
        effect=Effect(row.pop("effect", Effect.NUMBERS)),
        words={word: meant for meant, others in row.pop("words", {}).items() for word in (meant, *others)},
        only_with=conditions(row.pop("only_with", {})),
        places=tuple(_PLACES[place] for place in row.pop("places", ())),
        **row,
    )


def _known(facts: dict[str, Any]) -> dict[str, Any]:
    """Return what the name of a model says, without what is not known."""
    return {name: value for name, value in facts.items() if value is not None}


_SETTINGS, _MODELS, _CHECKLIST = table("settings"), table("models"), table("checklist")
_PLACES = {name: _place(fields) for name, fields in _SETTINGS["places"].items()}
TABLE: tuple[Setting, ...] = tuple(
    _setting(name, category, row)
    for section in _SETTINGS["settings"]
    for category, rows in section.items()
    for name, row in rows.items()
)
"""what is likelier to explain a difference stands first"""
BY_NAME = {row.name: row for row in TABLE}

MODELS, FIXED, MINDFORMERS_TYPES = (
    {model: _known(facts) for model, facts in _MODELS[kind].items()}
    for kind in ("models", "fixed", "mindformers_types")
)
"""by ``model_type`` of transformers; what overrides a configuration; by ``model.model_config.type``"""
PARAMS_JSON = _known(_MODELS["params_json"])
"""what Meta's and Mistral's params.json leaves out"""

DIALECTS = table("dialects")
"""how to tell whose names a configuration uses"""
OWN_SECTIONS = frozenset(DIALECTS["own_sections"])
CHECKLIST = {Category(name): tuple(rows) for name, rows in _CHECKLIST["rows"].items()}
"""the key parameters of the MindFormers checklist, by category"""
FROM_RECORDINGS: dict[str, str] = _CHECKLIST["from_recordings"]
"""rows that no setting tells, or not alone, and what does"""
