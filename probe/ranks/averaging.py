"""What a share of the batch counts for: ranks whose gradients are averaged work on a loss that is the mean of theirs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from probe.ranks.gathering import Gathered
from probe.ranks.members import Member, Shares
from probe.records import Phase, Role

_AVERAGING = ("DistributedDataParallel", "FullyShardedDataParallel", "DataParallel", "FSDP")
"""how classes begin that average gradients within backward"""
_NEAR = 0.05
"""share by which the ratio of norms may miss that of an average"""


def share_of_gradients(gathered: Gathered, members: Sequence[Member], shares: Shares) -> float:
    """Return what gradients of one share of the batch are multiplied by in those of the whole: 1, or one over the number of shares.

    Wrappers that average are known by their classes. Where ranks reduce gradients behind backward, those that the optimizer used
    are held against the sum of those that backward left.
    """
    if shares.count < 2:
        return 1.0
    if any(module.class_name.startswith(_AVERAGING) for module in members[0].reader.modules):
        return 1 / shares.count
    ratios = _ratios(gathered, members, shares)
    is_average = bool(ratios) and abs(float(np.median(ratios)) * shares.count - 1) < _NEAR
    return 1 / shares.count if is_average else 1.0


def _ratios(gathered: Gathered, members: Sequence[Member], shares: Shares) -> list[float]:
    """Return by parameter the length of the gradient that was used, over that of the sum of what backward left."""
    outside = [tuple(place for name, place in each.places.items() if name not in shares.groups) for each in members]
    chosen = [each.number for each, place in zip(members, outside, strict=True) if place == outside[0]]
    rows, member = gathered.rows, gathered.member
    is_gradient = (rows["role"] == Role.PARAM_GRAD) & np.isin(member, chosen)
    left: dict[int, dict[int, tuple[int, int]]] = {}
    used: dict[int, int] = {}
    for k in np.flatnonzero(is_gradient).tolist():
        order, micro = int(rows["order"][k]), int(rows["micro"][k])
        if rows["phase"][k] == Phase.UPDATE:
            used.setdefault(order, k)
        elif rows["phase"][k] == Phase.GRADIENT:
            own = left.setdefault(order, {})
            own[int(member[k])] = max(own.get(int(member[k]), (-1, k)), (micro, k))
    found = []
    for order, own in left.items():
        parts = [k for _, k in own.values()]
        total = np.linalg.norm(gathered.sketches[parts].sum(axis=0))
        if order in used and len(parts) == len(chosen) and total > 0:
            found.append(float(np.linalg.norm(gathered.sketches[used[order]]) / total))
    return [each for each in found if np.isfinite(each)]
