"""Two tensors that were compared, as pictures: their values, their error over two axes, one against the other."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from probe.answer.result import SlotResult
from probe.errors import ConfigError
from probe.report.plots.axes import VERDICTS, WORDS, A, B, histogram, label, legend, one, pyplot, title

MOST_CELLS = 256
"""of a heat map, along one axis"""
MOST_POINTS = 20_000
_WORST = 2_000
_NARROW = 10.0
"""up to this factor between the smallest and the largest error shades are not logarithmic"""
_SIZE = (3.7, 3.2)


def draw(pair: SlotResult, kind: str | None, axes: tuple[int, int] | None, ax: Any) -> Any:
    """Draw what the values of two tensors show; return the axes, an array of three where no kind is chosen.

    Raises
    ------
    ImportError
        matplotlib is not installed
    ConfigError
        there is no such kind, or no such axes, ``ax`` is for one kind, or there are no elements
    NotRecordedError
        no values were recorded
    """
    if kind is not None and kind not in _KINDS:
        raise ConfigError(
            f"kind={kind!r} is not known; expected one of {', '.join(map(repr, _KINDS))}, or none for all"
        )
    if kind is None and ax is not None:
        raise ConfigError(f"ax= takes one picture: choose it by kind=, one of {', '.join(map(repr, _KINDS))}")
    plt = pyplot()
    a, b = (np.atleast_1d(np.asarray(side, np.float64)) for side in pair.values())
    if not a.size:
        raise ConfigError(f"nothing to draw: {pair.role.label} {label(pair.slot_a)} has no elements")
    chosen = _axes_of(a.shape, axes)
    kinds = list(_KINDS) if kind is None else [kind]
    if kind is None:
        width, height = _SIZE
        figure, places = plt.subplots(1, len(kinds), figsize=(len(kinds) * width, height), layout="constrained")
        what = f"{label(pair.path_a) or 'the model'}: {pair.role.label} {label(pair.slot_a, 30)}"
        figure.suptitle(what, fontsize=11, **WORDS)
    else:
        places = np.array([one(ax, (6, 3.6))], dtype=object)
    for place, each in zip(places, kinds, strict=True):
        _KINDS[each](place, a, b, chosen)
    return places if kind is None else places[0]


def _values(ax: Any, a: np.ndarray, b: np.ndarray, axes: tuple[int, ...]) -> None:
    histogram(ax, [("A", a.reshape(-1), A), ("B", b.reshape(-1), B)])
    title(ax, "values")


def _error(ax: Any, a: np.ndarray, b: np.ndarray, axes: tuple[int, ...]) -> None:
    """Draw the root mean square of the error over two axes, or over the only one."""
    error = error_of(a, b)
    bad = int(np.isinf(error).sum())
    more = f"; {bad:,} not finite on one side" if bad else ""
    if len(axes) < 2:
        _profile(ax, error, axes)
        title(ax, f"error, root mean square{more}")
        return
    cells = cells_of(error, axes)
    wrong = cells[np.isfinite(cells) & (cells > 0)]
    title(ax, f"error, root mean square{more}" if wrong.size or bad else "equal everywhere")
    from matplotlib import colormaps, colors, rcParams

    shades = colormaps[rcParams["image.cmap"]].with_extremes(bad=colors.to_rgba(VERDICTS["equal"], 0.35))
    low, high = (float(wrong.min()), float(wrong.max())) if wrong.size else (0.0, 1.0)
    scale = colors.LogNorm(max(low, high * 1e-6), high) if high > _NARROW * low > 0 else colors.Normalize(0, high)
    sizes = [error.shape[axis] for axis in axes]
    image = ax.imshow(np.ma.masked_where(~(cells > 0), cells), norm=scale, cmap=shades, aspect="auto",
                      interpolation="nearest", extent=(-0.5, sizes[1] - 0.5, sizes[0] - 0.5, -0.5))  # fmt: skip
    rows, columns = np.nonzero(np.isinf(cells))
    if rows.size:
        wide, high = sizes[1] / cells.shape[1], sizes[0] / cells.shape[0]
        ax.plot((columns + 0.5) * wide - 0.5, (rows + 0.5) * high - 0.5, "x", color=VERDICTS["introduced"])
    for place, axis in ((ax.yaxis, axes[0]), (ax.xaxis, axes[1])):
        place.set_label_text(f"axis {axis} of A")
        place.get_major_locator().set_params(integer=True)
    ax.figure.colorbar(image, ax=ax, pad=0.02)


def _profile(ax: Any, error: np.ndarray, axes: tuple[int, ...]) -> None:
    axis = axes[0] if axes else 0
    others = tuple(k for k in range(error.ndim) if k != axis)
    scale = _scale(error)
    ax.plot(scale * np.sqrt(np.mean(np.square(error / scale), axis=others)), color=VERDICTS["introduced"], lw=0.9)
    ax.set_xlabel(f"axis {axis} of A")


def _scatter(ax: Any, a: np.ndarray, b: np.ndarray, axes: tuple[int, ...]) -> None:
    chosen = points_of(a, b)
    x, y = a.reshape(-1)[chosen], b.reshape(-1)[chosen]
    ends = [float(f(side)) for f in (np.min, np.max) for side in (x, y)] if x.size else [0.0, 1.0]
    line = ax.axline((min(ends), min(ends)), slope=1, color="gray", lw=0.8)
    alpha = 0.8 if x.size < 2_000 else 0.35
    points = ax.scatter(x, y, s=6, color=B, alpha=alpha, lw=0, rasterized=x.size > 2_000)
    ax.set_xlabel("A")
    ax.set_ylabel("B")
    some = f"{x.size:,} of {a.size:,} elements" if x.size < a.size else "elements"
    legend(ax, [points, line], [some, "equal"], loc="upper left")
    title(ax, "B against A")


_KINDS: dict[str, Callable[[Any, np.ndarray, np.ndarray, tuple[int, ...]], None]] = {
    "values": _values, "error": _error, "scatter": _scatter,
}  # fmt: skip


def error_of(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return \\|b − a\\|; 0 where both are the same, NaN and Inf too, infinite where one side alone is not finite."""
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.abs(b - a)
    error[(a == b) | (np.isnan(a) & np.isnan(b))] = 0.0
    error[~np.isfinite(error)] = math.inf
    return error


def cells_of(error: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """Return the root mean square over all but two axes, neighbours together where there are more than are shown."""
    others = tuple(k for k in range(error.ndim) if k not in axes)
    scale = _scale(error)
    squares = np.mean(np.square(error / scale), axis=others)
    squares = squares if axes[0] < axes[1] else squares.T
    for axis, length in enumerate(squares.shape):
        starts = np.unique(np.linspace(0, length, min(length, MOST_CELLS), endpoint=False).astype(int))
        widths = np.diff([*starts, length])
        squares = np.add.reduceat(squares, starts, axis) / np.expand_dims(widths, 1 - axis)
    return scale * np.sqrt(squares)


def _scale(error: np.ndarray) -> float:
    """Return the largest finite error, by which all are divided before they are squared; 1 where all are 0."""
    return float(np.max(error, initial=0.0, where=np.isfinite(error))) or 1.0


def points_of(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return which elements are drawn: finite ones; of many the worst, and others at even distances."""
    finite = np.flatnonzero(np.isfinite(a.reshape(-1)) & np.isfinite(b.reshape(-1)))
    if finite.size <= MOST_POINTS:
        return finite
    error = np.abs(b.reshape(-1)[finite] - a.reshape(-1)[finite])
    worst = np.argpartition(error, -_WORST)[-_WORST:]
    even = np.linspace(0, finite.size - 1, MOST_POINTS - _WORST).astype(int)
    return finite[np.union1d(worst, even)]


def _axes_of(shape: tuple[int, ...], axes: tuple[int, int] | None) -> tuple[int, ...]:
    """Return the axes of the heat map: those that were chosen, else the last two that are longer than 1."""
    if axes is None:
        return tuple(axis for axis, length in enumerate(shape) if length > 1)[-2:]
    found = tuple(axis + len(shape) if axis < 0 else axis for axis in axes)
    if len(set(found)) != 2 or not all(0 <= axis < len(shape) for axis in found):
        raise ConfigError(f"axes={axes!r}: expected two different axes of {list(shape)}, such as (0, 1)")
    return found
