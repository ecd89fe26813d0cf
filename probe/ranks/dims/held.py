"""What ranks hold of tensors: in which groups they hold the same, nearly the same, or something else."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import xxhash

from probe.numbers.sketch import WIDTH
from probe.ranks.gathering import Gathered
from probe.ranks.layout.places import Layout
from probe.ranks.members import Member
from probe.ranks.replicas import error_between

_NEARLY = 0.5
"""relative error up to which tensors are copies of each other; parts of one, and terms of a sum, are further apart"""

Signature = int
"""a hash of the bytes of a tensor on each rank that holds some of it"""


class Held:
    """The rows of all ranks, by tensor; ``shapes`` are of each tensor, on one of its ranks."""

    def __init__(
        self, gathered: Gathered, members: Sequence[Member], layout: Layout, shapes: Sequence[tuple[int, ...]]
    ) -> None:
        self._gathered, self._members, self._layout, self._shapes = gathered, members, layout, shapes
        columns = (gathered.member, gathered.rows["hash_lo"], gathered.rows["hash_hi"])
        self._bytes = np.stack([column.astype(np.uint64) for column in columns], axis=-1)
        starts, counts = gathered.starts.tolist(), gathered.counts.tolist()
        self._own = [slice(start, start + count) for start, count in zip(starts, counts, strict=True)]

    def signature(self, tensor: int) -> Signature:
        """Return a hash of what the ranks hold of a tensor."""
        return xxhash.xxh3_64_intdigest(self._bytes[self._own[tensor]].tobytes())

    def differing(self, tensor: int) -> list[str]:
        """Return the groups in which ranks differ that have another place in that group alone."""
        rows = self._bytes[self._own[tensor]]
        members = [self._members[k] for k in rows[:, 0].tolist()]
        differing = differing_groups(rows[None, :, 1:], members, self._layout)
        return [name for name, differs in differing.items() if differs[0]]

    def apart(self, tensor: int) -> list[str]:
        """Return the groups whose ranks hold parts, or terms of a sum: what differs little is a copy that has an error.

        Terms of a sum are nearly alike where all are positive (losses, counts, probabilities), and single numbers by chance.
        """
        differing = self.differing(tensor)
        if not self.is_signed(tensor):
            return differing
        own = self._own[tensor]
        rows, sketches = self._gathered.rows[own], self._gathered.sketches[own]
        members = [self._members[k] for k in self._gathered.member[own].tolist()]

        def is_apart(name: str) -> bool:
            like = _first_alike(members, [other for other in self._layout.dividing if other != name])
            return not all(error_between(rows, sketches, like[k], [k]) <= _NEARLY for k in range(len(like)))

        return [name for name in differing if is_apart(name)]

    def is_signed(self, tensor: int) -> bool:
        """Return True if what each rank holds has positive and negative elements, and not only a few."""
        rows = self._gathered.rows[self._own[tensor]]
        return math.prod(self._shapes[tensor]) >= WIDTH and bool(((rows["min"] < 0) & (rows["max"] > 0)).all())


def differing_groups(digests: np.ndarray, members: Sequence[Member], layout: Layout) -> dict[str, np.ndarray]:
    """Return by group whether members differ that have another place in that group alone, by tensor.

    ``digests`` are of what members hold, shape (tensors, members, 2).
    """
    found = {}
    dividing = layout.dividing
    for name in dividing:
        like = _first_alike(members, [other for other in dividing if other != name])
        found[name] = (digests != digests[:, like]).any(axis=(1, 2))
    return found


def _first_alike(members: Sequence[Member], groups: Sequence[str]) -> list[int]:
    """Return by member the first one that has the same places in some groups."""
    first: dict[tuple[int, ...], int] = {}
    places = [tuple(member.places.get(group, 0) for group in groups) for member in members]
    return [first.setdefault(place, k) for k, place in enumerate(places)]
