"""The values of two tensors that were compared, read again from their recordings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from probe.comparison.distance.metrics import values_of_pair
from probe.comparison.result import SlotResult
from probe.comparison.steps.paired_step import paired_step
from probe.errors import NotRecordedError
from probe.matching import Matching
from probe.ranks.opening import open_reader
from probe.records import Role


def values_of(
    slot: SlotResult, path_a: str, path_b: str, steps: Sequence[tuple[int, int]], matching: Matching
) -> tuple[np.ndarray, np.ndarray]:
    """Return the values of A and of B, B's in the order in which they were compared with A's.

    Raises
    ------
    NotRecordedError
        they were not recorded on both sides, or have no shape in common
    StoreError, FormatError
        a recording is no longer where it was, or cannot be read
    """
    what = f"{slot.role.label} {slot.slot_a} of {slot.path_a or 'the model'}"
    if slot.role is Role.DELTA:
        raise NotRecordedError(
            f"{what}: updates are kept as statistics only, whatever the task; their error is in .metrics. Values are kept of "
            "the parameter (.param[0]) and of its gradient (.param_grad[0])"
        )
    with open_reader(path_a) as a, open_reader(path_b) as b:
        pairs = paired_step(a, b, slot.step, dict(steps)[slot.step], matching)
        missing = [
            name for name, side, row in (("A", pairs.a, slot.row_a), ("B", pairs.b, slot.row_b)) if not side.has_values(row)
        ]  # fmt: skip
        if missing:
            raise NotRecordedError(
                f'no values of {what} were recorded in {" and ".join(missing)}: record both runs with task="tensor"'
            )
        module = next(index for index, known in enumerate(a.modules) if known.path == slot.path_a)
        free = pairs.has_free_axes(slot.role, pairs.pair_of_a[module], slot.row_a)
        values = values_of_pair(pairs.a, slot.row_a, pairs.b, slot.row_b, free_axes=free)
    if values is None:
        raise NotRecordedError(
            f"{what}: shapes {list(slot.shape_a)} and {list(slot.shape_b)} cannot be laid on each other"
        )
    return values
