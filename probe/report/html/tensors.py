"""What the values of two tensors show, in a bounded size: histograms, error by axis, the worst elements."""

from __future__ import annotations

import itertools
import math

import numpy as np

from probe.report.html.columns import number, numbers

BINS = 48
"""of a histogram, and of an axis of a map"""
LONGEST_PROFILE = 128
MOST_AXES = 4
"""of more, only the first ones are drawn"""
WORST = 10
LARGEST = 1 << 23
"""elements of the largest tensor that is drawn: half a gigabyte of memory"""
_SHADES = 255


def drawn(a: np.ndarray, b: np.ndarray) -> dict[str, object]:
    """Return what a picture of two tensors of one shape needs.

    Parameters
    ----------
    a, b
        real values, at least one; those of B stand where A's do
    """
    a, b = (np.atleast_1d(np.asarray(side, dtype=np.float64)) for side in (a, b))
    with np.errstate(over="ignore", invalid="ignore"):
        error = b - a
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    error[same] = 0.0
    size = np.where(np.isfinite(error), np.abs(error), 0.0)
    axes = [axis for axis, length in enumerate(a.shape) if length > 1][:MOST_AXES]
    return {
        "shape": list(a.shape),
        "values": _histogram(a, b),
        "errors": _error_histogram(size),
        "profiles": [_profile(size, axis) for axis in axes],
        "maps": [_map(size, *pair) for pair in itertools.combinations(axes, 2)],
        "worst": _worst(a, b, error),
        "nonfinite": int((~np.isfinite(error)).sum()),
    }


def _histogram(a: np.ndarray, b: np.ndarray) -> dict[str, object] | None:
    finite = [side[np.isfinite(side)] for side in (a, b)]
    if not all(side.size for side in finite):
        return None
    low = min(float(side.min()) for side in finite)
    high = max(float(side.max()) for side in finite)
    if low == high:
        margin = abs(low) / 2 or 0.5
        low, high = low - margin, high + margin
    if not math.isfinite(high - low):
        return None
    counts = [np.histogram(side, BINS, (low, high))[0].tolist() for side in finite]
    return {"from": number(low), "to": number(high), "a": counts[0], "b": counts[1]}


def _error_histogram(size: np.ndarray) -> dict[str, object] | None:
    """Count the absolute errors by their decimal logarithm; those that are 0 apart."""
    wrong = size[size > 0]
    if not wrong.size:
        return None
    logs = np.log10(wrong)
    low, high = float(np.floor(logs.min())), float(np.ceil(logs.max()))
    high = max(high, low + 1)
    return {"from": low, "to": high, "counts": np.histogram(logs, BINS, (low, high))[0].tolist(),
            "zeros": int(size.size - wrong.size)}  # fmt: skip


def _profile(size: np.ndarray, axis: int) -> dict[str, object]:
    """Return the root mean square error at each index of an axis, neighbours together where there are many."""
    length = size.shape[axis]
    others = tuple(k for k in range(size.ndim) if k != axis)
    means = np.mean(np.square(size), axis=others)
    starts = _starts(length, LONGEST_PROFILE)
    widths = np.diff([*starts, length])
    return {"axis": axis, "size": length, "rms": numbers(np.sqrt(np.add.reduceat(means, starts) / widths).tolist())}


def _map(size: np.ndarray, first: int, second: int) -> dict[str, object]:
    """Return the root mean square error over two axes, as shades of its logarithm between the least and the largest."""
    others = tuple(k for k in range(size.ndim) if k not in (first, second))
    means = np.mean(np.square(size), axis=others)
    starts = [_starts(length, BINS) for length in means.shape]
    widths = [np.diff([*each, length]) for each, length in zip(starts, means.shape, strict=True)]
    sums = np.add.reduceat(np.add.reduceat(means, starts[0], axis=0), starts[1], axis=1)
    rms = np.sqrt(sums / np.outer(*widths))
    wrong = rms[rms > 0]
    low, high = (float(wrong.min()), float(wrong.max())) if wrong.size else (0.0, 0.0)
    shades = np.zeros(rms.shape, int)
    if wrong.size:
        spread = math.log(high / low) or 1.0
        shades[rms > 0] = 1 + np.rint((_SHADES - 1) * np.log(wrong / low) / spread) if high > low else _SHADES
    return {"axes": [first, second], "sizes": list(means.shape), "rows": rms.shape[0], "columns": rms.shape[1],
            "from": number(low), "to": number(high), "shades": shades.reshape(-1).tolist()}  # fmt: skip


def _starts(length: int, most: int) -> np.ndarray:
    return np.unique(np.linspace(0, length, min(length, most), endpoint=False).astype(int))


def _worst(a: np.ndarray, b: np.ndarray, error: np.ndarray) -> list[dict[str, object]]:
    """Return the elements that are furthest apart, those that are finite on one side only first."""
    key = np.where(np.isfinite(error), np.abs(error), np.inf).reshape(-1)
    chosen = np.argpartition(key, -WORST)[-WORST:] if key.size > WORST else np.arange(key.size)
    chosen = chosen[np.argsort(-key[chosen], kind="stable")]
    return [
        {"at": [int(k) for k in np.unravel_index(place, a.shape)], "a": number(float(a.flat[place])),
         "b": number(float(b.flat[place]))}
        for place in chosen.tolist()
        if key[place] > 0
    ]  # fmt: skip
