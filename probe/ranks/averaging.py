"""What a share of the batch counts for: ranks whose gradients are averaged work on a loss that is the mean of theirs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from probe.ranks.gathering import Gathered, Held, gathered_of
from probe.ranks.members import Member, Shares
from probe.records import Phase, Role

_AVERAGING = ("DistributedDataParallel", "FullyShardedDataParallel", "DataParallel", "FSDP")
"""how classes begin that average gradients within backward"""
_NEAR = 0.05
"""share by which the ratio of norms may miss that of an average"""


def share_of_gradients(
    members: Sequence[Member], shares: Shares, held: Callable[[Member, Callable[[np.ndarray], np.ndarray]], Held]
) -> float:
    """Return what gradients of one share of the batch are multiplied by in those of the whole: 1, or one over the number of shares.

    Wrappers that average are known by their classes. Where ranks reduce gradients behind backward, those that the optimizer used
    are held against the sum of those that backward left, on ranks that differ in their share alone.

    Parameters
    ----------
    held
        returns the records of a rank that are wanted
    """
    if shares.count < 2:
        return 1.0
    if any(module.class_name.startswith(_AVERAGING) for module in members[0].reader.modules):
        return 1 / shares.count
    outside = [tuple(place for name, place in each.places.items() if name not in shares.groups) for each in members]
    chosen = [each for each, place in zip(members, outside, strict=True) if place == outside[0]]
    gathered = gathered_of([held(member, _are_gradients) for member in chosen])
    ratios = _ratios(gathered, len(chosen))
    is_average = bool(ratios) and abs(float(np.median(ratios)) * shares.count - 1) < _NEAR
    return 1 / shares.count if is_average else 1.0


def _are_gradients(rows: np.ndarray) -> np.ndarray:
    return rows["role"] == Role.PARAM_GRAD


def _ratios(gathered: Gathered, count: int) -> list[float]:
    """Return by parameter the length of the gradient that was used, over that of the sum of what backward left on so many ranks."""
    rows, member = gathered.rows, gathered.member
    left: dict[int, dict[int, tuple[int, int]]] = {}
    used: dict[int, int] = {}
    columns = (rows["order"], rows["micro"], rows["phase"], member)
    for k, (order, micro, phase, own) in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        if phase == Phase.UPDATE:
            used.setdefault(order, k)
        elif phase == Phase.GRADIENT:
            of_rank = left.setdefault(order, {})
            of_rank[own] = max(of_rank.get(own, (-1, k)), (micro, k))
    found = []
    for order, last in left.items():
        parts = [k for _, k in last.values()]
        total = np.linalg.norm(gathered.sketches[parts].sum(axis=0))
        if order in used and len(parts) == count and total > 0:
            found.append(float(np.linalg.norm(gathered.sketches[used[order]]) / total))
    return [each for each in found if np.isfinite(each)]
