"""Choices of the largest scores, such as a router's of its experts: which tensors are choices, `flips` of two sides."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from probe.notes import Note, note
from probe.records import Role

OWN_CHOICES, OWN_SCORES = "own choices", "own scores"
"""what a router that took another run's choices would have chosen, and from which scores"""
_MOST = 20.0
"""share of choices that rounding makes otherwise, at most, in errors of their scores, as in `routing_limit`"""
WIDEST = 64
"""columns of integers, at most, that are choices: wider ones are masks, or tokens"""


def is_choice(row: np.void, rows: np.ndarray, shapes: Sequence[tuple[int, ...]]) -> bool:
    """Return True for integers beside floats of the same shape: indices, or a map of them, and their weights."""
    if len(shapes[row["shape"]]) < 2 or row["dtype"].decode().rstrip("0123456789") not in ("int", "bool"):
        return False
    same = rows[(rows["module"] == row["module"]) & (rows["shape"] == row["shape"])]
    return any("float" in each.decode() for each in same["dtype"])


def as_indices(values: np.ndarray) -> np.ndarray | None:
    """Return choices as [tokens, k]; of a map of the experts, as Megatron has it, too, if all tokens have as many."""
    values = values.reshape(-1, values.shape[-1])
    if values.dtype != bool:
        return values
    counts = values.sum(-1)
    is_even = len(counts) and (counts == counts[0]).all()
    return np.nonzero(values)[1].reshape(len(values), -1) if is_even else None


def flips(calls: Iterable[Any]) -> list[Note]:
    """Return what is to be said of choices that both sides make otherwise: how many, and how many scores do not explain.

    A choice is beyond the margin of its scores if the scores of what A chose and of what B chose are further apart than
    twice the difference of both sides' scores: each side chooses the largest of its own. Where B took A's choices, what
    it would have chosen counts, and the other way round.
    """
    layers, beyond = [], []
    for call in calls:
        if not any(each.is_paired and each.a.kind == "integer" and len(each.a.form) > 1 for each in call.outputs):
            continue
        arrays = _arrays(call.outputs)
        taker = call.b if OWN_CHOICES in call.b.of(Role.VALUE) else call.a
        own = {name: each.values() for name, each in taker.of(Role.VALUE).items() if each.has_values}
        scores = [each for each in arrays if each[0].dtype.kind == "f"]
        for here, there in (each for each in arrays if each[0].dtype.kind in "iu" and each[0].size):
            if here.shape[1] > WIDEST:
                continue
            is_replayed = own.get(OWN_CHOICES, here[:0]).size == here.size
            if is_replayed:
                here, there = there if taker is call.a else here, own[OWN_CHOICES].reshape(here.shape)
            rows = (here != there).any(-1)
            flipped, told = (~(here[rows, :, None] == there[rows, None]).any(-1)).sum() / here.size, ""
            if not flipped:
                continue
            width = 1 + max(here.max(), there.max())
            x, y = next(((x, y) for x, y in scores if len(x) == len(here) and x.shape[1] >= width), (None, None))
            far: int | None = 0
            if x is not None and y is not None:
                by = own[OWN_SCORES].reshape(len(here), -1).astype(float) if is_replayed and OWN_SCORES in own else x
                far = _far(by, here, there, x, y, is_replayed)
                told = "" if far is None else f", {far} by more than the margin of their scores"
            u, by_what = max(each.u for each in (*call.inputs, *call.outputs)), [(x, y)] if x is not None else None
            if far or (is_replayed and flipped > _MOST * max(u, _apart(by_what or _arrays(call.inputs)))):
                beyond.append(call.a.path)
            layers.append(f"{call.a.path}: {100 * flipped:.3g} % of {here.size:,} choices differ{told}")
    said = [note("choices-flipped", layers=tuple(layers))] if layers else []
    return said + ([note("choices-beyond-margin", paths=tuple(beyond))] if beyond else [])


def _arrays(events: Iterable[Any]) -> list[tuple[Any, Any]]:
    """Return the values of both sides, as rows; floats as float64."""
    known = [each for each in events if each.is_paired and all(x.has_values and len(x.form) > 1 for x in each.both)]
    rows = [[side.values().reshape(-1, side.form[-1]) for side in each.both] for each in known]
    rows = [[x if x.dtype.kind in "iub" else x.astype(float) for x in each] for each in rows]
    return [(a, b) for a, b in rows if a.shape == b.shape]


def _apart(known: Iterable[tuple[Any, Any]]) -> float:
    """Return the largest relative difference of some values; infinity of none."""
    floats = [(x, y) for x, y in known if x.dtype.kind == "f"]
    return max((np.linalg.norm(x - y) / max(np.linalg.norm(x), 1e-300) for x, y in floats), default=np.inf)


def _far(by: np.ndarray, here: np.ndarray, there: np.ndarray, x: np.ndarray, y: np.ndarray, of_b: bool) -> int | None:
    """Return for how many tokens scores do not explain the choices; None if others were chosen by."""
    k, both = here.shape[-1], np.stack([here, there])
    if k > by.shape[1] or both.min() < 0 or both.max() >= by.shape[1]:  # padding, or no choices
        return None
    chosen = np.take_along_axis(by, there if of_b else here, -1).min(-1)
    if (chosen < np.partition(by, -k, -1)[:, -k]).any():  # a bias, or groups, had a part in it
        return None
    lost = chosen - np.take_along_axis(by, here if of_b else there, -1).min(-1)
    return int((np.isfinite(lost) & (lost > 2 * np.abs(x - y).max(-1))).sum())
