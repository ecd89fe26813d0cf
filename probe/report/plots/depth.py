"""The relative error of everything that was compared in a step, in the order of cause."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from probe.answer.comparison import Comparison
from probe.answer.result import SlotResult
from probe.errors import ConfigError, NotRecordedError
from probe.records import Phase
from probe.report.left_out import qualification
from probe.report.measured import judged
from probe.report.plots.axes import BAND, SMALL, VERDICTS, WORDS, label, legend, one, title

_MANY = 3000
_SIZES = {"introduced": 60.0}
_MARKERS = {"introduced": "D", "not judged": "v"}
_MOST_NAMED = 3
_APART = 0.1
"""of the width, that names of places need between them"""
_ROOM = 0.06
"""of the width, that a phase needs for its name"""


def draw(comparison: Comparison, step: int | None = None, ax: Any = None) -> Any:
    """Draw the error of every pair of tensors of a step above what is explained; return the axes.

    Raises
    ------
    ImportError
        matplotlib is not installed
    ConfigError
        the step was not compared
    NotRecordedError
        nothing with numbers was compared in it
    """
    axes, steps = one(ax, (10, 3.6)), [number for number, _ in comparison.steps]
    if step is not None and step not in steps:
        listed = ", ".join(map(str, steps)) or "none"
        known = f"there is only step {listed}" if len(steps) == 1 else f"there are {listed}"
        raise ConfigError(f"step {step} was not compared; {known}")
    chosen = step if step is not None else _telling(comparison, steps)
    slots = _drawn([slot for slot in comparison.slots if slot.step == chosen])
    if not slots:
        raise NotRecordedError(f"nothing with numbers was compared in step {chosen}")
    errors, limits = _numbers(slots)
    runs = np.array([slot.in_run for slot in slots], float)
    floor, top = _range(errors, np.concatenate([limits, runs]))
    heights = np.where(errors <= 0, floor, np.where(np.isinf(errors), top, errors))
    axes.set_yscale("log")
    axes.set_ylim(floor / 2.5, top * 3)
    axes.set_xlim(-1, len(slots))
    band = _band(axes, np.where(np.isfinite(limits), limits, floor / 10), floor)
    drawn, names = _points(axes, slots, heights)
    if np.isfinite(runs).any():  # of a replay
        drawn.append(_runs(axes, runs, floor))
        names.append("in a run of B")
    _phases(axes, slots)
    _name_introduced(axes, slots, heights)
    axes.set_ylabel("relative error")
    axes.set_xlabel("tensors in the order of cause" + ("; equal ones at the bottom" if (errors <= 0).any() else ""))
    axes.set_xticks([])
    title(
        axes,
        f"{comparison.verdict.value.upper()}{qualification(comparison.verdict, comparison.left_out)}: step {chosen}\n",
    )
    legend(axes, [*drawn, band], [*names, "explained"], loc="lower right", bbox_to_anchor=(1, 1.06), ncols=6,
           handletextpad=0.3, columnspacing=1.2, borderaxespad=0.0)  # fmt: skip
    return axes


def _telling(comparison: Comparison, steps: Sequence[int]) -> int:
    first = comparison.first_divergence
    return first.step if first is not None else steps[-1] if steps else 0


def _drawn(slots: Sequence[SlotResult]) -> list[SlotResult]:
    """Return those of which the error is known; initial weights only where more than rounding is wrong with them."""
    known = [slot for slot in slots if slot.metrics.is_known]
    is_dull = all(slot.phase is not Phase.INIT or slot.verdict in ("equal", "noise") for slot in known)
    rest = [slot for slot in known if slot.phase is not Phase.INIT]
    return rest if is_dull and rest else known


def _numbers(slots: Sequence[SlotResult]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([judged(slot) for slot in slots], float), np.array([slot.limit for slot in slots], float)


def _range(errors: np.ndarray, limits: np.ndarray) -> tuple[float, float]:
    """Return the heights at which what is equal, and what is infinitely far off, is drawn."""
    both = np.concatenate([errors, limits])
    known = both[np.isfinite(both) & (both > 0)]
    low, high = (float(known.min()), float(known.max())) if known.size else (1e-8, 1.0)
    return 10 ** (math.floor(math.log10(low)) - 0.5), max(high, 10 * low) * (10.0 if np.isinf(errors).any() else 1.0)


def _band(axes: Any, limits: np.ndarray, floor: float) -> Any:
    edges = np.arange(len(limits) + 1) - 0.5
    return axes.stairs(limits, edges, baseline=floor / 10, fill=True, color=BAND, alpha=0.22, lw=0)


def _points(axes: Any, slots: Sequence[SlotResult], heights: np.ndarray) -> tuple[list[Any], list[str]]:
    drawn, names = [], []
    said = np.array([slot.verdict if slot.verdict in VERDICTS else "not judged" for slot in slots])
    for verdict, colour in VERDICTS.items():
        at = np.flatnonzero(said == verdict)
        if at.size:
            size = _SIZES.get(verdict, 6.0 if len(slots) > _MANY else 12.0)
            marker = _MARKERS.get(verdict, "s")
            order = 4 if verdict == "introduced" else 3
            drawn.append(axes.scatter(at, heights[at], s=size, color=colour, marker=marker, lw=0, zorder=order,
                                      rasterized=len(slots) > _MANY))  # fmt: skip
            names.append(verdict)
    return drawn, names


def _runs(axes: Any, runs: np.ndarray, floor: float) -> Any:
    """Draw how far what modules return is off in a run of B by itself, where their own errors add up."""
    at = np.flatnonzero(np.isfinite(runs))
    heights = np.maximum(runs[at], floor)
    return axes.scatter(at, heights, s=12.0, facecolors="none", edgecolors=VERDICTS["inherited"], lw=0.8, zorder=2)


def _phases(axes: Any, slots: Sequence[SlotResult]) -> None:
    """Draw where one phase of one micro-batch ends and the next begins, and name those that have room."""
    keys = [(slot.phase, slot.micro if slot.phase in (Phase.FORWARD, Phase.BACKWARD) else 0) for slot in slots]
    starts = [at for at, key in enumerate(keys) if not at or key != keys[at - 1]]
    several = len({micro for _, micro in keys}) > 1
    for start, end in zip(starts, [*starts[1:], len(keys)], strict=True):
        if start:
            axes.axvline(start - 0.5, color="gray", alpha=0.5, lw=0.8)
        if end - start > _ROOM * len(keys):
            phase, micro = keys[start]
            name = f"{phase.label} {micro}" if several and phase in (Phase.FORWARD, Phase.BACKWARD) else phase.label
            axes.annotate(name, (start, 1), (2, 2), xycoords=("data", "axes fraction"), textcoords="offset points",
                          fontsize=SMALL, alpha=0.8)  # fmt: skip


def _name_introduced(axes: Any, slots: Sequence[SlotResult], heights: np.ndarray) -> None:
    """Name the first places that are wrong by themselves."""
    from matplotlib.patheffects import withStroke

    named: dict[str, int] = {}
    for at, slot in enumerate(slots):
        has_room = not named or at - max(named.values()) > _APART * len(slots)
        if slot.verdict == "introduced" and slot.path_a not in named and has_room and len(named) < _MOST_NAMED:
            named[slot.path_a] = at
    for path, at in named.items():
        is_right = at > len(slots) / 3  # what comes before the first one lies lower
        made = axes.annotate(label(path) or "the whole model", (at, heights[at]), (0, 9), va="bottom",
                             textcoords="offset points", ha="right" if is_right else "left", fontsize=SMALL,
                             color=VERDICTS["introduced"], zorder=5, **WORDS)  # fmt: skip
        made.set_path_effects([withStroke(linewidth=3, foreground=axes.get_facecolor())])
