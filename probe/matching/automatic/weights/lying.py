"""Whether rows may lie in another order, or a number is open, as `packing` finds out: the cheap question that is always asked."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from probe.matching.initial_weights import first_step, initial
from probe.matching.result import Bundle, Matching, WeightBundle
from probe.store.reading.reader import Reader

CAST = 1e-2
"""error of weights that were cast to 16 bits"""
_MOST_PARTS = 4
"""of which every order is tried"""


def may_lie_otherwise(matching: Matching, a: Reader, b: Reader) -> bool:
    """Return True if `packed_as_read` has anything to do: an open number, or equal numbers in other places."""
    if any(map(is_open, (*matching.bundles, *matching.weight_bundles))) or any(
        map(has_guessed_parts, matching.bundles)
    ):
        return True
    of_a, of_b = _initial(a), _initial(b)
    return any(_are_elsewhere(of_a[i], of_b[j]) for i, j in plain_pairs(matching) if i in of_a and j in of_b)


def is_open(bundle: Bundle | WeightBundle) -> bool:
    """Return True if nothing says in how many groups, or by how many heads, something lies in one."""
    return not bundle.groups or bundle.rotary < 0


def has_guessed_parts(bundle: Bundle) -> bool:
    """Return True if the order in which parts lie in one was guessed by their names."""
    return 1 < len(bundle.parts) <= _MOST_PARTS and not bundle.is_known and not bundle.rotary and not bundle.order


def plain_pairs(matching: Matching) -> Iterator[tuple[int, int]]:
    """Yield the pairs of modules of which nothing says that one is several of the other side."""
    here, there = matching.bundled("A"), matching.bundled("B")
    pairs = (pair for pair in matching.pairs if pair.has_calls)
    yield from ((pair.a, pair.b) for pair in pairs if pair.a not in here and pair.b not in there)


class _Begun(NamedTuple):
    """A matrix as a run begins with it."""

    ends: tuple[float, float]
    norm: float
    digest: tuple[int, int]
    sketch: np.ndarray


def _initial(side: Reader) -> dict[int, list[_Begun]]:
    """Return the matrices of each module that the run begins with."""
    rows, at = initial(side)
    sketches = side.of_step("sketches", first_step(side))[at]
    found: dict[int, list[_Begun]] = defaultdict(list)
    names = ("shape", "module", "min", "max", "norm", "hash_lo", "hash_hi")
    columns = (rows[name].tolist() for name in names)
    for shape, module, low, high, norm, *digest, sketch in zip(*columns, sketches, strict=True):
        if len(side.shapes[shape]) == 2:
            found[module].append(_Begun((low, high), norm, tuple(digest), sketch))
    return found


def _are_elsewhere(mine: list[_Begun], theirs: list[_Begun]) -> bool:
    """Return True if two modules have one matrix each, of about the same numbers, which lie elsewhere."""
    if len(mine) != 1 or len(theirs) != 1:
        return False
    (x,), (y,) = mine, theirs
    are_alike = all(math.isclose(*each, rel_tol=CAST) for each in (*zip(x.ends, y.ends, strict=True), (x.norm, y.norm)))
    return x.ends[0] < x.ends[1] and are_alike and x.digest != y.digest and not fits(x.sketch, y.sketch, CAST)


def fits(made: np.ndarray, whole: np.ndarray, within: float) -> bool:
    """Return True if two vectors are equal up to a share of the second."""
    return len(made) == len(whole) and bool(np.linalg.norm(made - whole) <= within * np.linalg.norm(whole))
