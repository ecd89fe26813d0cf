"""Updates of weights that no optimizer was seen to change: what a step leaves of them, less what it began with.

Hand-written updates, and optimizers that change flat or sharded copies, run no hook at the parameter. Sketches are linear:
that of such an update is as good as one that was measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from probe.comparison.distance.combined import joint_digest
from probe.comparison.steps.side import Digest, Side
from probe.matching import Place
from probe.records import HashKind, Phase, Role


@dataclass(frozen=True, slots=True)
class Derived:
    """The difference of two records; see `probe.comparison.steps.side.Combined`."""

    parts: tuple[int, ...]
    sketch: np.ndarray
    digest: Digest | None

    def values(self, side: Side) -> np.ndarray:
        """Raise: none of its values is stored."""
        raise AssertionError("an update has no stored values")


def derive_updates(side: Side) -> None:
    """Append the updates of weights that a step changed, where none was recorded.

    Parameters
    ----------
    side
        a step, which is changed
    """
    columns, updated = side.columns, set[Place]()
    after: dict[Place, int] = {}
    for row, (phase, role) in enumerate(zip(columns["phase"], columns["role"], strict=True)):
        if phase == Phase.UPDATE and role in (Role.PARAM, Role.DELTA):
            place = columns["module"][row], side.slots[row]
            if role == Role.DELTA:
                updated.add(place)
            else:
                after[place] = row
    missing = {place: row for place, row in after.items() if place not in updated}
    begun = weights_begun(side) if missing else {}
    for place, row in missing.items():
        before, sketch, digest = begun.get(place), side.sketch(row), side.digest(row)
        if before is None or sketch is None or digest is None or before[1] == digest:
            continue  # nothing has changed it, or nobody knows
        unknown = dict.fromkeys(("min", "max", "mean", "rms", "norm"), math.nan)
        changed = {**unknown, "role": Role.DELTA, "zeros": 0, "tensor": -1, "hash_kind": HashKind.NONE}
        derived = Derived((row,), sketch - before[0], joint_digest((before[1], digest), ()))
        side.add(row, place[1], side.shapes[row], changed, derived)


def weights_begun(side: Side) -> dict[Place, tuple[np.ndarray, Digest | None]]:
    """Return sketch and hash of the weights that a step began with: as it was recorded, or as the step before left them."""
    found = _weights(side, Phase.INIT)
    return found or (_weights(side.earlier, Phase.UPDATE) if side.earlier is not None else {})


def _weights(side: Side, phase: Phase) -> dict[Place, tuple[np.ndarray, Digest | None]]:
    columns = side.columns
    return {
        (columns["module"][row], side.slots[row]): (sketch, side.digest(row))
        for row, (at, role) in enumerate(zip(columns["phase"], columns["role"], strict=True))
        if at == phase and role == Role.PARAM and (sketch := side.sketch(row)) is not None
    }
