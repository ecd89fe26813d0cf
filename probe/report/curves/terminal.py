"""A curve of both runs, and their difference, drawn in characters."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from probe.curve_comparison.result import SeriesResult
from probe.report.layout import plain

WIDTH = 69
_CURVE_ROWS = 9
_DIFFERENCE_ROWS = 7
_LABEL = 10


def drawn(result: SeriesResult, width: int = WIDTH) -> str:
    """Return two small plots: A and B (``·`` where they are the same), and B − A,
    where it is largest, with the steps out of the band.

    Parameters
    ----------
    result
        the curve
    width
        columns of the plots
    """
    pair = result.pair
    columns = [rows for rows in np.array_split(np.arange(len(pair)), min(width, len(pair))) if len(rows)]
    a, b = (_of_columns(values, columns, np.mean) for values in (pair.a, pair.b))
    apart = _of_columns(pair.difference, columns, lambda known: known[np.abs(known).argmax()])
    lines = [f"{plain(result.name)}   A and B (· both)"]
    lines += _curves(a, b)
    lines += ["", f"{plain(result.name)}   B − A (x out of the noise band)"]
    lines += _difference(apart, [bool(result.band.out[rows].any()) for rows in columns])
    first, last = str(int(pair.steps[0])), str(int(pair.steps[-1]))
    room = max(len(columns) - len(first), len(last) + 1)
    lines.append(f"{'step':>{_LABEL}} {first}{last:>{room}}")
    return "\n".join(line.rstrip() for line in lines)


def _of_columns(values: np.ndarray, columns: list[np.ndarray], of: Callable[[np.ndarray], float]) -> np.ndarray:
    """Return what stands for the finite values of each column, NaN where there is none."""
    known = [values[rows][np.isfinite(values[rows])] for rows in columns]
    return np.array([of(each) if len(each) else np.nan for each in known])


def _curves(a: np.ndarray, b: np.ndarray) -> list[str]:
    known = np.concatenate([a, b])
    known = known[np.isfinite(known)]
    if not len(known):
        return [f"{'':>{_LABEL}} no finite value"]
    low, high = float(known.min()), float(known.max())
    canvas = [[" "] * len(a) for _ in range(_CURVE_ROWS)]
    for column, (x, y) in enumerate(zip(a, b, strict=True)):
        places = [_row(value, low, high, _CURVE_ROWS) for value in (x, y)]
        for place, mark in zip(places, "AB", strict=True):
            if place is not None:
                canvas[place][column] = "·" if places[0] == places[1] else mark
    return _labelled(canvas, low, high)


def _difference(difference: np.ndarray, out: list[bool]) -> list[str]:
    known = np.abs(difference[np.isfinite(difference)])
    most = float(known.max()) if len(known) else 0.0
    canvas = [[" "] * len(difference) for _ in range(_DIFFERENCE_ROWS)]
    canvas[_DIFFERENCE_ROWS // 2] = ["─"] * len(difference)
    for column, value in enumerate(difference):
        place = _row(value, -most, most, _DIFFERENCE_ROWS)
        if place is not None:
            canvas[place][column] = "x" if out[column] else "•"
    return _labelled(canvas, -most, most)


def _row(value: float, low: float, high: float, rows: int) -> int | None:
    if not np.isfinite(value):
        return None
    if high <= low:
        return rows // 2
    return int(round((high - value) / (high - low) * (rows - 1)))


def _labelled(canvas: list[list[str]], low: float, high: float) -> list[str]:
    labels = [""] * len(canvas)
    labels[0], labels[-1] = f"{high:.4g}", f"{low + 0.0:.4g}"  # no -0
    return [f"{label:>{_LABEL}} {''.join(row)}" for label, row in zip(labels, canvas, strict=True)]
