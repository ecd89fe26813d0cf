"""Weights that something else than the optimizer changes: averaging, rounding, clipping behind its step.

Sketches are linear: of what a step leaves, what it began with and the update itself, each tells what the other two must be.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from probe.comparison.ledger.known import Walk
from probe.comparison.ledger.places import refs_of, root_refs
from probe.comparison.noise import tolerance
from probe.comparison.noise.tolerance import Level
from probe.comparison.notes import Note, note
from probe.comparison.result import Divergence, Kind
from probe.comparison.steps.events import StepPairs
from probe.comparison.steps.step_half import StepHalf
from probe.records import MASTER, Phase, Role

_INIT, _UPDATE = Phase.INIT.label, Phase.UPDATE.label
_FLOAT32 = 2.0**-24
_ROUNDING = 64 * _FLOAT32
"""share of a weight that sums of its sketches round"""
_OTHER_SIDE = 0.25
"""share of one side's change up to which the other side has not made it"""
_OF_UPDATE = 4
"""unit roundoffs of an update that are lost where it is taken as a difference"""
_OF_COPY = 2
"""unit roundoffs of a weight that rounding a copy to it twice makes at most (0.42 in the mean of normal numbers)"""
_AS_BEFORE = 1
"""unit roundoffs by which a copy of many elements may move while its weight stays as it was bit for bit (of ones: 0.996)"""
_MANY = 32
"""elements from which on they are not all at the end of what is rounded to one number"""
_ROOT, _FLIPS = 4.0, 2 * math.sqrt(3)
"""as in `probe.comparison.noise.tolerance.update_bound`: small errors, and single elements, that are rounded to whole steps"""

Key = tuple[int, str]
"""a pair of modules, and the canonical name of a weight"""
Sketches = dict[Key, np.ndarray]


@dataclass(frozen=True, slots=True)
class Weights:
    """What a step tells of one side's weights: the sketches of those that are finite, and of their updates."""

    begun: Sketches
    left: Sketches
    updates: Sketches
    """of a weight's updates together"""
    rows: dict[Key, int]
    """of what is left"""
    copied: frozenset[Key]
    """of which a copy (master) is trained that is more precise"""

    @classmethod
    def of(cls, half: StepHalf) -> Weights:
        """Look through a step's records of paired modules, once."""
        begun: dict[Key, list[int]] = {}
        left: dict[Key, list[int]] = {}
        for key, phase, taken in _rows_of(half, Role.PARAM):
            if phase in (_INIT, _UPDATE):
                (begun if phase == _INIT else left)[key] = taken[-1:]
        updates = {key: taken for key, phase, taken in _rows_of(half, Role.DELTA) if phase == _UPDATE}
        rows = {key: taken[-1] for key, taken in left.items()}
        is_coarse = any(half.side.roundoffs[row] > _FLOAT32 for row in rows.values())
        states = (key for key, phase, _ in _rows_of(half, Role.STATE) if phase == _UPDATE) if is_coarse else ()
        return cls(
            _sketches(half, begun), _sketches(half, left), _sketches(half, updates), rows,
            frozenset((pair, slot.removesuffix(MASTER)) for pair, slot in states if slot.endswith(MASTER)),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class StepWeights:
    """What a step tells of the weights of A and of B, and the numbers it has there."""

    steps: tuple[int, int]
    halves: tuple[Weights, Weights]

    @classmethod
    def of(cls, pairs: StepPairs) -> StepWeights:
        """Look through both sides of a step."""
        a, b = (Weights.of(half) for half in pairs.halves)
        return cls((pairs.step, pairs.step_b), (a, b))


@dataclass(frozen=True, slots=True)
class _Change:
    """By what a weight differs from what it was and the step's updates make of it."""

    sketch: np.ndarray
    rounding: float
    """norm of what rounding explains"""
    share: float
    """of the weight; 0.0 where rounding explains it"""
    measured: float
    """of the weight, whatever explains it"""


_Changes = dict[Key, _Change]
"""There is none of weights of which it is not known what they were, became, or were updated by."""


@dataclass(frozen=True, slots=True)
class Otherwise:
    """The weights that one side alone changes otherwise than by its optimizer's update."""

    name: str
    path: str
    slot: str
    """of the weight that is changed most"""
    shares: dict[Key, float]
    """by how much of itself each is"""
    known: int
    """of how many weights it is known"""
    when: Note
    unmoved: int
    """how many of them stay as they were"""
    is_within: bool
    """since the step began, not since the one before ended: the forward pass used them as they were"""
    theirs: int = 0
    """how many of them the other side changes too, by far less"""
    times: float = 0.0
    """how much longer B's changes are than A's, where both sides make some; 0.0 where one alone does"""

    def pass_on(self, walk: Walk) -> None:
        """Let what the modules make of such weights be a consequence."""
        for (pair, _), share in self.shares.items() if not (self.is_within or self.times) else ():
            walk.state.parameters.setdefault(pair, Level()).add(tolerance.UPDATED_GAIN * share, 0.0)

    def report(self, walk: Walk) -> None:
        """Add the finding: at the only module whose weights are concerned, or at the model."""
        pairs = {pair for pair, _ in self.shares}
        slot = self.slot if len(self.shares) == 1 else ""
        refs = refs_of(walk, pairs.pop(), None, slot, slot) if len(pairs) == 1 else root_refs(walk)
        which = {
            "count": len(self.shares),
            "known": self.known,
            "largest": max(self.shares.values()),
            "slot": self.slot,
            "path": self.path,
        }
        if self.times:
            said = note("both-change-weights-otherwise", when=self.when, **which)
            walk.ledger.findings.append(Divergence(
                Phase.UPDATE, Role.PARAM, Kind.UPDATE, 0.9, *refs, None,
                facts=(said, note("changes-as-long", times=self.times)), advice=note("behind-optimizer-step"),
            ))  # fmt: skip
            return
        they_stay = self.unmoved == len(self.shares)
        code = "weights-stay" if they_stay else "weights-change-otherwise"
        said = Note(code, {"side": self.name, "when": self.when, **which})
        walk.ledger.findings.append(Divergence(
            Phase.UPDATE, Role.PARAM, Kind.UPDATE, 0.95, *refs, None,
            facts=(said, self._of_other_side()), advice=note("set-back-behind-optimizer-step") if they_stay else note("behind-optimizer-step"),
        ))  # fmt: skip

    def _of_other_side(self) -> Note:
        return note("changed-there-too", count=self.theirs) if self.theirs else note("not-changed-there")


def changed_otherwise(pairs: StepPairs, before: StepWeights | None, now: StepWeights) -> Otherwise | None:
    """Return the weights that one side alone changes otherwise than by its update, since the step began or the last one ended.

    Parameters
    ----------
    before, now
        the weights of the step before, if it was compared, and of this one
    """
    begun = [weights.begun for weights in now.halves]
    is_within = any(begun)
    if is_within and not all(begun):
        return None
    if not is_within:
        if before is None or before.steps != (pairs.step - 1, pairs.step_b - 1):
            return None
        begun = [weights.left for weights in before.halves]
    changes = [_changes(*each) for each in zip(pairs.halves, begun, now.halves, strict=True)]
    a, b = changes
    sizes = {key: math.prod(pairs.a.shapes[row]) for key, row in now.halves[0].rows.items()}
    inherited = _inherited(begun, now, [key for key in a if key in b and a[key].share and b[key].share])
    is_apart = {key: _gap([(a[key], b[key])], inherited, sizes[key])[2] for key in a if key in b}
    alone = [_alone(a, b, is_apart), _alone(b, a, is_apart)]
    which = max((0, 1), key=lambda index: max(alone[index].values(), default=0.0))
    half, found, times = pairs.halves[which], alone[which], 0.0
    if not found:
        half = pairs.halves[0]
        found, times = _apart(a, b, inherited, sizes)
    if not found:
        return None
    pair, slot = max(found, key=lambda key: found[key])
    when = note("in-step", step=half.side.step) if is_within else note("between-steps", step=half.side.step)
    unmoved = sum(np.array_equal(now.halves[which].left[key], begun[which][key]) for key in found)
    path = half.path(half.modules[pair])
    theirs = sum(key in changes[1 - which] and changes[1 - which][key].share > 0 for key in found)
    return Otherwise(half.name, path, slot, found, len(changes[which]), when, unmoved, is_within, theirs, times)


def _apart(a: _Changes, b: _Changes, inherited: float, sizes: Mapping[Key, int]) -> tuple[dict[Key, float], float]:
    """Return the changes that both sides make and that are further apart than what they inherit explains.

    Parameters
    ----------
    a, b
        what each side changes
    inherited
        see `_inherited`
    sizes
        numbers of elements

    Returns
    -------
    by weight how far they are apart, as a share of the longer one, and how many times as long B's are, all together
    """
    keys = [key for key in a if key in b and a[key].share and b[key].share]
    if not keys:
        return {}, 1.0
    whole, ratio, is_wrong = _gap([(a[key], b[key]) for key in keys], inherited, sum(sizes[key] for key in keys))
    found = {key: gap for key in keys for gap, _, wrong in [_gap([(a[key], b[key])], inherited, sizes[key])] if wrong}
    return found or (dict.fromkeys(keys, whole) if is_wrong else {}), ratio


def _inherited(begun: Sequence[Sketches], now: StepWeights, changed: Sequence[Key]) -> float:
    """Return how far apart, as a norm, all is that changes of these weights may be made of.

    What is made of weights (an average, a bound, a grid) may be made of any: of what the step began with, of the updates, and of
    what it left of weights that are not changed so.
    """
    left, updates = ([getattr(half, name) for half in now.halves] for name in ("left", "updates"))
    others = [{key: each[key] for key in each.keys() - set(changed)} for each in left]
    return math.hypot(*(_distance(*each) for each in (begun, updates, others)))


def _gap(changes: Sequence[tuple[_Change, _Change]], inherited: float, count: int) -> tuple[float, float, bool]:
    """Return how far changes are apart as one vector, how many times as long B's is, and whether that is wrong.

    A grid turns a small error into a few whole steps: the root of what is inherited counts, as for updates.
    """
    lengths = [math.hypot(*(float(np.linalg.norm(pair[side].sketch)) for pair in changes)) for side in (0, 1)]
    size = max(lengths)
    if not size:
        return 0.0, 1.0, False
    gap = math.hypot(*(float(np.linalg.norm(x.sketch - y.sketch)) for x, y in changes)) / size
    rounding = math.hypot(*(x.rounding + y.rounding for x, y in changes)) / size
    steps = _ROOT * math.sqrt(inherited / size) + _FLIPS / math.sqrt(count) if inherited else 0.0
    ratio = lengths[1] / lengths[0] if lengths[0] else math.inf
    return gap, ratio, gap > steps + rounding


def _distance(a: Sketches, b: Sketches) -> float:
    """Return how far the weights that both sides have are apart, as one vector."""
    return math.hypot(*(float(np.linalg.norm(a[key] - b[key])) for key in a.keys() & b.keys()))


def _alone(mine: _Changes, theirs: _Changes, is_apart: Mapping[Key, bool]) -> dict[Key, float]:
    """Return the changes of one side that the other has not made; where it has no such weight, if it has made none.

    Of weights that both have, they are further apart than what they inherit explains where the other side makes such changes too.
    """
    changed = any(each.share for each in theirs.values())
    return {
        key: each.share
        for key, each in mine.items()
        if each.share
        and (
            theirs[key].measured < _OTHER_SIDE * each.share and (is_apart[key] or not changed)
            if key in theirs else not changed
        )
    }  # fmt: skip


def _rows_of(half: StepHalf, role: Role) -> Iterator[tuple[Key, str, list[int]]]:
    """Yield the rows of paired modules' weights, or of what belongs to them, with the phase that they were recorded in."""
    for (_, module, _), by_label in half.rows.by_role[role].items():
        pair = half.pair_of.get(module)
        for label, taken in by_label.items() if pair is not None else ():
            phase, _, slot = label.partition(":")
            yield (pair, half.side.canonical(module, slot)), phase, taken


def _sketches(half: StepHalf, rows: dict[Key, list[int]]) -> Sketches:
    """Return the sketches of what is finite, of several rows their sum, where there are any."""
    found = {}
    nan, high, low = (half.side.columns[name] for name in ("nan", "posinf", "neginf"))
    for key, taken in rows.items():
        known = [half.side.sketch(row) for row in taken if not (nan[row] or high[row] or low[row])]
        if len(known) == len(taken) and all(each is not None for each in known):
            found[key] = known[0] if len(known) == 1 else np.sum(known, axis=0)
    return found


def _changes(half: StepHalf, before: Sketches, now: Weights) -> _Changes:
    """Return what changes weights beside the step's updates."""
    keys = [key for key in now.left if key in now.updates and key in before]
    if not keys:
        return {}
    left, updates, begun = (np.array([each[key] for key in keys]) for each in (now.left, now.updates, before))
    beside = left - updates - begun
    gaps, lengths, sizes = (np.linalg.norm(each, axis=1).tolist() for each in (beside, updates, begun))
    found = {}
    for key, sketch, gap, length, size in zip(keys, beside, gaps, lengths, sizes, strict=True):
        row = now.rows[key]
        norm, u = half.side.columns["norm"][row], half.side.roundoffs[row]
        rounding = _ROUNDING * norm + _OF_UPDATE * u * length
        if key in now.copied:  # the update is that of a copy, which is rounded to it
            stays = math.prod(half.side.shapes[row]) >= _MANY and np.array_equal(now.left[key], before[key])
            rounding += (_AS_BEFORE if stays else _OF_COPY) * u * norm
        measured = gap / max(norm, size, gap) if gap else 0.0
        found[key] = _Change(sketch, rounding + u * norm, measured if gap > rounding else 0.0, measured)
    return found
