"""What an environment lacks: steps to determinism that were not taken, variables that nothing reads, dtypes that a device has not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from probe.settings.environment import Environment
from probe.settings.table.determinism import ANY, FAMILIES, LACKING, STEPS, TRAPS, Step, Trap

_CAPABILITY = re.compile(r"compute capability (\d+)\.(\d+)")


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
        """Return True if something that was set does nothing, or a dtype that was used is not there."""
        return bool(self.unread) or any(each.is_used for each in self.unfit)


def advice(environment: Environment) -> Advice:
    """Return what an environment lacks."""
    missing = tuple(step for step in STEPS if _concerns(step, environment) and not _is_taken(step, environment))
    return Advice(environment, missing, tuple(_unread(environment)), tuple(_unfit(environment)))


def _concerns(step: Step, environment: Environment) -> bool:
    return step.framework in (ANY, *environment.frameworks) and step.device in ("", environment.kind)


def _is_taken(step: Step, environment: Environment) -> bool:
    value = environment.variables.get(step.variable, "")
    is_set = bool(step.variable) and value in (step.value, *step.also)
    is_any_seed = step.variable == "PYTHONHASHSEED" and value.isdigit()
    return is_set or is_any_seed or any(environment.recorded.get(fact.setting) in fact.values for fact in step.facts)


def _unread(environment: Environment) -> Iterator[Unread]:
    """Yield variables that are set and have no effect."""
    traps = {trap.variable: trap for trap in TRAPS if _holds(trap, environment)}
    told = environment.recorded.get("unread_variables", ())
    by_framework = set(told) if isinstance(told, (list, tuple)) else set()
    for name, value in environment.variables.items():
        family = next((each for each in FAMILIES if name.lower().startswith(each.lower())), "")
        reads = FAMILIES.get(family, "")
        if name in traps:
            yield Unread(name, value, traps[name].why, traps[name].instead)
        elif not name.startswith(family):
            why = f"only names that begin with {family} are read, in these letters"
            yield Unread(name, value, why, f"{family}{name[len(family) :]}")
        elif name in by_framework:
            yield Unread(name, value, "no flag of this build has this name")
        elif reads and environment.recorded and reads not in environment.frameworks:
            frameworks = ", ".join(environment.frameworks)
            yield Unread(name, value, f"{reads} alone reads it, this is a run of {frameworks}")


def _holds(trap: Trap, environment: Environment) -> bool:
    """Return True if a trap is one for the version that is there."""
    version = environment.frameworks.get("paddle")
    return version is None or _numbers(version) >= _numbers(trap.since)


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
