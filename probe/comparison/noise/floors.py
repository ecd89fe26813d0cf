"""Floors: how large an error is that is no fault, at every tensor of a step, measured in further recordings of A's model."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from probe.comparison.distance.metrics import Side, Status
from probe.comparison.noise.other_runs import measured
from probe.comparison.steps.events import StepPairs
from probe.numbers.statistics import unit_roundoff
from probe.records import Role

_NUMBER = re.compile(r"\d+")
_Z = 4.75
"""standard deviations: one false alarm in a million tensors"""
_INDEPENDENT = 256
"""elements of a larger tensor do not round independently of each other"""
SMALLEST = 16
"""elements; of smaller tensors a few runs say too little, and the built-in model has the last word"""
_DEVIATION = 1.4826
"""standard deviation of a normal distribution, as a multiple of its median absolute deviation"""
_SIBLINGS = 8
"""tensors of a kind from which on their scales are a sample"""
_COMMON = 0.9
"""quantile of the siblings' scales, 1.6 standard deviations of normal ones, that is a measure of all of them"""
SCALE_SIZE = 256
"""elements of the smallest tensor whose norm tells a scale from rounding"""


class Floor(NamedTuple):
    """What is no fault, at one tensor."""

    error: float
    scale: float
    """|‖B‖/‖A‖ − 1|"""
    shift: float = 0.0
    """how far the means are apart, √n times, in ‖A‖"""


def spread_factor(size: int, runs: int) -> float:
    """Return how many times the floor another run's error may be by chance; inf where that cannot be told.

    Errors of independent elements: the ratio of two mean squares has the F distribution, with as many degrees of freedom as
    elements, times the runs. By Paulson's approximation.
    """
    d = min(size, _INDEPENDENT)
    if d < SMALLEST:
        return math.inf
    a, b = 2 / (9 * d), 2 / (9 * d * runs)
    square, linear, constant = (1 - b) ** 2 - _Z**2 * b, (1 - a) * (1 - b), (1 - a) ** 2 - _Z**2 * a
    if square <= 0:
        return math.inf
    root = (linear + math.sqrt(max(0.0, linear**2 - square * constant))) / square
    return root**1.5


def robust_floor(errors: Sequence[float]) -> float:
    """Return the largest of a few errors, or their median and three robust deviations where that is more."""
    ordered = sorted(errors)
    median = ordered[len(ordered) // 2]
    deviations = sorted(abs(error - median) for error in ordered)
    spread = _DEVIATION * deviations[len(deviations) // 2]
    return max(ordered[-1], median + 3 * spread) if len(ordered) > 2 else ordered[-1]


class Floors:
    """The floors of one step, by A's rows.

    Parameters
    ----------
    pairs
        the step
    others
        a step of each further run, and its rows by A's
    """

    def __init__(self, pairs: StepPairs, others: Sequence[tuple[Side, dict[int, int]]]) -> None:
        self.pairs, self.runs = pairs, len(others)
        self._of: dict[int, Floor] = {}
        self._shares: dict[tuple[object, ...], list[float]] = defaultdict(list)
        """what share of an error is common to all elements, in units of what chance gives, by kind"""
        rows = {row for _, found in others for row in found}
        for row in sorted(rows):
            measured_there = [self._measured(row, side, found) for side, found in others]
            known = [each for each in measured_there if each is not None]
            if known:
                errors, scales, shifts = zip(*known, strict=True)
                self._of[row] = Floor(robust_floor(errors), max(scales), max(shifts))
                for each in known:
                    if (
                        2 * each.error >= self._of[row].error
                    ):  # the few bits by which a nearly equal run differs have a way of their own
                        self._sample(row, each.error, each.scale)

    def _measured(self, row: int, side: Side, found: dict[int, int]) -> Floor | None:
        if row not in found or not unit_roundoff(self.pairs.a.dtypes[row]):
            return None
        metrics = measured(self.pairs.a, row, side, found[row])
        if metrics.status not in (Status.EQUAL, Status.COMPARED) or metrics.is_lower_bound:
            return None
        return Floor(metrics.rel_l2, scale_of(metrics.norm_ratio), shift_between(self.pairs.a, row, side, found[row]))

    def _sample(self, row: int, error: float, scale: float) -> None:
        size = self._size(row)
        if error > 0 and size >= SCALE_SIZE:
            for kind in self._kinds(row):
                self._shares[kind].append(scale / error * math.sqrt(size))

    def _kinds(self, row: int) -> list[tuple[object, ...]]:
        """Return what a tensor's siblings have in common: the path but for its numbers, the class, only the role."""
        columns = self.pairs.a.columns
        info = self.pairs.a.reader.modules[columns["module"][row]]
        role = columns["phase"][row], columns["role"][row]
        return [(*role, _NUMBER.sub("*", info.path)), (*role, "", info.class_name), role]

    def _size(self, row: int) -> int:
        return math.prod(self.pairs.a.shapes[row])

    def get(self, row: int) -> Floor | None:
        """Return the floor of a row, None where nothing was measured."""
        return self._of.get(row)

    def common_share(self, row: int) -> float:
        """Return which share of an error is a common scale in nine tenths of its siblings; inf where too few are known.

        What a module is given was made by others: it has the largest share of its siblings in any sense.
        """
        samples = [self._shares[kind] for kind in self._kinds(row)]
        shares = [_high(found) for found in samples if len(found) >= _SIBLINGS]
        if not shares:
            return math.inf
        is_given = self.pairs.a.columns["role"][row] == Role.INPUT
        return (max(shares) if is_given else shares[0]) / math.sqrt(self._size(row))

    @property
    def differs(self) -> bool:
        """Tell whether anything was measured that is not equal."""
        return any(floor.error > 0 for floor in self._of.values())

    def width(self) -> float:
        """Return the median floor of what modules return, 0.0 where none was measured."""
        columns = self.pairs.a.columns
        outputs = sorted(floor.error for row, floor in self._of.items() if columns["role"][row] == Role.OUTPUT)
        return outputs[len(outputs) // 2] if outputs else 0.0


def shift_between(a: Side, row_a: int, b: Side, row_b: int) -> float:
    """Return how far the means of two tensors are apart, √n times, in the norm of the first; 0.0 where that is 0."""
    norm, size = a.columns["norm"][row_a], math.prod(a.shapes[row_a])
    return abs(b.columns["mean"][row_b] - a.columns["mean"][row_a]) * math.sqrt(size) / norm if norm else 0.0


def _high(shares: Sequence[float]) -> float:
    return sorted(shares)[int(_COMMON * (len(shares) - 1))]


def scale_of(ratio: float) -> float:
    """Return by how much one norm is off another one, from their ratio; 0.0 where there is none."""
    return abs(ratio - 1) if math.isfinite(ratio) else 0.0
