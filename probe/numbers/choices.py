"""Choices of the largest scores, such as a router's of its experts, on two sides: `flips`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from probe.notes import Note, note
from probe.records import Role

OWN_CHOICES, OWN_SCORES = "own choices", "own scores"
"""what a router that took another run's choices would have chosen, and from which scores"""
_MOST = 20.0
"""share of choices that rounding makes otherwise, at most, in errors of their scores: `probe.verdict.noise.terms.routing_limit`"""


def flips(calls: Iterable[Any]) -> list[Note]:
    """Return what is to be said of choices that calls made otherwise on both sides: how many, and how many scores do not explain.

    A choice is beyond the margin of its scores if the scores of what A chose and of what B chose are further apart than twice the difference of both
    sides' scores: each side chooses the largest of its own. Where B took A's choices, what it would have chosen counts.
    """
    layers, beyond = [], []
    for call in calls:
        known = [
            each for each in call.outputs if each.is_paired and all(x.has_values and len(x.form) > 1 for x in each.both)
        ]
        if not any(each.a.kind == "integer" for each in known):
            continue
        arrays = [[side.values().reshape(-1, side.form[-1]) for side in each.both] for each in known]
        own = {name: each.values() for name, each in call.b.of(Role.VALUE).items() if each.has_values}
        scores = [
            (x.astype(float), y.astype(float)) for x, y in arrays if x.shape == y.shape and x.dtype.kind not in "iub"
        ]
        for here, there in ((a, b) for a, b in arrays if a.shape == b.shape and a.dtype.kind in "iu" and a.size):
            is_replayed = own.get(OWN_CHOICES, here[:0]).size == here.size
            there = own[OWN_CHOICES].reshape(here.shape) if is_replayed else there
            flipped, told = ~(here[:, :, None] == there[:, None]).any(-1), ""
            width = 1 + max(here.max(), there.max())
            x, y = next(((x, y) for x, y in scores if len(x) == len(here) and x.shape[1] >= width), (None, None))
            if x is not None and y is not None and flipped.any():
                chosen_by = (
                    own[OWN_SCORES].reshape(len(here), -1).astype(float) if OWN_SCORES in own and is_replayed else x
                )
                far = _far(chosen_by, here, there, x, y, is_replayed)
                told = "" if far is None else f", {far} by more than the margin of their scores"
                apart = np.linalg.norm(x - y) / max(np.linalg.norm(x), 1e-300)
                if far or (is_replayed and flipped.mean() > _MOST * apart):
                    beyond.append(call.a.path)
            if flipped.any():
                layers.append(f"{call.a.path}: {100 * flipped.mean():.3g} % of {flipped.size:,} choices differ{told}")
    said = [note("choices-flipped", layers=tuple(layers))] if layers else []
    return said + ([note("choices-beyond-margin", paths=tuple(beyond))] if beyond else [])


def _far(by: np.ndarray, here: np.ndarray, there: np.ndarray, x: np.ndarray, y: np.ndarray, of_b: bool) -> int | None:
    """Return how many tokens were chosen for otherwise than the differences of scores explain; None if these are not what was chosen by."""
    chosen = np.take_along_axis(by, there if of_b else here, -1).min(-1)
    if (
        chosen < np.partition(by, -here.shape[-1], -1)[:, -here.shape[-1]]
    ).any():  # a bias, or groups, had a part in it
        return None
    lost = chosen - np.take_along_axis(by, here if of_b else there, -1).min(-1)
    return int((np.isfinite(lost) & (lost > 2 * np.abs(x - y).max(-1))).sum())
