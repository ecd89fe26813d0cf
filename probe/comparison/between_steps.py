"""Weights that something changes between the optimizer's step and its next one: averaging, rounding, clipping.

Sketches are linear: of what an update leaves, the one before it and the update itself, each tells what the other two must be.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from probe.comparison import tolerance
from probe.comparison.events import Rows, StepPairs
from probe.comparison.result import Divergence, Kind
from probe.comparison.side import Side
from probe.comparison.tolerance import Level
from probe.comparison.walk import StepWalk
from probe.records import Phase, Role

_PREFIX = f"{Phase.UPDATE.label}:"
_ROUNDING = 64 * 2.0**-24
"""share of a weight that sums of its sketches round"""
_OF_UPDATE = 4
"""unit roundoffs of an update that are lost where it is taken as a difference"""

Key = tuple[int, str]


@dataclass(frozen=True, slots=True)
class Left:
    """What a step left: the sketches of its weights, of A and of B, by module and slot."""

    step: int
    sketches: tuple[dict[Key, np.ndarray], dict[Key, np.ndarray]]


def left_by(pairs: StepPairs) -> Left:
    """Return what a step left."""
    a, b = (
        {key: sketch for key, row in _rows(rows, Role.PARAM).items() if (sketch := side.sketch(row)) is not None}
        for side, rows in ((pairs.a, pairs.rows_a), (pairs.b, pairs.rows_b))
    )
    return Left(pairs.step, (a, b))


def judge_between(walk: StepWalk, pairs: StepPairs, left: Left | None) -> None:
    """Add a finding where one side alone went on with other weights than the optimizer had left in the step before."""
    if left is None or left.step != pairs.step - 1:
        return
    sides = (pairs.a, pairs.rows_a), (pairs.b, pairs.rows_b)
    changed = [_changed(side, rows, before) for (side, rows), before in zip(sides, left.sketches, strict=True)]
    if bool(changed[0]) == bool(changed[1]):
        return
    name, (side, _), found = ("A", sides[0], changed[0]) if changed[0] else ("B", sides[1], changed[1])
    key, share = max(found.items(), key=lambda item: item[1])
    known = len(left.sketches["AB".index(name)])
    _pass_on(walk, pairs.pair_of_a if name == "A" else pairs.pair_of_b, found)
    path = side.reader.modules[key[0]].path
    refs = (tuple(replace(ref, step=ref.step - 1) for ref in refs) for refs in walk.root_refs())
    walk.findings.append(Divergence(
        Phase.UPDATE, Role.PARAM, Kind.UPDATE, 0.95, *refs, None,
        evidence=(
            f"{name}'s weights are changed between the optimizer's step {left.step} and its next one: {len(found)} of {known}, by up to "
            f"{share:.1e} of themselves ({key[1]} of {path})",
            "the other side's are not",
        ),
        hint="look at what runs behind optimizer.step(): averaging (EMA), rounding, clipping or tying of weights, copies from masters",
    ))  # fmt: skip


def _pass_on(walk: StepWalk, pair_of: Mapping[int, int], found: Mapping[Key, float]) -> None:
    """Let what the modules make of such weights be a consequence."""
    for (module, _), share in found.items():
        if module in pair_of:
            walk.state.parameters.setdefault(pair_of[module], Level()).add(tolerance.UPDATED_GAIN * share, 0.0)


def _changed(side: Side, rows: Rows, before: dict[Key, np.ndarray]) -> dict[Key, float]:
    """Return by how much weights differ from what the step before left and this one's update make of them."""
    found, updates = {}, _rows(rows, Role.DELTA)
    for key, row in _rows(rows, Role.PARAM).items():
        after, update = side.sketch(row), side.sketch(updates[key]) if key in updates else None
        norm = side.columns["norm"][row]
        if key not in before or after is None or update is None or not np.isfinite(norm) or not norm:
            continue
        gap = float(np.linalg.norm(after - update - before[key]))
        if gap > _ROUNDING * norm + _OF_UPDATE * side.roundoffs[row] * side.columns["norm"][updates[key]]:
            found[key] = gap / norm
    return found


def _rows(rows: Rows, role: Role) -> dict[Key, int]:
    """Return the rows of the update phase in a role, by module and slot."""
    return {
        (module, slot[len(_PREFIX) :]): taken[-1]
        for ((_, module, _), kind), by_slot in rows.by_key.items()
        for slot, taken in by_slot.items()
        if kind is role and slot.startswith(_PREFIX)
    }
