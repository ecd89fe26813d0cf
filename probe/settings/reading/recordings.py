"""The settings in a recording: the model's configuration, the environment, the parameter groups of its optimizers."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from probe.ranks.opening import open_reader
from probe.records import OptimizerGroup, ParameterInfo
from probe.settings.reading.dialects import dialect_of, others
from probe.settings.setting import Part
from probe.settings.source import Form, Source, flattened
from probe.settings.table import BY_NAME
from probe.store.reading.reader import Reader

_VARIABLES = "variables"
_NESTED = ("packages", "flags", _VARIABLES, "devices", "ascend_config", "unread_variables", "sdp_kernels")
"""facts of the environment that are JSON in the file"""
_MODEL = ("model_type", "architectures")


def recorded(path: str | Path) -> Source:
    """Return the settings that a recording holds; raises StoreError or FormatError where it cannot be read."""
    with open_reader(path) as reader:
        return source_of_reader(reader)


def source_of_reader(reader: Reader) -> Source:
    """Return the settings of an open recording."""
    keys = flattened(reader.info.model_config)
    facts = {name: _unpacked(name, value) for name, value in reader.environment.items()}
    variables = facts.pop(_VARIABLES, None)
    facts["framework_version"] = f"{reader.info.framework} {reader.info.framework_version}"
    groups = next((reader.groups_of(int(step)) for step in reader.steps["step"] if reader.groups_of(int(step))), [])
    dialect = dialect_of(keys)
    return Source(
        str(reader.path),
        Form.RECORDING,
        dialect,
        keys,
        frozenset({Part.MODEL}) if any(name in keys for name in _MODEL) else frozenset(),
        {str(name): str(value) for name, value in variables.items()} if isinstance(variables, Mapping) else {},
        {**flattened(facts), **_of_groups(groups, reader.parameters)},
        knows_variables=isinstance(variables, Mapping),
        also=others(keys, dialect),
    )


def _unpacked(name: str, value: Any) -> Any:
    if name not in _NESTED or not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def _of_groups(groups: Iterable[OptimizerGroup], parameters: list[ParameterInfo]) -> dict[str, Any]:
    """Return what the parameters are trained with: the options of the group with most elements, and what is decayed."""
    sized = [(sum(math.prod(parameters[number].shape) for number in group.parameters), group) for group in groups]
    if not sized:
        return {}
    _, main = max(sized, key=lambda each: each[0])
    found = {f"group.{name}": value for name, value in main.hyper.items()}
    if main.class_name.lower() in BY_NAME["optimizer"].words:  # a class of one's own may be any of them
        found["group.optimizer"] = main.class_name
    decays = [_decay(group) for _, group in sized]
    for name in ("weight_decay", "coeff"):
        if name in main.hyper and any(decays):
            found[f"group.{name}"] = max(decays)
    decayed = _decayed([group for _, group in sized], parameters)
    return {**found, "group.decayed": decayed} if decayed else found


def _decayed(groups: list[OptimizerGroup], parameters: list[ParameterInfo]) -> str:
    """Say which parameters are decayed: all, matrices, some; nothing where none is."""
    with_decay = {number for group in groups if _decay(group) for number in group.parameters}
    every = {number for group in groups for number in group.parameters}
    vectors = {number for number in every if len(parameters[number].shape) < 2}
    if not with_decay:
        return ""
    if with_decay == every:
        return "all parameters" if vectors else ""
    return "matrices only" if with_decay == every - vectors else "some parameters"


def _decay(group: OptimizerGroup) -> float:
    value = next((group.hyper[name] for name in ("weight_decay", "coeff") if name in group.hyper), 0.0)
    return float(value) if isinstance(value, (int, float)) else 0.0
