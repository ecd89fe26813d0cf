"""What the other side of a comparison shows of how tensors are divided: the shapes that it has in their place."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from probe.ranks.opening import is_of_ranks
from probe.records import Role
from probe.store.reading.reader import Reader

Shapes = Mapping[tuple[int, Role], Sequence[tuple[str, tuple[int, ...]]]]
"""by module and role: slots and shapes"""


def see_each_other(a: Reader, b: Reader, pairs: Iterable[tuple[int, int]], layouts: Mapping[str, str]) -> None:
    """Let recordings of ranks take the other side's shapes, and what the user says; others are left alone.

    ``pairs`` are modules of A and B that are the same, ``layouts`` dims by globs of module paths.
    """
    readers = [reader for reader in (a, b) if is_of_ranks(reader)]
    if not readers:
        return
    key = tuple(layouts.items()), tuple(pairs)
    if all(reader.seen == key for reader in readers):
        return
    shown = _shapes(a), _shapes(b)
    for reader, theirs, turned in ((a, shown[1], key[1]), (b, shown[0], [(y, x) for x, y in key[1]])):
        if is_of_ranks(reader):
            partner = {reader.modules[mine].path: other for mine, other in turned}
            reader.see(layouts, Shown(theirs, partner))
            reader.seen = key


@dataclass(frozen=True)
class Shown:
    """The shapes that the other side has in the place of a module's tensors."""

    shapes: Shapes
    partner: Mapping[str, int]
    """by path, the module of the other side"""

    def __call__(self, path: str, role: Role, slot: str) -> Sequence[tuple[int, ...]]:
        """Return the shapes of a slot; those of all slots where it has none of that name."""
        found = self.shapes.get((self.partner.get(path, -1), role), ())
        return [shape for name, shape in found if name == slot] or [shape for _, shape in found]


def _shapes(reader: Reader) -> Shapes:
    """Return the shapes that a run's tensors have in its first step."""
    found: dict[tuple[int, Role], dict[tuple[str, tuple[int, ...]], None]] = defaultdict(dict)
    for row in reader.steps[:1]:
        rows = reader.of_step("records", int(row["step"]))
        for module, role, slot, shape in np.unique(rows[["module", "role", "slot", "shape"]]).tolist():
            name = reader.slots[slot].rpartition(":")[2]
            found[module, Role(role)][name, tuple(reader.shapes[shape])] = None
    return {key: list(each) for key, each in found.items()}
