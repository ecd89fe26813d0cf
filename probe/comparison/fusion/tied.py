"""Weights that are one in one model and two in the other one."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from probe.comparison.distance.metrics import Metrics
from probe.comparison.notes import Note, note
from probe.comparison.steps.events import StepPairs
from probe.comparison.steps.side import Side, squeezed
from probe.comparison.steps.step_half import Event, StepHalf
from probe.records import Role

_EXPLAINED = 1e-3
"""share of the error that two gradients may leave over which add up to the other model's"""


def untied(pairs: StepPairs, event: Event) -> Note | None:
    """Say so when a gradient is the sum of those of two weights of the other model, of which one has no partner."""
    for half, there in (pairs.halves, pairs.halves[::-1]):
        side, row, other, other_row = half.side, half.row(event), there.side, there.row(event)
        whole, own = side.sketch(row), other.sketch(other_row)
        if whole is None or own is None or squeezed(side.shapes[row]) != squeezed(other.shapes[other_row]):
            continue
        for second in _without_partner(there, other_row):
            sketch = other.sketch(second)
            if sketch is not None and _adds_up(event.metrics, whole, own + sketch):
                places = [_place(other, each) for each in (other_row, second)]
                return note(
                    "tied-on-one-side", slot=event.slot_a, to=_tied_to(side, row), side=half.name, other=there.name,
                    one=places[0], second=places[1],
                )  # fmt: skip
    return None


def _adds_up(metrics: Metrics | None, whole: np.ndarray, total: np.ndarray) -> bool:
    length = float(np.linalg.norm(whole))
    error = metrics.rel_l2 if metrics is not None and math.isfinite(metrics.rel_l2) else 0.0
    return length > 0 and float(np.linalg.norm(whole - total)) <= _EXPLAINED * error * length


def _without_partner(half: StepHalf, row: int) -> Iterator[int]:
    """Yield other gradients of the same step and shape, of modules that the other side has nothing for."""
    side, columns = half.side, half.side.columns
    wanted = columns["phase"][row], Role.PARAM_GRAD
    for each, found in enumerate(zip(columns["phase"], columns["role"], strict=True)):
        if found == wanted and side.shapes[each] == side.shapes[row] and columns["module"][each] not in half.pair_of:
            yield each


def _place(side: Side, row: int) -> str:
    return f"{side.reader.modules[side.columns['module'][row]].path}.{side.slots[row].partition('.')[0]}"


def _tied_to(side: Side, row: int) -> str:
    """Return another name of a parameter, empty where it has none."""
    own = _place(side, row)
    names = next((parameter.names for parameter in side.parameters if own in parameter.names), ())
    return next((name for name in names if name != own), "")
