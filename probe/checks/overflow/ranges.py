"""How near the recorded numbers come to the ends of their dtypes, by module."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from probe.checks.seen import Range, Seen, in_time, range_of, seen
from probe.notes import named
from probe.records import Phase, Role
from probe.store.reading.reader import Reader

_HEAVY = 10.0
"""zeros count as underflow up to this many times s/rms of the others, s the smallest number: of a normal distribution 0.4 times that
share is rounded to 0, and gradients have more small elements than that; all other zeros were made by a mask or an activation"""
_SMALL = 64.0
"""a tensor is looked through for subnormal numbers if its root mean square is below this many times the smallest normal number"""


@dataclass(frozen=True, slots=True)
class Headroom:
    """The tensor of a module that comes nearest to its dtype's largest number."""

    tensor: Seen
    limit: float
    """the dtype's largest number"""

    @property
    def share(self) -> float:
        """The largest magnitude as a share of that."""
        return self.tensor.largest / self.limit

    def as_json(self) -> dict[str, Any]:
        """Return the fields by their names in JSON."""
        return {**self.tensor.as_json(), "largest": self.tensor.largest, **named(self, "limit", "share")}


@dataclass(frozen=True, slots=True)
class Underflow:
    """What of a module's numbers is too small for its dtype."""

    path: str
    class_name: str
    phase: Phase
    """forward, backward or gradient"""
    dtype: str
    elements: int
    zeros: float
    """how many are 0 by underflow: at most, as far as the size of the others tells"""
    subnormals: int
    """how many have fewer digits than the dtype: at least where values were not recorded"""
    is_exact: bool
    """all values were read"""

    @property
    def share(self) -> float:
        """Zeros by underflow as a share of all elements."""
        return self.zeros / self.elements

    @property
    def subnormal_share(self) -> float:
        """Subnormal numbers as a share of all elements."""
        return self.subnormals / self.elements

    def as_json(self) -> dict[str, Any]:
        """Return the fields by their names in JSON."""
        about = {"path": self.path, "class": self.class_name, **named(self, "phase", "dtype", "elements")}
        return about | named(self, "zeros", "subnormals", "share", "subnormal_share", "is_exact")


@dataclass
class _Small:
    elements: int = 0
    zeros: float = 0.0
    subnormals: int = 0
    is_exact: bool = True


def ranges(reader: Reader) -> tuple[tuple[Headroom, ...], tuple[Underflow, ...], frozenset[Phase]]:
    """Return the nearest to the largest number of each module, nearest first; the underflow of each, most first; and the phases."""
    nearest: dict[int, Headroom] = {}
    small: dict[tuple[int, Phase, str], _Small] = {}
    for step in reader.steps["step"].tolist():
        for row, limits in _floats(reader, int(step)):
            module, largest = int(row["module"]), max(abs(row["min"]), abs(row["max"]))
            is_filled = largest >= limits.largest  # a mask is filled with that number
            if not is_filled and (module not in nearest or largest / limits.largest > nearest[module].share):
                nearest[module] = Headroom(seen(reader, row), limits.largest)
            phase = Phase(row["phase"])
            if phase in (Phase.FORWARD, Phase.BACKWARD, Phase.GRADIENT) and row["role"] != Role.PARAM:
                _take(small.setdefault((module, phase, row["dtype"].decode()), _Small()), reader, row, limits)
    found = [
        Underflow(reader.modules[module].path, reader.modules[module].class_name, phase, dtype, each.elements, each.zeros,
                  each.subnormals, each.is_exact)
        for (module, phase, dtype), each in small.items() if each.zeros or each.subnormals
    ]  # fmt: skip
    by_share = sorted(nearest.values(), key=lambda each: -each.share)
    by_loss = sorted(found, key=lambda each: (-each.share, -each.subnormal_share))
    return tuple(by_share), tuple(by_loss), frozenset(phase for _, phase, _ in small)


def _floats(reader: Reader, step: int) -> Iterator[tuple[Any, Range]]:
    """Yield the records of floating-point tensors with a finite element, and the range of their dtype."""
    rows = in_time(reader, step)
    limits = {name: range_of(name.decode()) for name in set(rows["dtype"].tolist())}
    for row in rows[(rows["hash_kind"] != 0) | (rows["norm"] > 0)]:
        found = limits[row["dtype"]]
        if found is not None and row["role"] != Role.DELTA and not math.isnan(row["min"]):
            yield row, found


def _take(small: _Small, reader: Reader, row: Any, limits: Range) -> None:
    """Take in what of a tensor is too small."""
    size = math.prod(reader.shapes[row["shape"]]) - int(row["nan"]) - int(row["posinf"]) - int(row["neginf"])
    zeros = int(row["zeros"])
    small.elements += size
    if zeros >= size:  # nothing tells whether they were made by underflow
        return
    rms = float(row["norm"]) / math.sqrt(size - zeros)
    small.zeros += min(zeros, size * _HEAVY * limits.smallest / rms)
    if rms >= _SMALL * limits.smallest_normal:
        return
    if row["tensor"] >= 0:
        values = np.abs(reader.values(int(row["tensor"])).astype(np.float64))
        small.subnormals += int(((values > 0) & (values < limits.smallest_normal)).sum())
        return
    small.is_exact = False
    if max(abs(row["min"]), abs(row["max"])) < limits.smallest_normal:
        small.subnormals += size - zeros
