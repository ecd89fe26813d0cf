"""Two sequences of calls, inside two calls that are one, laid side by side: operations, and modules that are known to be pairs.

The best alignment in order, by dynamic programming (Needleman and Wunsch, 1970). Two operations may be one if they have one
name, or are given or return the same; tensors decide between several of one name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from probe.operations.names import LAYOUT
from probe.records import Role
from probe.verdict.distance.estimates import from_statistics
from probe.verdict.side import Call
from probe.verdict.tensors import Tensor

NEAR = 0.05
"""relative error up to which statistics may be those of one tensor, in 16 bits too"""
_MOST = 1500
"""calls of one sequence; longer ones are aligned as far as that"""


@dataclass(frozen=True, eq=False, slots=True)
class Item:
    """A call inside a call."""

    call: Call
    name: str
    """canonical, of an operation; empty for a module with a partner"""
    partner: int
    """the module of the other side, −1 for an operation"""


def aligned(mine: Sequence[Item], theirs: Sequence[Item]) -> list[tuple[Call, Call]]:
    """Return the operations of both sides that are one, in order."""
    mine, theirs = mine[:_MOST], theirs[:_MOST]
    scores = np.array([[score(x, y) for y in theirs] for x in mine]).reshape(len(mine), len(theirs))
    best = np.zeros((len(mine) + 1, len(theirs) + 1))
    for i in range(len(mine) - 1, -1, -1):
        for j in range(len(theirs) - 1, -1, -1):
            best[i, j] = max(best[i + 1, j], best[i, j + 1], best[i + 1, j + 1] + scores[i, j])
    found, i, j = [], 0, 0
    while i < len(mine) and j < len(theirs):
        if scores[i, j] > 0 and best[i, j] == best[i + 1, j + 1] + scores[i, j]:
            if mine[i].partner < 0:
                found.append((mine[i].call, theirs[j].call))
            i, j = i + 1, j + 1
        elif best[i, j] == best[i + 1, j]:
            i += 1
        else:
            j += 1
    return found


def score(x: Item, y: Item) -> float:
    """Return how likely two calls are one; negative if they are not."""
    if x.partner >= 0 or y.partner >= 0:
        return 100.0 if x.partner == y.call.module else -100.0
    is_one_name, given, made = x.name == y.name, likeness(x, y, Role.INPUT), likeness(x, y, Role.OUTPUT)
    if not is_one_name and max(given, made) < 1:
        return -1.0
    if not is_one_name and x.name in LAYOUT and y.name in LAYOUT and made <= 1:  # statistics stay, whatever is moved
        return -1.0
    named = (1.0 if x.name in LAYOUT else 3.0) if is_one_name else 0.0
    return max(named + 2 * given + 3 * made, 0.1 if is_one_name else -1.0)


def likeness(x: Item, y: Item, role: Role) -> float:
    """Return 1 if all tensors that two calls were given, or returned, may be the same, 1.5 if they are; else less, down to −0.5.

    Of what they were given, each of the fewer ones has to be among the others.
    """
    mine, theirs = list(x.call.of(role).values()), list(y.call.of(role).values())
    if not mine or not theirs:
        return 0.0
    fewer, more = sorted((mine, theirs), key=len)
    if role is Role.INPUT and len(fewer) < len(more):
        return 0.0 if any(is_like(each, other) for each in fewer for other in more) else -0.5
    are_same = all(any(each.hash is not None and each.hash == other.hash for other in more) for each in fewer)
    if are_same:
        return 1.5
    if all(any(is_like(each, other) for other in more) for each in fewer):
        return 1.0
    if any(each.shape == other.shape for each in fewer for other in more):
        return 0.25
    return 0.0 if any(each.size == other.size for each in fewer for other in more) else -0.5


def is_like(a: Tensor, b: Tensor) -> bool:
    """Return True if two tensors may be one: their hashes are the same, or nearly their statistics."""
    if a.hash is not None and a.hash == b.hash:
        return True
    if a.size != b.size or (a.kind == "integer") != (b.kind == "integer"):
        return False
    return from_statistics(a, b).size < NEAR
