"""Classes of which nothing says how their matrices lie: what they are given and return says it."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from probe.numbers.statistics import dtype_of, is_float
from probe.records import Phase, Role
from probe.store.reading.reader import Reader

Kind = tuple[str, str]
"""a class, and the slot of a parameter"""


def turned_classes(reader: Reader, records: np.ndarray) -> frozenset[Kind]:
    """Return the classes, with a slot each, that hold a matrix as [in, out]: all of their modules that tell say so.

    A square one does not tell; it lies as those of the other modules of its class do.

    Parameters
    ----------
    records
        of the first calls
    """
    given, made = (_widths(reader, records, role) for role in (Role.INPUT, Role.OUTPUT))
    votes: dict[Kind, set[bool]] = defaultdict(set)
    for each in reader.parameters:
        wide, high = given.get(each.module), made.get(each.module)
        if each.is_buffer or each.axes or len(each.shape) != 2 or wide is None or high is None or wide == high:
            continue
        if sorted(each.shape) == sorted((wide, high)):
            votes[reader.modules[each.module].class_name, each.slot].add(each.shape == (wide, high))
    return frozenset(kind for kind, seen in votes.items() if seen == {True})


def _widths(reader: Reader, records: np.ndarray, role: Role) -> dict[int, int]:
    """Return the size of the last axis of the only tensor of floats that each module was given, or returned."""
    rows = records[(records["role"] == role) & (records["phase"] == Phase.FORWARD)]
    found: dict[int, list[int]] = defaultdict(list)
    for module, shape, dtype in zip(
        rows["module"].tolist(), rows["shape"].tolist(), rows["dtype"].tolist(), strict=True
    ):
        if is_float(dtype_of(dtype.decode())) and reader.shapes[shape]:
            found[module].append(reader.shapes[shape][-1])
    return {module: sizes[0] for module, sizes in found.items() if len(sizes) == 1}
