"""One recorded tensor as the checks look at it, and the rows of a step in the order of time."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from probe.notes import named, plain
from probe.numbers.statistics import dtype_of, is_float
from probe.records import Phase, Role
from probe.store.reading.reader import Reader


@dataclass(frozen=True, slots=True)
class Seen:
    """A tensor as it was recorded once."""

    step: int
    micro: int
    phase: Phase
    role: Role
    path: str
    class_name: str
    call: int
    slot: str
    dtype: str
    shape: tuple[int, ...]
    low: float
    """smallest finite element; NaN where none is finite"""
    high: float
    norm: float
    nan: int
    posinf: int
    neginf: int
    zeros: int

    @property
    def size(self) -> int:
        """How many elements it has; a complex one counts as two."""
        return math.prod(self.shape) * (2 if self.dtype.startswith("complex") else 1)

    @property
    def bad(self) -> int:
        """How many elements are NaN or infinite."""
        return self.nan + self.posinf + self.neginf

    @property
    def largest(self) -> float:
        """Largest finite magnitude; NaN where no element is finite."""
        return max(abs(self.low), abs(self.high))

    def as_json(self) -> dict[str, Any]:
        """Return the fields by their names in JSON."""
        place = {**named(self, "step", "micro", "phase", "role", "path"), "class": self.class_name}
        ends = {"min": plain(self.low), "max": plain(self.high)}
        numbers = ends | named(self, "norm", "nan", "posinf", "neginf", "zeros")
        return place | named(self, "call", "slot", "dtype", "shape") | numbers


def seen(reader: Reader, row: Any) -> Seen:
    """Return a row of the records."""
    module = reader.modules[row["module"]]
    return Seen(
        int(row["step"]), int(row["micro"]), Phase(row["phase"]), Role(row["role"]), module.path, module.class_name,
        int(row["call"]), reader.slots[row["slot"]], row["dtype"].decode(), reader.shapes[row["shape"]], float(row["min"]),
        float(row["max"]), float(row["norm"]), int(row["nan"]), int(row["posinf"]), int(row["neginf"]), int(row["zeros"]),
    )  # fmt: skip


def in_time(reader: Reader, step: int) -> np.ndarray:
    """Return the records of a step in the order in which they were seen."""
    rows = reader.of_step("records", step)
    return rows[np.argsort(rows["seq"], kind="stable")]


def first_call(reader: Reader, step: int) -> int:
    """Return the number, in the file, of a step's first call: callers are given by these numbers."""
    found = 0
    for row in reader.steps:
        if row["step"] == step:
            break
        found = int(row["n_calls"])
    return found


@dataclass(frozen=True, slots=True)
class Range:
    """How large and how small the numbers of a dtype are."""

    largest: float
    smallest_normal: float
    smallest: float
    """the smallest that is not 0"""


@functools.cache
def range_of(name: str) -> Range | None:
    """Return the range of a floating-point dtype; None for others."""
    dtype = dtype_of(name)
    dtype = np.empty(0, dtype).real.dtype if dtype.kind == "c" else dtype
    if not is_float(dtype):
        return None
    info = ml_dtypes.finfo(dtype)
    return Range(float(info.max), float(info.smallest_normal), float(info.smallest_subnormal))
