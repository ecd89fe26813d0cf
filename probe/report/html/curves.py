"""What both runs wrote down step by step: loss, learning rate, norms of gradients; in a bounded number of points."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from probe.answer.result import SlotResult
from probe.curve_comparison.reading.names import GRAD_NORM, LOSS, LR
from probe.curve_comparison.reading.recorded import TOTAL, read_recording
from probe.curve_comparison.reading.series import Series
from probe.records import Phase, Role
from probe.report.html.columns import numbers
from probe.store.places import place_of

MOST_POINTS = 600
"""of a curve"""
MOST_NORMS = 400
"""parameters whose gradients have a curve, those that differ most"""
POINTS_OF_NORM = 200
_WORSE = {"introduced": 3, "inherited": 2, "noise": 1}
"""verdicts of gradients, from what differs by more than rounding explains to what does not"""
_FIRST = (LOSS, GRAD_NORM, TOTAL, LR)


def curves(path_a: str, path_b: str, slots: Sequence[SlotResult], to_b: int) -> dict[str, list[dict[str, object]]]:
    """Return the curves that both recordings have, by steps of A; those of the same steps stand beside each other.

    Parameters
    ----------
    path_a, path_b
        the recordings
    slots
        what was compared: tells which gradients are a pair
    to_b
        what is added to a step of A to get that of B
    """
    a, b = read_recording(place_of(path_a)), read_recording(place_of(path_b))
    shared = sorted(a.series.keys() & b.series.keys(), key=_rank)
    norms = [
        (name_a if name_a == name_b else f"{name_a} ⟷ {name_b}", mine, theirs, verdict)
        for (name_a, name_b), verdict in _gradients(slots).items()
        if (mine := _together(a.norms, name_a)) and (theirs := _together(b.norms, name_b))
    ]
    long = [each for each in norms if len(each[1].steps) > 1 or len(each[2].steps) > 1]
    long.sort(key=lambda each: (-_WORSE.get(each[3], 0), -_difference(each[1], each[2], to_b)))
    return {
        "scalars": [_curve(name, MOST_POINTS, a.series[name], b.series[name], to_b) for name in shared],
        "norms": [
            {**_curve(name, POINTS_OF_NORM, mine, theirs, to_b), "verdict": verdict}
            for name, mine, theirs, verdict in long[:MOST_NORMS]
        ],
    }


def curves_of_one(path: Path) -> dict[str, list[dict[str, object]]]:
    """Return the curves of one recording: what it logged, and the norms of its gradients, the largest first."""
    run = read_recording(path)
    names = sorted(run.series, key=_rank)
    long = [series for series in run.norms.values() if len(series.steps) > 1]
    long.sort(key=lambda series: -float(np.max(series.values, where=np.isfinite(series.values), initial=0.0)))
    return {
        "scalars": [_curve(name, MOST_POINTS, run.series[name]) for name in names],
        "norms": [_curve(each.name, POINTS_OF_NORM, each) for each in long[:MOST_NORMS]],
    }


def _rank(name: str) -> tuple[int, str]:
    return _FIRST.index(name) if name in _FIRST else len(_FIRST), name


def _gradients(slots: Sequence[SlotResult]) -> dict[tuple[str, str], str]:
    """Return the names of gradients as used that are a pair, each several where they lie in one on the other side, with their worst verdict."""
    found: dict[tuple[str, str], str] = {}
    for slot in slots:
        if (slot.phase, slot.role) == (Phase.UPDATE, Role.PARAM_GRAD):
            a, b = (" + ".join(f"{path}.{name}" if path else name for path, name in places)
                    for places in (slot.places_a, slot.places_b))  # fmt: skip
            known = found.setdefault((a, b), slot.verdict)
            found[a, b] = max(known, slot.verdict, key=lambda verdict: _WORSE.get(verdict, 0))
    return found


def _together(norms: Mapping[str, Series], name: str) -> Series | None:
    """Return the norm of several gradients as if they were one; None where one of them is not there."""
    found = [norms.get(part) for part in name.split(" + ")]
    if any(series is None or not np.array_equal(series.steps, found[0].steps) for series in found):
        return None
    return Series(name, found[0].steps, np.sqrt(sum(series.values**2 for series in found)))


def _difference(a: Series, b: Series, to_b: int) -> float:
    """Return the largest relative difference at a step that both have."""
    _, here, there = np.intersect1d(a.steps, b.steps - to_b, return_indices=True)
    x, y = a.values[here], b.values[there]
    with np.errstate(invalid="ignore", divide="ignore"):
        off = np.abs(x - y) / np.maximum(np.abs(x), np.abs(y))
    return float(np.max(off, where=np.isfinite(off), initial=0.0)) if np.isfinite(x + y).all() else math.inf


def _curve(name: str, most: int, a: Series, b: Series | None = None, to_b: int = 0) -> dict[str, object]:
    sides = {"a": (a.steps, a.values)} | ({} if b is None else {"b": (b.steps - to_b, b.values)})
    steps = functools.reduce(np.union1d, (known for known, _ in sides.values()))
    values = {side: _at(steps, *each) for side, each in sides.items()}
    kept = _kept(values["a"], values.get("b", values["a"]), most)
    shown = {side: numbers(each[kept].tolist()) for side, each in values.items()}
    return {"name": name, "steps": steps[kept].tolist(), **shown, "total": len(steps)}


def _at(steps: np.ndarray, known: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return values at all steps, NaN where there is none."""
    found = np.full(len(steps), np.nan)
    found[np.searchsorted(steps, known)] = values
    return found


def _kept(a: np.ndarray, b: np.ndarray, most: int) -> np.ndarray:
    """Return which points to draw: all, or the lowest, the highest and the most different of each stretch."""
    if len(a) <= most:
        return np.arange(len(a))
    off = np.abs(a - b)
    chosen = {0, len(a) - 1}
    for stretch in np.array_split(np.arange(len(a)), most // 4):
        for values, pick in ((a, np.nanargmin), (a, np.nanargmax), (off, np.nanargmax)):
            part = values[stretch]
            chosen.add(int(stretch[pick(part)] if np.isfinite(part).any() else stretch[0]))
    return np.array(sorted(chosen))
