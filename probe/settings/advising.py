"""What an environment lacks: steps to determinism that were not taken, variables that nothing reads, dtypes that a device has not."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from probe.settings.source import Source
from probe.settings.table.determinism import ANY, FAMILIES, LACKING, STEPS, TRAPS, Step, Trap

_CAPABILITY = re.compile(r"compute capability (\d+)\.(\d+)")
_ASCEND = ("ascend", "npu")


@dataclass(frozen=True, slots=True)
class Environment:
    """What is known of an environment: this process's, or that of a recording."""

    title: str
    frameworks: Mapping[str, str]
    """versions, by framework: torch, paddle, mindspore"""
    variables: Mapping[str, str]
    devices: tuple[str, ...] = ()
    """names of accelerators, with their compute capability where that is known"""
    recorded: Mapping[str, Any] = field(default_factory=dict)
    """switches that were recorded; empty where the program is not known"""
    dtypes: tuple[str, ...] = ()
    """that were computed in"""

    @property
    def kind(self) -> str:
        """The kind of its devices: gpu, npu, or nothing."""
        names = " ".join(self.devices).lower()
        return "" if not names else "npu" if any(word in names for word in _ASCEND) else "gpu"


@dataclass(frozen=True, slots=True)
class Unread:
    """A variable that is set and has no effect."""

    variable: str
    value: str
    why: str
    instead: str = ""


@dataclass(frozen=True, slots=True)
class Unfit:
    """A dtype that a device lacks."""

    dtype: str
    device: str
    wanted: str
    is_used: bool
    """tensors of it were recorded"""


@dataclass(frozen=True, slots=True)
class Advice:
    """What to do about an environment."""

    environment: Environment
    missing: tuple[Step, ...]
    """not known to be done"""
    unread: tuple[Unread, ...]
    unfit: tuple[Unfit, ...]

    @property
    def is_wrong(self) -> bool:
        """Tell whether something that was set does nothing, or a dtype that was used is not there."""
        return bool(self.unread) or any(each.is_used for each in self.unfit)


def advice(environment: Environment) -> Advice:
    """Return what an environment lacks."""
    missing = tuple(step for step in STEPS if _concerns(step, environment) and not _is_taken(step, environment))
    return Advice(environment, missing, tuple(_unread(environment)), tuple(_unfit(environment)))


def of_recording(source: Source, title: str, dtypes: tuple[str, ...]) -> Environment:
    """Return the environment of a recording."""
    framework, _, version = str(source.recorded.get("framework_version", "")).partition(" ")
    found = source.recorded.get("devices") or source.recorded.get("device_target") or ()
    devices = tuple(map(str, found)) if isinstance(found, (list, tuple)) else (str(found),)
    used = tuple(name for name in devices if name.upper() not in ("CPU", ""))
    return Environment(title, {framework: version}, source.variables, used, source.recorded, dtypes)


def _concerns(step: Step, environment: Environment) -> bool:
    is_framework = step.framework in (ANY, *environment.frameworks)
    return is_framework and step.device in ("", environment.kind)


def _is_taken(step: Step, environment: Environment) -> bool:
    if step.variable and environment.variables.get(step.variable) in (step.value, *step.also):
        return True
    if step.variable == "PYTHONHASHSEED" and environment.variables.get(step.variable, "").isdigit():
        return True
    return any(environment.recorded.get(name) == value for name, value in step.facts)


def _unread(environment: Environment) -> Iterator[Unread]:
    """Yield variables that are set and have no effect."""
    traps = {trap.variable: trap for trap in TRAPS if _holds(trap, environment)}
    told = environment.recorded.get("unread_variables", ())
    by_framework = set(told) if isinstance(told, (list, tuple)) else set()
    for name, value in environment.variables.items():
        family = next((each for each in FAMILIES if name.lower().startswith(each.lower())), None)
        if name in traps:
            yield Unread(name, value, traps[name].why, traps[name].instead)
        elif family is not None and not name.startswith(family):
            yield Unread(
                name,
                value,
                f"only names that begin with {family} are read, in these letters",
                f"{family}{name[len(family) :]}",
            )
        elif name in by_framework:
            yield Unread(name, value, "no flag of this build has this name")
        elif family is not None and environment.recorded and FAMILIES[family] not in environment.frameworks:
            yield Unread(
                name,
                value,
                f"{FAMILIES[family]} alone reads it, this is a run of {', '.join(environment.frameworks)}",
            )


def _holds(trap: Trap, environment: Environment) -> bool:
    """Tell whether a trap is one for the version that is there."""
    version = environment.frameworks.get("paddle")
    if not trap.packages or version is None:
        return True
    return _numbers(version) >= min(_numbers(since) for _, since in trap.packages)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _unfit(environment: Environment) -> Iterator[Unfit]:
    """Yield dtypes that a device lacks: those that were used, and the others where nothing is known to have been used."""
    for device in dict.fromkeys(environment.devices):
        match = _CAPABILITY.search(device)
        for lacks in LACKING:
            is_old = match is not None and float(f"{match[1]}.{match[2]}") < lacks.capability
            is_without = match is None and any(fnmatchcase(device.lower(), pattern) for pattern in lacks.devices)
            is_used = any(lacks.dtype in dtype for dtype in environment.dtypes)
            if (is_old or is_without) and (is_used or not environment.recorded):
                yield Unfit(lacks.dtype, device, f"{lacks.example} or later" if match else "a later device", is_used)
