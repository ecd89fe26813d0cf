"""What is added to scores with the mask in it: on one side alone, whose other side's code adds it by itself, or by other numbers on both."""

from __future__ import annotations

import math

import numpy as np

from probe.comparison.distance.masks import MASKING
from probe.comparison.distance.metrics import Metrics, kind_of, squeezed, values_of_pair
from probe.comparison.exemptions.padding import measured_values
from probe.comparison.steps.events import StepPairs
from probe.comparison.steps.side import Side
from probe.comparison.steps.step_half import Event

_SAME_NUMBER = 1e-2
"""rounding the lowest number of a dtype to one of fewer bits makes less"""
_LARGEST = 16 << 20
"""elements of a tensor that is read for it"""


def side_with_mask(pairs: StepPairs, event: Event) -> str:
    """Return the side, ``A`` or ``B``, that alone has numbers as masks put them in beside others; empty where none has."""
    masked = [_holds_mask(pairs.a, event.row_a), _holds_mask(pairs.b, event.row_b)]
    return "" if masked[0] == masked[1] else "A" if masked[0] else "B"


def have_other_masks(pairs: StepPairs, event: Event) -> bool:
    """Tell whether both sides have masks beside other numbers, which hide by numbers that are not the same: −1e9, −inf."""
    lowest = [_lowest(side, row) for side, row in ((pairs.a, event.row_a), (pairs.b, event.row_b))]
    holds = _holds_mask(pairs.a, event.row_a) and _holds_mask(pairs.b, event.row_b)
    return holds and not (lowest[0] == lowest[1] or math.isclose(*lowest, rel_tol=_SAME_NUMBER))


def mask_alike(pairs: StepPairs, event: Event) -> bool:
    """Tell whether two tensors mask the same elements, as far as their values tell."""
    if math.prod(pairs.a.shapes[event.row_a]) > _LARGEST:
        return True
    values = values_of_pair(pairs.a, event.row_a, pairs.b, event.row_b, free_axes=False)
    return values is None or bool(np.array_equal(values[0] > MASKING, values[1] > MASKING))


def where_not_masked(pairs: StepPairs, event: Event) -> Metrics | None:
    """Compare two tensors where neither masks; None where values are missing, or nothing is left."""
    a, b = pairs.a, pairs.b
    if event.metrics is None or event.factor != 1 or math.prod(a.shapes[event.row_a]) > _LARGEST:
        return None
    free = squeezed(a.shapes[event.row_a]) != squeezed(b.shapes[event.row_b])  # the mask would tell the order of axes
    values = values_of_pair(a, event.row_a, b, event.row_b, free_axes=free)
    if values is None:
        return None
    kept = (values[0] > MASKING) & (values[1] > MASKING)
    return measured_values(values[0][kept], values[1][kept], event.metrics) if np.any(kept) else None


def _holds_mask(side: Side, row: int) -> bool:
    if kind_of(side.dtypes[row]) != "float":
        return False
    return bool(_lowest(side, row) <= MASKING and math.prod(side.shapes[row]) > side.columns["neginf"][row])


def _lowest(side: Side, row: int) -> float:
    return -math.inf if side.columns["neginf"][row] else float(side.columns["min"][row])
