"""Weights that are written to in the middle of a step, as the calls behind it find them.

An optimizer that steps between two forwards (a GAN's, one with a closure), averages (EMA) and perturbations (SAM) do so.
What such a call returns has the weights' errors, and those are the optimizer's, or of the code that wrote.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from probe.comparison import tolerance
from probe.comparison.events import StepPairs
from probe.comparison.metrics import Metrics, measure_pair
from probe.comparison.side import Side
from probe.comparison.step_half import Node, StepHalf
from probe.comparison.tolerance import Level
from probe.records import Phase, Role

_USED, _BEGUN, _LEFT = (f"{phase.label}:" for phase in (Phase.FORWARD, Phase.INIT, Phase.UPDATE))

Found = tuple[Side, int]
"""a record: the step of a recording, and the row"""


@dataclass(slots=True)
class Written:
    """A weight that a call finds written to, on both sides."""

    pair: int
    slot_a: str
    slot_b: str
    metrics: Metrics
    u: float
    limit: float
    """what else than an optimizer may have made of its error, as far as that follows from what it was written from"""
    changes: tuple[np.ndarray, np.ndarray] | None
    """sketches of what it was changed by since it was known last, in A and in B; None where that is not known"""


@dataclass
class WrittenWeights:
    """The weights of a step that are written to before a call, by the places that they have in A."""

    pairs: StepPairs
    seen: dict[tuple[int, str, int, int], Written] = field(default_factory=dict)
    """by pair, slot, and the rows of both sides"""

    def __post_init__(self) -> None:
        self._places = list(self._written_places())
        self._children: dict[int, list[int]] = {}
        for index, pair in enumerate(self.pairs.matching.pairs):
            self._children.setdefault(self.pairs.a.reader.modules[pair.a].parent, []).append(index)

    @property
    def are_there(self) -> bool:
        """Tell whether any weight was written to within the step."""
        return bool(self._places)

    def level(
        self, node: Node, owners: dict[tuple[int, str], list[int]], gradients: float, weights: float
    ) -> Level | None:
        """Return the error of a call's own weights, and of its children's, as it finds them; None where none was written to.

        Parameters
        ----------
        owners
            the pairs of all modules that hold a parameter of A, by pair and slot
        gradients, weights
            the largest relative errors of gradients and weights so far: what is written inherits them
        """
        if not self._places:
            return None
        module = self.pairs.matching.pairs[node.pair].a
        mine, found = {node.pair, *self._children.get(module, ())}, []
        for pair, slot_a, slot_b in self._places:
            if mine.intersection(owners.get((pair, slot_a), [pair])):
                written = self._as_found(pair, slot_a, slot_b, node, gradients, weights)
                if written is not None:
                    found.append(written)
        known = [each.metrics for each in found if each.metrics.is_known and math.isfinite(each.metrics.rel_l2)]
        if not known:
            return None
        norms = [max(metrics.norm_a, metrics.norm_b) for metrics in known]
        total = math.hypot(*norms)
        error = math.hypot(*(metrics.rel_l2 * norm for metrics, norm in zip(known, norms, strict=True)))
        level = Level()
        level.add(tolerance.UPDATED_GAIN * error / total if total else 0.0, max(each.u for each in found))
        return level

    def otherwise(self) -> Iterator[tuple[Written, str]]:
        """Yield the weights that something else than an optimizer writes to, and otherwise on one side; and how."""
        for written in self.seen.values():
            if written.changes is not None and written.metrics.rel_l2 > written.limit and not self._is_updated(written):
                a, b = (float(np.linalg.norm(change)) for change in written.changes)
                if a and b:
                    yield written, f"what it is changed by is {b / a:.3g} times as long in B as in A"
                elif a or b:
                    yield written, f"{'B' if a else 'A'} does not change it"

    def _is_updated(self, written: Written) -> bool:
        """Tell whether an optimizer was seen to update a weight in this step: then that is judged."""
        return any(
            _LEFT + slot in half.rows.get((0, half.modules[written.pair], 0), Role.DELTA)
            for half, slot in zip(self.pairs.halves, (written.slot_a, written.slot_b), strict=True)
        )

    def _written_places(self) -> Iterator[tuple[int, str, str]]:
        """Yield pair and slots of the parameters that a side found written to."""
        for index, pair in enumerate(self.pairs.matching.pairs):
            rows_a, rows_b = (
                half.rows.get((0, module, 0), Role.PARAM)
                for half, module in zip(self.pairs.halves, (pair.a, pair.b), strict=True)
            )
            names_b = {
                self.pairs.b.canonical(pair.b, label.partition(":")[2]): label.partition(":")[2] for label in rows_b
            }
            for slot in dict.fromkeys(label.partition(":")[2] for label in rows_a):
                other = names_b.get(self.pairs.a.canonical(pair.a, slot))
                if other is not None and (_USED + slot in rows_a or _USED + other in rows_b):
                    yield index, slot, other

    def _as_found(
        self, pair: int, slot_a: str, slot_b: str, node: Node, gradients: float, weights: float
    ) -> Written | None:
        """Compare a weight as a call found it; None where it has not been written to yet, or is not known on one side."""
        ends, histories = (node.end, node.end_b), []
        for half, slot, end in zip(self.pairs.halves, (slot_a, slot_b), ends, strict=True):
            histories.append(_history(half, half.modules[pair], slot, end))
        if not any(is_written for _, is_written in histories):
            return None
        (known_a, written_a), (known_b, written_b) = histories
        frameworks = {half.side.reader.info.framework for half in self.pairs.halves}
        if not known_a or not known_b or (written_a is not written_b and len(frameworks) > 1):
            return None  # not every framework tells that a tensor was written to
        key = pair, slot_a, known_a[-1][1], known_b[-1][1]
        if key not in self.seen:
            metrics = measure_pair(*known_a[-1], *known_b[-1], free_axes=False)
            u = max(side.roundoffs[row] for side, row in (known_a[-1], known_b[-1]))
            changes = [_change(known, is_written) for known, is_written in histories]
            both = None if changes[0] is None or changes[1] is None else (changes[0], changes[1])
            side, row = known_a[-1]
            limit = max(
                tolerance.INIT.limit(u, 0.0),
                weights,
                _inherited(metrics, both, u, gradients, math.prod(side.shapes[row])),
            )
            self.seen[key] = Written(pair, slot_a, slot_b, metrics, u, limit, both)
        return self.seen[key]


def _history(half: StepHalf, module: int, slot: str, end: int) -> tuple[list[Found], bool]:
    """Return the records of a weight that a call, which ends then, may rest on; and whether the last is of its being written to."""
    rows, seq = half.rows.get((0, module, 0), Role.PARAM), half.side.columns["seq"]
    used = [row for row in rows.get(_USED + slot, ()) if seq[row] < end]
    known = [(half.side, row) for row in (*rows.get(_BEGUN + slot, ()), *used)]
    earlier = half.side.earlier if len(known) < 2 else None
    if earlier is not None:
        columns = earlier.columns
        before = [
            row for row, (role, owner) in enumerate(zip(columns["role"], columns["module"], strict=True))
            if role == Role.PARAM and owner == module and earlier.slots[row] == slot
        ]  # fmt: skip
        known = [*((earlier, row) for row in sorted(before, key=lambda row: columns["seq"][row])[-1:]), *known]
    return known, bool(used)


def _change(known: list[Found], is_written: bool) -> np.ndarray | None:
    """Return the sketch of what a weight was changed by last; zeros where it was not written to."""
    sketches = [side.sketch(row) for side, row in known[-2:]]
    if any(sketch is None for sketch in sketches):
        return None
    if not is_written:
        return np.zeros_like(sketches[-1])
    return sketches[1] - sketches[0] if len(sketches) == 2 else None


def _inherited(
    metrics: Metrics, changes: tuple[np.ndarray, np.ndarray] | None, u: float, gradients: float, size: int
) -> float:
    """Return the relative error of a weight that what it was changed by may have from gradients."""
    length = max(float(np.linalg.norm(change)) for change in changes) if changes is not None else 0.0
    norm = max(metrics.norm_a, metrics.norm_b)
    if not length or not norm:
        return 0.0
    return min(1.0, tolerance.update_bound(gradients, u, norm / length, size)) * length / norm
