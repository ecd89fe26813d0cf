"""How B's weights came of A's, where they are to be the same: earlier ones, rounded, in another order, an update counted twice; `EXPLANATIONS`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import xxhash

from probe.checks.outcome import Line, fault, fine, unchecked
from probe.checks.weights.measuring import parts

_TOPIC = "explained"
GRIDS = tuple(np.dtype(x) for x in (np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2))
"""from the finest to the coarsest"""
NEAR = 1e-3
"""relative distance from the root of an integer within which a factor is said to be it, where rounding leaves no more"""
_UNEXPLAINED = 0.05
"""share of B − base that k · (A − base) may leave, beside rounding"""
_ROUNDINGS = 4.0
"""times the rounding of a weight: what an update must be larger than, and a factor more precise than"""
MOST_TIMES = 16
"""largest factor that is said to be a root, or an integer"""
_FIRST = 4096
"""elements by which a grid is asked for first"""
Facts = Mapping[str, Any]


@dataclass(frozen=True)
class Held:
    """A weight of both sides, as it lies in B."""

    a: np.ndarray
    b: np.ndarray
    before: np.ndarray | None = None
    """A's before the last update"""
    base: np.ndarray | None = None
    """what A was tuned from"""

    def in_b(self, values: np.ndarray) -> np.ndarray:
        """Return values as B's dtype has them, without −0."""
        return values.astype(self.b.dtype) + self.b.dtype.type(0)


def as_before(held: Held) -> Facts | None:
    """B's are A's of before the last update: all, or some rows or columns, as a shard that was not sent."""
    if held.before is None or held.before.shape != held.b.shape:
        return None
    now, then, b = held.in_b(held.a), held.in_b(held.before), held.b
    for axis in range(min(b.ndim, 2)):
        rest = tuple(each for each in range(b.ndim) if each != axis)
        new, old = (b == now).all(axis=rest), (b == then).all(axis=rest)
        stale = np.flatnonzero(old & ~new)
        if stale.size and (old | new).all():
            part = "" if old.all() else f"{('rows', 'columns')[axis]} {stale[0]} to {stale[-1]} of {len(old)}"
            return {"part": part}
    return None


def rounded(held: Held) -> Facts | None:
    """B's are A's on a coarser grid, exactly."""
    wide = np.float64 if np.float64 in (held.a.dtype, held.b.dtype) else np.float32

    def is_on(grid: np.dtype, part: slice) -> bool:
        a, b = (each.reshape(-1)[part] for each in (held.a, held.b))
        return np.array_equal(a.astype(grid).astype(wide), b.astype(wide))

    narrower = [grid for grid in GRIDS if grid.itemsize < held.a.dtype.itemsize]
    narrower.sort(key=lambda grid: grid != held.b.dtype)  # what B would hold in any case
    grid = next((each for each in narrower if is_on(each, slice(_FIRST)) and is_on(each, slice(None))), None)
    return grid and {"grid": grid.name, "kept": held.b.dtype.name}


def permuted(held: Held) -> Facts | None:
    """B's rows or columns are A's in another order."""
    mine, theirs = held.in_b(held.a), held.in_b(held.b)
    if mine.max() != theirs.max() or mine.min() != theirs.min():
        return None
    for axis in range(min(held.b.ndim, 2)):
        rows = ((row.tobytes() for row in np.moveaxis(each, axis, 0)) for each in (mine, theirs))
        a, b = (np.array([xxhash.xxh3_64_intdigest(row) for row in each], np.uint64) for each in rows)
        order = np.empty(len(b), np.int64)
        order[np.argsort(b, kind="stable")] = np.argsort(a, kind="stable")
        if (a[order] == b).all() and (order != np.arange(len(b))).any():
            return {"axis": axis, "of": held.b.shape, **_pattern(order)}
    return None


def _pattern(order: np.ndarray) -> Facts:
    """Return how an order of axes makes an order of rows: ``[p, q, r]`` read as ``[q, p, r]`` in each block; else its beginning."""
    at = np.arange(len(order))
    run = int((np.diff(order) != 1).argmax()) + 1
    across = int(order[run]) // run
    for size in np.flatnonzero(np.maximum.accumulate(order) == at) + 1 if order[0] == 0 and across else ():
        if len(order) % size == 0 and size % (across * run) == 0:
            shape = (len(order) // size, size // (across * run), across, run)
            if np.array_equal(at.reshape(shape).swapaxes(1, 2).reshape(-1), order):
                return {"blocks": shape[0], "shape": shape[1:]}
    return {"blocks": 0, "order": tuple(map(int, order[:8]))}


def multiple(held: Held) -> Facts | None:
    """B = base + k · (A − base): an update that was counted more than once, or scaled otherwise."""
    base = held.before if held.base is None else held.base
    if base is None or base.shape != held.b.shape:
        return None
    sums = np.zeros(4)
    for a, b, start in zip(parts(held.a), parts(held.b), parts(base), strict=True):
        update, own = a - start, b - start
        sums += (update @ update, own @ own, own @ update, b @ b)
    eps = max(float(ml_dtypes.finfo(each.dtype).eps) for each in (held.a, held.b))
    length, rounding = math.sqrt(sums[0]), eps * math.sqrt(sums[3]) / 2
    if not np.isfinite(sums).all() or length <= _ROUNDINGS * rounding:
        return None
    k = float(sums[2] / sums[0])
    left, error = math.sqrt(max(sums[1] - k * sums[2], 0.0)), _ROUNDINGS * rounding / length / math.sqrt(held.b.size)
    is_one = abs(k - 1) <= max(error, NEAR)  # then B's are A's weights, and nothing else may differ
    if left > (0.0 if is_one else _UNEXPLAINED * math.sqrt(sums[1])) + 2 * rounding:
        return None
    of = "before" if held.base is None else "base"
    return {"of": of, "k": k, "is_one": is_one, "is_none": abs(k) <= max(error, NEAR), **_whole(k, error)}


def _whole(k: float, error: float) -> Facts:
    """Return of which integer a factor is the root, or one over it: of a square it is an integer itself."""
    for factor, is_inverse in ((k, False), (1 / k if k else 0.0, True)):
        factor = min(factor, 2.0 * MOST_TIMES)
        near = round(factor**2)
        is_near = abs(factor - math.sqrt(near)) <= max(error * factor**2 if is_inverse else error, NEAR * factor)
        if is_near and 2 <= near <= MOST_TIMES**2:
            return {"times": round(factor) if round(factor) ** 2 == near else 0, "root": near, "is_inverse": is_inverse}
    return {}


EXPLANATIONS: Mapping[str, Callable[[Held], Facts | None]] = {
    "weights-as-before": as_before,
    "weights-rounded": rounded,
    "weights-permuted": permuted,
    "weights-multiple": multiple,
}
"""by code, in the order in which they are asked"""


def explanations(weights: Iterable[tuple[str, Held]]) -> dict[str, tuple[str, Facts]]:
    """Return the first explanation that fits of each weight that has one; vectors in another order count beside matrices alone."""
    found: dict[str, tuple[str, Facts]] = {}
    for name, held in weights:
        codes = EXPLANATIONS if held.a.shape == held.b.shape and held.b.size else ()
        with np.errstate(over="ignore"):
            asked = ((code, EXPLANATIONS[code](held)) for code in codes)
            first = next(((code, facts) for code, facts in asked if facts is not None), None)
        if first is not None:
            found[name] = first
    axes = [len(facts["of"]) for code, facts in found.values() if code == "weights-permuted"]
    return {name: each for name, each in found.items() if each[0] != "weights-permuted" or max(axes) > 1}


def explained_lines(found: Mapping[str, tuple[str, Facts]], left: Sequence[str], are_same: bool) -> Iterator[Line]:
    """Yield what explains the weights of B, by their names; those of one explanation together.

    What is not explained is wrong if A's and B's weights are to be the same.
    """
    groups: dict[tuple[str, str], list[str]] = {}
    for name, (code, facts) in found.items():
        groups.setdefault((code, str({key: value for key, value in facts.items() if key != "k"})), []).append(name)
    for (code, _), names in groups.items():
        facts = {"times": 0, "root": 0, "is_inverse": False, **found[names[0]][1]}
        is_right = facts.get("is_one", False) or facts.get("grid", "") == facts.get("kept")
        yield (fine if is_right else fault)(_TOPIC, code, names=tuple(names), **facts)
    if left:
        yield (fault if are_same else unchecked)(_TOPIC, "weights-unexplained", names=tuple(left))
