"""Choices of the largest scores, such as a router's of its experts, on two sides: `flips`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from probe.notes import Note, note


def flips(calls: Iterable[Any]) -> list[Note]:
    """Return what is to be said of choices that calls made otherwise on both sides: how many, and how many scores do not explain.

    A choice is beyond the margin of its scores if A's scores of what A chose and of what B chose are further apart than twice the difference of both
    sides' scores: each side chooses the largest of its own.
    """
    layers = []
    for call in calls:
        known = [each for each in call.outputs if each.is_paired and all(x.has_values and len(x.form) > 1 for x in each.both)]  # fmt: skip
        arrays = [[side.values().reshape(-1, side.form[-1]) for side in each.both] for each in known]
        for here, there in ((a, b) for a, b in arrays if a.shape == b.shape and a.dtype.kind in "iu" and a.size):
            flipped, told = ~(here[:, :, None] == there[:, None]).any(-1), ""
            scores = [
                (x, y) for x, y in arrays if x.shape == y.shape and x.dtype.kind not in "iub" and len(x) == len(here)
            ]
            for x, y in (
                (x.astype(float), y.astype(float)) for x, y in scores if x.shape[1] > max(here.max(), there.max())
            ):
                lost = np.subtract(*(np.take_along_axis(x, each, -1).min(-1) for each in (here, there)))
                told = f", {int((lost > 2 * np.abs(x - y).max(-1)).sum())} by more than the margin of their scores"
            if flipped.any():
                layers.append(f"{call.a.path}: {100 * flipped.mean():.3g} % of {flipped.size:,} choices differ{told}")
    return [note("choices-flipped", layers=tuple(layers))] if layers else []
