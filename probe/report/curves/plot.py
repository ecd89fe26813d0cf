"""Curves as a picture, in a file or in a notebook."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from probe.curve_comparison.reading.names import LR
from probe.curve_comparison.result import CurveComparison, SeriesResult
from probe.errors import ConfigError, StoreError
from probe.report.layout import file_names
from probe.report.plots.axes import NEEDS_MATPLOTLIB, WORDS, label, legend, pyplot, title

SUFFIXES = (".png", ".svg")
_A, _B, _OUT, _FURTHER, _BAND = "#1f6fb4", "#d9541e", "#b40426", "#9aa5b1", "#cfe3cf"
_MOST_ROWS = 6
_MOST_NORMS = 6
_ROOM = 1.25


def draw(answer: CurveComparison, path: str | Path | None = None) -> np.ndarray:
    """Draw the curves that decide: on the left both runs, on the right B − A and the noise band.

    Parameters
    ----------
    answer
        the comparison
    path
        a ``.png`` or ``.svg`` file; None for a figure of pyplot's, as a notebook shows it

    Returns
    -------
    matplotlib Axes
        a row for each curve

    Raises
    ------
    ImportError
        matplotlib is not installed
    ConfigError
        the file's name ends otherwise, or there is nothing to draw
    StoreError
        it cannot be written
    """
    where = "" if path is None else f" into {path}"
    if path is not None and Path(path).suffix.lower() not in SUFFIXES:
        raise ConfigError(f"cannot draw{where}: expected a name that ends in {' or '.join(SUFFIXES)}")
    shown = [each for each in answer.series if len(each.pair)]
    shown = ([each for each in shown if each.decides] or shown)[:_MOST_ROWS]
    if not shown:
        raise ConfigError(f"nothing to draw{where}: the two runs have no curve with a step in common")
    has_norms = any(each.is_out for each in answer.norms.results)
    rows = len(shown) + has_norms
    figure = _figure(path is not None, (11, 2.5 * rows + 0.6))
    axes = figure.subplots(rows, 2, squeeze=False, sharex=True)
    for (left, right), each in zip(axes, shown, strict=False):
        _curves(left, answer, each)
        _difference(right, each)
    if has_norms:
        _norms(axes[-1], answer)
    for axis in axes[-1]:
        axis.set_xlabel("step")
    name_a, name_b = map(label, file_names(answer.path_a, answer.path_b))
    head = f"{answer.verdict.value.upper()}   A {name_a}   B {name_b}"
    figure.suptitle(head, fontsize=11, **WORDS)
    if path is not None:
        try:
            figure.savefig(path, dpi=130)
        except OSError as error:
            raise StoreError(f"cannot write {path}: {error.strerror}") from None
    return axes


def _figure(is_for_file: bool, size: tuple[float, float]) -> Any:
    if not is_for_file:
        return pyplot().figure(figsize=size, layout="constrained")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError(NEEDS_MATPLOTLIB) from None
    return Figure(figsize=size, layout="constrained")


def _curves(axis: Any, answer: CurveComparison, each: SeriesResult) -> None:
    pair = each.pair
    for index, other in enumerate(pair.others):
        axis.plot(pair.steps, other, color=_FURTHER, lw=0.9, label="further runs of A" if not index else None)
    axis.plot(pair.steps, pair.a, color=_A, lw=1.6, label="A", **_dots(pair.steps))
    axis.plot(pair.steps, pair.b, color=_B, lw=0.9, label="B", **_dots(pair.steps))
    title(axis, label(each.name))
    _legend(axis)
    _finish(axis, each)


def _difference(axis: Any, each: SeriesResult) -> None:
    pair, band = each.pair, each.band
    axis.axhline(0, color="gray", lw=0.6)
    low, high = band.low - pair.a, band.high - pair.a
    axis.fill_between(pair.steps, low, high, color=_BAND, lw=0, label="noise band")
    axis.plot(pair.steps, pair.difference, color=_B, lw=0.9, label="B − A", **_dots(pair.steps))
    known = np.abs(pair.difference[pair.finite])
    most = max(float(known.max(initial=0.0)), float(np.nanmedian(np.concatenate([-low, high]))) if len(pair) else 0.0)
    if most > 0:
        axis.set_ylim(-_ROOM * most, _ROOM * most)
    title(axis, f"B − A, {each.judgement}")  # the name stands beside it, on the left
    _legend(axis)
    _finish(axis, each)


def _norms(axes: Any, answer: CurveComparison) -> None:
    """Draw the norms of the parameter that leaves first, and how far those are apart that do."""
    left, right = axes
    gone = sorted((each for each in answer.norms.results if each.is_out), key=lambda each: each.first_out or 0)
    lead = answer.norms.first[0]
    left.plot(lead.pair.steps, lead.pair.a, color=_A, lw=1.6, label="A")
    left.plot(lead.pair.steps, lead.pair.b, color=_B, lw=0.9, label="B")
    title(left, f"gradient norm of {label(lead.name_a)}")
    _legend(left)
    drawn = []
    for each in gone[:_MOST_NORMS]:
        scale = np.maximum(np.abs(each.pair.a), np.abs(each.pair.b))
        apart = np.divide(each.pair.b - each.pair.a, scale, out=np.zeros(len(scale)), where=scale > 0)
        drawn += right.plot(each.pair.steps, 100 * apart, lw=0.9)
    right.axhline(0, color="gray", lw=0.6)
    right.set_ylabel("%")
    title(right, "gradient norms: B − A, relative")
    legend(right, drawn, [label(each.name_a, 40) for each in gone[:_MOST_NORMS]], loc="upper left")
    for axis in axes:
        axis.axvline(lead.first_out, color=_OUT, lw=0.9, ls="--")
        axis.grid(alpha=0.25)


def _finish(axis: Any, each: SeriesResult) -> None:
    if each.first_out is not None:
        axis.axvline(each.first_out, color=_OUT, lw=0.9, ls="--")
    if each.name.startswith(LR):
        axis.ticklabel_format(axis="y", style="sci", scilimits=(-3, 3))
    axis.grid(alpha=0.25)
    axis.margins(x=0.01)


def _legend(axis: Any) -> None:
    """Put the legend beside the title, where it hides no curve."""
    axis.legend(fontsize=8, frameon=False, loc="lower right", bbox_to_anchor=(1.0, 0.98), ncols=3, borderaxespad=0.0)


def _dots(steps: np.ndarray) -> dict[str, Any]:
    return {"marker": "o", "ms": 3} if len(steps) <= 40 else {}
