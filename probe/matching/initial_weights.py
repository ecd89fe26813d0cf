"""What the initial weights of a recording are known by: numbers that no layout and no framework changes."""

from __future__ import annotations

import functools
import math

import numpy as np

from probe.matching.lists import Fingerprint
from probe.records import Phase, Role
from probe.store.reading.reader import Reader
from probe.structure.tree import Tree


def fingerprints(a: Reader, tree_a: Tree, b: Reader, tree_b: Tree) -> tuple[Fingerprint, Fingerprint]:
    """Return what identifies the weights below each module of either side, as they were in the first step.

    Size, smallest and largest element of each; where the two sides hold them in other dtypes, the latter as bfloat16
    has them. What is all one number tells nothing.
    """
    rows = [initial(side)[0] for side in (a, b)]
    is_cast = set(rows[0]["dtype"].tolist()) != set(rows[1]["dtype"].tolist())
    return _fingerprint(a, tree_a, rows[0], is_cast), _fingerprint(b, tree_b, rows[1], is_cast)


def first_step(side: Reader) -> int:
    """Return the first step of a recording, −1 if it has none."""
    return int(side.steps["step"][0]) if len(side.steps) else -1


def initial(side: Reader, role: Role = Role.PARAM) -> tuple[np.ndarray, np.ndarray]:
    """Return what the parameters, or the buffers, begin the first step with, and at which of its rows."""
    rows = side.of_step("records", first_step(side))
    at = np.flatnonzero((rows["role"] == role) & (rows["phase"] == Phase.INIT))
    return rows[at], at


def _fingerprint(side: Reader, tree: Tree, rows: np.ndarray, is_cast: bool) -> Fingerprint:
    own: dict[int, set[object]] = {}
    columns = (rows[name].tolist() for name in ("module", "shape", "min", "max"))
    for module, shape, low, high in zip(*columns, strict=True):
        if low < high and math.isfinite(low) and math.isfinite(high):
            ends = (rounded(low), rounded(high)) if is_cast else (low, high)
            own.setdefault(module, set()).add((math.prod(side.shapes[shape]), *ends))
    return functools.cache(lambda module: frozenset().union(*(own.get(index, ()) for index in tree.subtree(module))))


def rounded(value: float) -> int:
    """Return a number as bfloat16 has it: casting keeps the order, so the smallest number stays the smallest."""
    with np.errstate(over="ignore"):
        raw = int(np.float32(value).view(np.uint32))
    return (raw + 0x7FFF + (raw >> 16 & 1)) >> 16
