"""Ranks that must hold the same and do not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from probe.numbers.statistics import is_integer, unit_roundoff
from probe.ranks.members import Member
from probe.records import Phase, Role

_ROUNDINGS = 8
"""unit roundoffs up to which copies differ by rounding: two kernels, or sums in another order"""
_MORE, _MOST = 32, 0.02
"""the same in precise dtypes, and the relative error up to which that holds"""


@dataclass(frozen=True)
class Copy:
    """What one rank holds of a tensor that several have."""

    rank: int
    sketch: np.ndarray


@dataclass(frozen=True)
class Difference:
    """A tensor that some ranks hold otherwise than their copies."""

    step: int
    micro: int
    phase: Phase
    role: Role
    module: int
    call: int
    slot: str
    order: int
    ranks: tuple[int, ...]
    """those that differ from most of the others"""
    others: tuple[int, ...]
    """those that agree"""
    groups: tuple[str, ...]
    """in which their places differ"""
    error: float
    """relative, estimated"""
    is_of_weight: bool
    shape: tuple[int, ...]
    copies: tuple[Copy, ...]
    tensor: int
    """its number in the step as it was gathered"""

    @property
    def is_told(self) -> bool:
        """Return True if most ranks agree, so that it is known which of them differ."""
        return len(self.others) > len(self.ranks)


def majority(digests: Sequence[tuple[int, int]]) -> tuple[int, list[int]]:
    """Return which copy stands for all, and those that differ from it: the most common one, the first among equals."""
    common = Counter(digests).most_common()
    best = max(common, key=lambda each: (each[1], -digests.index(each[0])))[0]
    return digests.index(best), [k for k, digest in enumerate(digests) if digest != best]


def error_between(rows: np.ndarray, sketches: np.ndarray, chosen: int, others: Sequence[int]) -> float:
    """Return the largest relative error of copies against the one that stands for them, from their sketches and norms."""
    worst = 0.0
    for other in others:
        norms = float(rows["norm"][chosen]), float(rows["norm"][other])
        largest = max(norms)
        if rows["nan"][chosen] != rows["nan"][other] or not np.isfinite(largest):
            return float("inf")
        apart = max(float(np.linalg.norm(sketches[chosen] - sketches[other])), abs(norms[0] - norms[1]))
        worst = max(worst, apart / largest if largest else 0.0)
    return worst


def is_rounding(dtype: str, error: float) -> bool:
    """Return True if copies of a dtype may differ so much by rounding alone."""
    u = unit_roundoff(dtype)
    return not is_integer(dtype) and 0 < error <= max(_ROUNDINGS * u, min(_MORE * u, _MOST))


def groups_between(members: Sequence[Member], some: Sequence[int], others: Sequence[int]) -> tuple[str, ...]:
    """Return the groups in which all of some ranks have other places than all of the others."""
    if not some or not others:
        return ()
    return tuple(
        name
        for name in members[0].places
        if not {members[k].places[name] for k in some} & {members[k].places[name] for k in others}
    )
