"""Weights that are written to in the middle of a step, as the calls behind it find them.

An optimizer that steps between two forwards (a GAN's, one with a closure), averages (EMA) and perturbations (SAM) do so.
What such a call returns has the weights' errors, and those are the optimizer's, or of the code that wrote: what a weight is
changed by tells, however small a part of it that is. Sketches are linear: an optimizer's updates are taken out of it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from probe.comparison.distance.metrics import Metrics, measure_pair
from probe.comparison.noise import tolerance
from probe.comparison.noise.tolerance import Level
from probe.comparison.notes import Note, note
from probe.comparison.steps.events import StepPairs
from probe.comparison.steps.side import Side
from probe.comparison.steps.step_half import Node, StepHalf
from probe.numbers.sketch import WIDTH
from probe.records import Phase, Role

_USED, _BEGUN, _LEFT, _SUM = (f"{phase.label}:" for phase in (Phase.FORWARD, Phase.INIT, Phase.UPDATE, Phase.GRADIENT))
_ROUNDING = 128 * 2.0**-24
"""share of a weight that is off where two of its sketches are subtracted"""

Place = tuple[int, str]
"""a pair of modules, and A's slot"""
Sketches = tuple[np.ndarray | None, np.ndarray | None]
"""of A and of B"""


@dataclass(frozen=True, slots=True)
class Written:
    """A weight that a call finds written to, on both sides."""

    place: Place
    slot_b: str
    metrics: Metrics
    u: float
    told: Note | None
    """how something else than an optimizer changed it otherwise in B, by more than noise; "" where nothing did, or where that is
    not known"""
    is_known: bool = True
    """what it was before is known on both sides, so that what it was changed by could be compared"""


@dataclass(frozen=True, slots=True)
class _History:
    """What one side's records say of a weight until a call ends."""

    side: Side
    row: int
    """its last record"""
    seq: int
    """when it was found written to; before all else where it was not"""
    change: np.ndarray | None
    """the sketch of what it was changed by since it was known last, without an optimizer's updates, which are judged as such"""

    @property
    def is_written(self) -> bool:
        """Whether it was written to in this step."""
        return self.seq >= 0


@dataclass
class WrittenWeights:
    """The weights of a step that are written to before a call, by the places that they have in A."""

    pairs: StepPairs
    before: Mapping[Place, Sketches]
    """the weights as they were known last before the step"""
    gradients: Mapping[Place, float]
    """the relative errors of the parameters' gradients in the step before"""
    weights: Mapping[int, Level]
    """the relative errors of the modules' weights so far"""
    alone: set[Place]
    """the weights that one side alone left written to, and that no call has been seen to use since"""
    seen: dict[tuple[Place, int, int], Written] = field(default_factory=dict)
    """by place, and the rows of both sides"""

    def __post_init__(self) -> None:
        is_any_written = any(half.rows.has(Phase.FORWARD, Role.PARAM) for half in self.pairs.halves)
        written = self._slots if is_any_written or self.alone else ()
        self._places = [
            place for place in written if place in self.alone or any(self._rows(at, place, _USED) for at in (0, 1))
        ]
        self._compared: dict[Place, Sketches] = {}
        self._gradient_errors: dict[tuple[int, ...] | Place, float] = {}
        self._children: dict[int, list[int]] = {}
        for index, pair in enumerate(self.pairs.matching.pairs):
            self._children.setdefault(self.pairs.a.reader.modules[pair.a].parent, []).append(index)

    @functools.cached_property
    def _slots(self) -> dict[Place, str]:
        """B's slots, by the places that both sides have records of."""
        return dict(self._paired())

    @property
    def are_there(self) -> bool:
        """Tell whether any weight was written to within the step."""
        return bool(self._places)

    def not_left(self) -> list[Written]:
        """Return the weights, as calls found them last, that the step does not end with a record of."""
        last = {written.place: written for written in self.seen.values()}
        return [written for place, written in last.items() if not self._are_left(place)]

    def level(self, node: Node, owners: Mapping[Place, list[int]]) -> Level | None:
        """Return the error of a call's own weights, and of its children's, as it finds them; None where none was written to.

        Parameters
        ----------
        owners
            the pairs of all modules that hold a parameter of A
        """
        if not self._places:
            return None
        module = self.pairs.matching.pairs[node.pair].a
        mine = {node.pair, *self._children.get(module, ())}
        own = [place for place in self._places if mine.intersection(owners.get(place, place[:1]))]
        found = [written for place in own if (written := self._as_found(place, node)) is not None]
        known = [each for each in found if each.metrics.is_known and math.isfinite(each.metrics.rel_l2)]
        if not known:
            return None
        norms = [max(each.metrics.norm_a, each.metrics.norm_b) for each in known]
        error = math.hypot(*(each.metrics.rel_l2 * norm for each, norm in zip(known, norms, strict=True)))
        level = Level()
        level.add(tolerance.UPDATED_GAIN * error / (math.hypot(*norms) or 1.0), max(each.u for each in known))
        return level

    def known(self) -> dict[Place, Sketches]:
        """Return the weights as both sides tell them of one moment, the last such: the step's end, a call, or its beginning."""
        found: dict[Place, Sketches] = {}
        for place in self._slots:
            if place in self._compared and not self._are_left(place):
                found[place] = self._compared[place]
                continue
            moments = ([self._rows(at, place, phase) for at in (0, 1)] for phase in (_LEFT, _USED, _BEGUN))
            last = next((rows for rows in moments if all(rows)), None)
            if last is not None:
                a, b = (half.side.sketch(rows[-1]) for half, rows in zip(self.pairs.halves, last, strict=True))
                found[place] = None if a is None else a.copy(), None if b is None else b.copy()
        return found

    def left_alone(self) -> set[Place]:
        """Return the weights that one side alone has left written to, in this step or before, and that no call was seen to use."""
        left = {at: {place for place in self._slots if self._rows(at, place, _LEFT)} for at in (0, 1)}
        return (self.alone - self._compared.keys() - (left[0] & left[1])) | (left[0] ^ left[1])

    def _are_left(self, place: Place) -> bool:
        return all(self._rows(at, place, _LEFT) for at in (0, 1))

    def _paired(self) -> Iterator[tuple[Place, str]]:
        """Yield the places of A that both sides have records of, with B's slots: of one that a side never writes to, in the step before."""
        a, b = self.pairs.halves
        for index, pair in enumerate(self.pairs.matching.pairs):
            labels = a.rows.get((0, pair.a, 0), Role.PARAM), b.rows.get((0, pair.b, 0), Role.PARAM)
            watch = (half.side.watches(Phase.UPDATE, half.modules[index]) for half in self.pairs.halves)
            if not any(labels) or not (all(labels) or all(watch)):
                continue
            slots_a, slots_b = (
                dict.fromkeys(label.partition(":")[2] for label in each) if each else _slots_before(half, module)
                for half, each, module in zip(self.pairs.halves, labels, (pair.a, pair.b), strict=True)
            )
            names = {b.side.canonical(pair.b, slot): slot for slot in slots_b}
            for slot in slots_a:
                other = names.get(a.side.canonical(pair.a, slot))
                if other is not None:
                    yield (index, slot), other

    def _rows(self, at: int, place: Place, *prefixes: str, role: Role = Role.PARAM) -> list[int]:
        """Return the records of a weight on the first or the second side, of all phases or of some."""
        half, slot = self.pairs.halves[at], (place[1], self._slots[place])[at]
        rows = half.rows.get((0, half.modules[place[0]], 0), role)
        return [row for prefix in prefixes or (_BEGUN, _USED, _LEFT) for row in rows.get(prefix + slot, ())]

    def _as_found(self, place: Place, node: Node) -> Written | None:
        """Compare a weight as a call found it; None where it has not been written to yet, or is not known on one side."""
        a, b = (self._history(at, place, end) for at, end in enumerate((node.end, node.end_b)))
        frameworks = {half.side.reader.info.framework for half in self.pairs.halves}
        if a is None or b is None or not (a.is_written or b.is_written or place in self.alone):
            return None
        if not (a.is_written and b.is_written) and len(frameworks) > 1:
            return None  # not every framework tells that a tensor was written to
        self._compared[place] = a.side.sketch(a.row), b.side.sketch(b.row)
        key = place, a.row, b.row
        if key not in self.seen:
            metrics = measure_pair(a.side, a.row, b.side, b.row, free_axes=False)
            u = max(a.side.roundoffs[a.row], b.side.roundoffs[b.row])
            is_known = a.change is not None and b.change is not None
            self.seen[key] = Written(
                place, self._slots[place], metrics, u, self._told(place, metrics, u, a, b), is_known
            )
        return self.seen[key]

    def _told(self, place: Place, metrics: Metrics, u: float, a: _History, b: _History) -> Note | None:
        """Say how a weight was changed otherwise in B; see `Written`."""
        if not metrics.is_known or not metrics.rel_l2 or a.change is None or b.change is None:
            return None
        lengths = [float(np.linalg.norm(each.change)) for each in (a, b)]
        error = float(np.linalg.norm(b.change - a.change))
        if metrics.is_lower_bound:  # sketches are not to be held against each other
            error = abs(lengths[1] - lengths[0])
        if not max(lengths) or not error > self._limit(place, metrics, u, max(lengths), (a.seq, b.seq)):
            return None
        if min(lengths) <= (4 * u + _ROUNDING) * max(metrics.norm_a, metrics.norm_b):
            return note("not-changed-there-at-all", side="B" if lengths[0] > lengths[1] else "A")
        return note("changed-by-as-long", times=lengths[1] / lengths[0])

    def _limit(self, place: Place, metrics: Metrics, u: float, length: float, seqs: tuple[int, int]) -> float:
        """Return by how much changes of a length may be apart.

        A weight that has a gradient may be moved along it. One that has none, an average, may be made of any of its shape.
        """
        a, norm = self.pairs.a, max(metrics.norm_a, metrics.norm_b)
        shapes = {each: a.shapes[rows[0]] for each in self._slots if (rows := self._rows(0, each))}
        shape = shapes[place] if place in shapes else self.pairs.b.shapes[self._rows(1, place)[0]]
        gradient = self._gradient_error(place, seqs)
        alike = [place]
        if gradient is None:
            alike = [each for each in shapes if shapes[each] == shape]
            if shape not in self._gradient_errors:
                self._gradient_errors[shape] = max(self._gradient_error(each, seqs) or 0.0 for each in alike)
            gradient = self._gradient_errors[shape]
        weight = max((self.weights[pair].error for pair, _ in alike if pair in self.weights), default=0.0)
        bound = tolerance.update_bound(gradient, u, norm / length, math.prod(shape))
        return bound * length + (weight + _ROUNDING) * norm

    def _gradient_error(self, place: Place, seqs: tuple[int, int]) -> float | None:
        """Return the relative error of a parameter's gradient as it was known last by then; None where it has none."""
        last = []
        for at, (half, seq) in enumerate(zip(self.pairs.halves, seqs, strict=True)):
            rows = self._rows(at, place, _SUM, role=Role.PARAM_GRAD)
            last.append(max((row for row in rows if half.side.columns["seq"][row] < seq), default=-1))
        if min(last) < 0:
            return self.gradients.get(place)
        metrics = measure_pair(self.pairs.a, last[0], self.pairs.b, last[1], free_axes=False)
        return metrics.rel_l2 if metrics.is_known else 1.0

    def _tell_updates_alike(self, place: Place) -> bool:
        """Tell whether both sides recorded updates, or neither: else one side's would be taken for something else's work."""
        first, second = (half.side.watches(Phase.UPDATE, half.modules[place[0]]) for half in self.pairs.halves)
        return first == second

    def _history(self, at: int, place: Place, end: int) -> _History | None:
        """Return what a side's records say of a weight until a call ends."""
        half = self.pairs.halves[at]
        seq = half.side.columns["seq"]
        begun, used = self._rows(at, place, _BEGUN), [row for row in self._rows(at, place, _USED) if seq[row] < end]
        found = [(half.side, row) for row in (*begun, *used)] or _left_before(half, place, self._slots[place])
        if not found:
            return None
        side, row = found[-1]
        if not used:
            known, now = None if begun else self.before.get(place, (None, None))[at], side.sketch(row)
            return _History(side, row, -1, np.zeros(WIDTH) if known is None or now is None else now - known)
        first = found[-2][1] if len(found) > 1 else -1
        sketches = [side.sketch(row), side.sketch(first) if first >= 0 else self.before.get(place, (None, None))[at]]
        since = seq[first] if first >= 0 else -1
        updates = [each for each in self._rows(at, place, _LEFT, role=Role.DELTA) if since < seq[each] < seq[row]]
        sketches += [side.sketch(update) for update in updates]
        known = [sketch for sketch in sketches if sketch is not None]
        is_known = len(known) == len(sketches) and self._tell_updates_alike(place)
        change = known[0] - np.sum(known[1:], axis=0) if is_known else None
        return _History(side, row, seq[row], change)


def _slots_before(half: StepHalf, module: int) -> dict[str, None]:
    """Return the slots of a module's weights that the step before has records of."""
    earlier = half.side.earlier
    if earlier is None:
        return {}
    rows = zip(earlier.slots, earlier.columns["role"], earlier.columns["module"], strict=True)
    return dict.fromkeys(slot for slot, role, owner in rows if role == Role.PARAM and owner == module)


def _left_before(half: StepHalf, place: Place, slot_b: str) -> list[tuple[Side, int]]:
    """Return the last record of a weight that a step made of which this one has none."""
    earlier, module = half.side.earlier, half.modules[place[0]]
    if earlier is None:
        return []
    slot, columns = place[1] if half.name == "A" else slot_b, earlier.columns
    rows = [
        row for row, (role, owner) in enumerate(zip(columns["role"], columns["module"], strict=True))
        if role == Role.PARAM and owner == module and earlier.slots[row] == slot
    ]  # fmt: skip
    return [(earlier, row) for row in sorted(rows, key=lambda row: columns["seq"][row])[-1:]]
