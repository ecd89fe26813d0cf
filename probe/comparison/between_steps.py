"""Weights that something else than the optimizer changes: averaging, rounding, clipping behind its step.

Sketches are linear: of what a step leaves, what it began with and the update itself, each tells what the other two must be.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from probe.comparison import tolerance
from probe.comparison.combined import is_finite
from probe.comparison.events import StepHalf, StepPairs
from probe.comparison.result import Divergence, Kind
from probe.comparison.tolerance import Level
from probe.comparison.walk import StepWalk
from probe.records import MASTER, Phase, Role

_ROUNDING = 64 * 2.0**-24
"""share of a weight that sums of its sketches round"""
_OTHER_SIDE = 0.25
"""share of one side's change up to which the other side has not made it"""
_OF_UPDATE = 4
"""unit roundoffs of an update that are lost where it is taken as a difference"""
_OF_COPY = 1.5
"""unit roundoffs of a weight that rounding a copy makes of it, twice: 0.6 in the mean of many elements"""
_AS_BEFORE = 0.75
"""unit roundoffs by which a copy may move, and all of its weight stay bit for bit as it was"""
_OF_CHANGE = "look at what runs behind optimizer.step(): averaging (EMA), rounding, clipping or tying of weights"
_OF_STAYING = "look at what sets them back behind optimizer.step(), and at how copies (masters) are copied into them: not at all, or before it"

Key = tuple[int, str]
"""a pair of modules, and the canonical name of a weight"""


Sketches = dict[Key, np.ndarray]


@dataclass(frozen=True, slots=True)
class Left:
    """What a step left: its number and the sketches of its weights, of A and of B."""

    steps: tuple[int, int]
    sketches: tuple[Sketches, Sketches]


def left_by(pairs: StepPairs) -> Left:
    """Return what a step left."""
    a, b = (_sketches(half, Phase.UPDATE) for half in pairs.halves)
    return Left((pairs.step, pairs.step_b), (a, b))


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
    when: str
    unmoved: int
    """how many of them stay as they were"""
    is_within: bool
    """since the step began, not since the one before ended: the forward pass used them as they were"""

    def pass_on(self, walk: StepWalk) -> None:
        """Let what the modules make of such weights be a consequence."""
        for (pair, _), share in self.shares.items() if not self.is_within else ():
            walk.state.parameters.setdefault(pair, Level()).add(tolerance.UPDATED_GAIN * share, 0.0)

    def report(self, walk: StepWalk) -> None:
        """Add the finding: at the only module whose weights are concerned, or at the model."""
        pairs = {pair for pair, _ in self.shares}
        slot = self.slot if len(self.shares) == 1 else ""
        refs = walk.refs(pairs.pop(), None, slot, slot) if len(pairs) == 1 else walk.root_refs()
        how_many = f"{len(self.shares)} of {self.known}, by up to {max(self.shares.values()):.1e} of themselves ({self.slot} of {self.path})"
        evidence, hint = (
            (f"{self.name}'s weights change {self.when} otherwise than by the optimizer's update: {how_many}",),
            _OF_CHANGE,
        )
        if self.unmoved == len(self.shares):
            evidence, hint = (
                (f"{self.name}'s weights stay as they were {self.when}, whatever the optimizer does: {how_many}",),
                _OF_STAYING,
            )
        walk.findings.append(Divergence(
            Phase.UPDATE, Role.PARAM, Kind.UPDATE, 0.95, *refs, None, evidence=(*evidence, "the other side's do not"), hint=hint,
        ))  # fmt: skip


def changed_otherwise(pairs: StepPairs, left: Left | None) -> Otherwise | None:
    """Return the weights that one side alone changes otherwise than by its update, since the step began or the last one ended."""
    begun = [_sketches(half, Phase.INIT) for half in pairs.halves]
    is_within = any(begun)
    if is_within and not all(begun):
        return None
    if not is_within:
        if left is None or left.steps != (pairs.step - 1, pairs.step_b - 1):
            return None
        begun = list(left.sketches)
    changes = [_changes(half, before) for half, before in zip(pairs.halves, begun, strict=True)]
    alone = [_alone(*changes), _alone(*reversed(changes))]
    which = max((0, 1), key=lambda index: max(alone[index].values(), default=0.0))
    if not alone[which]:
        return None
    half, found = pairs.halves[which], alone[which]
    pair, slot = max(found, key=lambda key: found[key])
    when = (
        f"in step {half.side.step}"
        if is_within
        else f"between the ends of steps {half.side.step - 1} and {half.side.step}"
    )
    left_now = _sketches(half, Phase.UPDATE)
    unmoved = sum(np.array_equal(left_now[key], begun[which][key]) for key in found)
    path = half.path(half.modules[pair])
    return Otherwise(half.name, path, slot, found, len(changes[which]), when, unmoved, is_within)


def _alone(mine: dict[Key, float], theirs: dict[Key, float]) -> dict[Key, float]:
    """Return the changes of one side that the other has not made; where it has no such weight, if it has made none."""
    changed = any(theirs.values())
    return {
        key: share
        for key, share in mine.items()
        if share and (theirs[key] < _OTHER_SIDE * share if key in theirs else not changed)
    }


def _rows_of(half: StepHalf, phase: Phase, role: Role) -> dict[Key, list[int]]:
    """Return the rows of paired modules' weights in a phase and role."""
    prefix = f"{phase.label}:"
    return {
        (half.pair_of[module], half.side.canonical(module, slot[len(prefix) :])): taken
        for ((_, module, _), kind), by_slot in half.rows.by_key.items()
        if kind is role and module in half.pair_of
        for slot, taken in by_slot.items()
        if slot.startswith(prefix)
    }


def _sketches(half: StepHalf, phase: Phase, role: Role = Role.PARAM) -> Sketches:
    """Return the sketches of finite weights, or what a step's updates of them are together, where there are any."""
    found = {}
    for key, rows in _rows_of(half, phase, role).items():
        rows = rows if role is Role.DELTA else rows[-1:]
        sketches = [half.side.sketch(row) for row in rows if is_finite(half.side, row)]
        known = [sketch for sketch in sketches if sketch is not None]
        if len(known) == len(rows):
            found[key] = known[0] if len(known) == 1 else np.sum(known, axis=0)
    return found


def _changes(half: StepHalf, before: Sketches) -> dict[Key, float]:
    """Return by what share of themselves weights differ from what they were before and the step's updates make of them.

    It is 0.0 where rounding explains it, and there is none for weights of which one of the three is not known.
    """
    found, rows = {}, _rows_of(half, Phase.UPDATE, Role.PARAM)
    after, updates = _sketches(half, Phase.UPDATE), _sketches(half, Phase.UPDATE, Role.DELTA)
    copied = {key for key in _rows_of(half, Phase.UPDATE, Role.STATE) if key[1].endswith(MASTER)}
    for key in after.keys() & updates.keys() & before.keys():
        row = rows[key][-1]
        norm, u = half.side.columns["norm"][row], half.side.roundoffs[row]
        gap = float(np.linalg.norm(after[key] - updates[key] - before[key]))
        rounding = _ROUNDING * norm + _OF_UPDATE * u * float(np.linalg.norm(updates[key]))
        if (key[0], f"{key[1]}{MASTER}") in copied:  # the update is that of a copy, which is rounded to it
            is_as_before = bool(np.array_equal(after[key], before[key]))
            rounding += (_AS_BEFORE if is_as_before else _OF_COPY) * u * norm
        found[key] = gap / max(norm, float(np.linalg.norm(before[key])), gap) if gap > rounding else 0.0
    return found
