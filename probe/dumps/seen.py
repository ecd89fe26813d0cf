"""What readers of dumps hand over: steps, calls in order, and tensors that are loaded one at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from probe.errors import FormatError
from probe.records import Phase, Role

PHASES = {
    Role.PARAM: Phase.INIT, Role.BUFFER: Phase.INIT, Role.INPUT: Phase.FORWARD, Role.OUTPUT: Phase.FORWARD,
    Role.VALUE: Phase.FORWARD, Role.GRAD_OUTPUT: Phase.BACKWARD, Role.GRAD_INPUT: Phase.BACKWARD,
    Role.GRAD_TOTAL: Phase.BACKWARD, Role.PARAM_GRAD: Phase.GRADIENT, Role.STATE: Phase.UPDATE,
}  # fmt: skip
"""roles that a dump may hold, and the phase that each belongs to"""
OF_WEIGHTS = (Role.PARAM, Role.BUFFER, Role.PARAM_GRAD, Role.STATE)
"""roles of tensors that belong to a module, not to a call"""
DEEPEST = 100
"""calls inside one another"""


@dataclass(frozen=True, slots=True)
class Summary:
    """What a tool wrote of a tensor in the place of its values; None for a number that it did not write."""

    dtype: str
    """as numpy or ml_dtypes call it"""
    shape: tuple[int, ...]
    low: float | None = None
    high: float | None = None
    mean: float | None = None
    norm: float | None = None


def summary_of(where: str, dtype: str, shape: object, *numbers: Any) -> Summary:
    """Return a summary of what a file says: the shape, then min, max, mean and norm. Raises FormatError where no tensor has them."""
    sizes = tuple(shape) if isinstance(shape, list) else (-1,)
    are_sizes = all(type(size) is int and size >= 0 for size in sizes) and len(sizes) <= 64
    are_numbers = all(each is None or isinstance(each, (bool, int, float)) for each in numbers)
    if not are_sizes or not are_numbers or math.prod(sizes) >= 2**62 or (numbers[3] or 0) < 0:
        raise FormatError(f"{where} has the shape {shape!s:.80} and the numbers {numbers!s:.80}, as no tensor has")
    return Summary(dtype, sizes, *(None if each is None else float(each) for each in numbers))


@dataclass(frozen=True, slots=True)
class Seen:
    """One tensor of a dump."""

    role: Role
    slot: str
    load: Callable[[], np.ndarray] | None
    """returns its values; None where the dump has none"""
    summary: Summary | None = None
    learns: bool = False


@dataclass(eq=False, slots=True)
class Call:
    """One call of a module, or of an operation inside one."""

    path: str
    number: int = 0
    micro: int = 0
    class_name: str = ""
    arguments: str = ""
    """of an operation: what it was given beside tensors, as JSON; empty for a module"""
    place: tuple[str, int] = ("", 0)
    """file and line"""
    seen: list[Seen] = field(default_factory=list)
    inner: list[Call] = field(default_factory=list)


@dataclass(slots=True)
class Step:
    """One step of a dump."""

    number: int
    calls: list[Call] = field(default_factory=list)
    """that lie in no other, in the order in which they began"""
    weights: list[tuple[str, Seen]] = field(default_factory=list)
    """each with the path of its module"""
    left: list[tuple[str, Seen]] = field(default_factory=list)
    """weights as the step left them; where a dump does not have them, the next step begins with them"""
    classes: dict[str, str] = field(default_factory=dict)
    """of modules that were not called, by path"""
    notes: list[str] = field(default_factory=list)
    """what could not be read"""

    def walk(self) -> Iterator[tuple[Call, str]]:
        """Yield all calls, each before those inside it, with the path of the call around."""
        waiting = [(call, "", 1) for call in reversed(self.calls)]
        while waiting:
            call, around, depth = waiting.pop()
            if depth > DEEPEST:
                raise FormatError(f"{call.path}: more than {DEEPEST} calls lie inside one another")
            yield call, around
            waiting += [(inner, call.path, depth + 1) for inner in reversed(call.inner)]


@dataclass(frozen=True)
class Dump:
    """The dump of one rank."""

    framework: str
    """``torch``, ``paddle``, ``mindspore``, or empty where nothing tells"""
    steps: Sequence[int]
    read: Callable[[int], Step]
    rank: int = 0
    lacks: tuple[str, ...] = ()
    """what the dump does not tell beside tensors, such as the order of calls"""


def nested(calls: Sequence[Call]) -> list[Call]:
    """Return calls in the order in which they ended, or began, as a tree by their paths; the result has the outermost."""
    found: list[Call] = []
    for call in calls:
        start = len(found)
        while start and _inside(found[start - 1].path, call.path):
            start -= 1
        call.inner[:0] = found[start:]
        beside, around = found, found[-1:]
        while around and _inside(call.path, around[0].path) and all(x.path != call.path for x in around[0].inner):
            beside, around = around[0].inner, around[0].inner[-1:]
        beside[start if beside is found else len(beside) :] = [call]
    return found


def _inside(path: str, around: str) -> bool:
    return path != around and (not around or path.startswith((f"{around}.", f"{around}/")))
