"""What makes each framework deterministic, what is set and read by nobody, and which devices lack a dtype."""

from __future__ import annotations

from dataclasses import dataclass

from probe.settings.setting import When
from probe.settings.table import conditions, table

ANY = ""
"""a framework: all of them"""


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to set so that a run gives the same numbers twice."""

    why: str
    framework: str = ANY
    """torch, paddle, mindspore, or `ANY`"""
    device: str = ""
    """gpu, npu, or "" where the device does not matter"""
    variable: str = ""
    """what to export before the program starts"""
    value: str = ""
    also: tuple[str, ...] = ()
    """other values that do it"""
    call: str = ""
    """what to call in the program, before the model is made"""
    facts: tuple[When, ...] = ()
    """in a recording: what of the environment shows it"""
    by_seed_all: bool = False
    """probe.seed_all() does it"""


@dataclass(frozen=True, slots=True)
class Trap:
    """A variable that looks as if it did something."""

    variable: str
    why: str
    instead: str = ""
    since: str = ""
    """the version of PaddlePaddle from which it holds; empty: always"""


@dataclass(frozen=True, slots=True)
class Lacks:
    """A dtype that some devices do not compute in."""

    dtype: str
    capability: float
    """of NVIDIA devices: the least compute capability that has it"""
    example: str
    devices: tuple[str, ...]
    """globs of other devices that lack it, in small letters"""


_TABLE = table("determinism")
STEPS = tuple(
    Step(**{**row, "also": tuple(row.get("also", ())), "facts": conditions(row.get("facts", {}))})
    for row in _TABLE["steps"]
)
TRAPS = tuple(Trap(name, **row) for name, row in _TABLE["traps"].items())
"""variables that are set in public scripts and guides, and that nothing reads"""
FAMILIES: dict[str, str] = _TABLE["families"]
"""how variables begin that one framework alone reads, and by exactly these letters"""
ATTRIBUTES: dict[str, str] = _TABLE["attributes"]
"""lines of public guides that do nothing, and why"""
LACKING = tuple(Lacks(name, **{**row, "devices": tuple(row["devices"])}) for name, row in _TABLE["lacking"].items())
