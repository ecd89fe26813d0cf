"""What all pictures share: axes to draw on, colours, and names as text."""

from __future__ import annotations

from typing import Any

import numpy as np

from probe.report.layout import harmless

A, B = "#1f77d4", "#d9681e"
"""colours of the two sides, told apart by everyone and on light and dark ground"""
VERDICTS = {
    "equal": "#8d96a1", "noise": "#5b93b8", "not judged": "#a07cc0", "inherited": "#d98a00", "introduced": "#e0314b",
}  # fmt: skip
BAND = "#5b93b8"
"""what rounding, and the errors of what something was made from, explain"""
WORDS: dict[str, Any] = {"parse_math": False, "usetex": False}
"""for texts with names: nothing in them is a formula"""
NEEDS_MATPLOTLIB = "a plot needs matplotlib: pip install 'probe-align[plot]'"
SMALL = 9
_LONGEST = 60


def pyplot() -> Any:
    """Return matplotlib's pyplot.

    Raises
    ------
    ImportError
        it is not installed
    """
    try:
        import matplotlib.pyplot
    except ImportError:
        raise ImportError(NEEDS_MATPLOTLIB) from None
    return matplotlib.pyplot


def one(ax: Any, size: tuple[float, float]) -> Any:
    """Return the axes that were given, or new ones."""
    return pyplot().subplots(figsize=size, layout="constrained")[1] if ax is None else ax


def label(text: str, longest: int = _LONGEST) -> str:
    """Return a name fit for a picture; of a long one the beginning and the end."""
    ends = text if len(text) <= 4 * longest else text[: 2 * longest] + text[-2 * longest :]
    safe = harmless(ends)
    return safe if len(safe) <= longest else f"{safe[: longest // 3]}…{safe[1 + longest // 3 - longest :]}"


def title(ax: Any, text: str) -> None:
    """Set a title."""
    ax.set_title(text, loc="left", fontsize=10, **WORDS)


def legend(ax: Any, handles: list[Any], names: list[str], **options: Any) -> Any:
    """Add a legend; names that begin with ``_`` stand in it too."""
    made = ax.legend(handles, ["?"] * len(handles), fontsize=SMALL, frameon=False, **options)
    for place, text in zip(made.get_texts(), names, strict=True):
        place.set(text=label(text), **WORDS)
    return made


def histogram(ax: Any, sides: list[tuple[str, np.ndarray, str]], bins: int = 60) -> None:
    """Draw the finite values of one or two tensors: the first one filled, the second as a line."""
    finite = [values[np.isfinite(values)] for _, values, _ in sides]
    low = min((float(values.min()) for values in finite if values.size), default=0.0)
    high = max((float(values.max()) for values in finite if values.size), default=1.0)
    margin = 0.0 if low < high else abs(low) / 2 or 0.5
    edges = np.linspace(low - margin, high + margin, bins + 1)
    drawn = []
    for index, ((_, _, colour), values) in enumerate(zip(sides, finite, strict=True)):
        counts = np.histogram(values, edges)[0]
        style = {"color": colour, "lw": 1.4} if index else {"color": colour, "alpha": 0.45, "fill": True}
        drawn.append(ax.stairs(counts, edges, **style))
    names = [name for name, _, _ in sides]
    left = [int(values.size - kept.size) for (_, values, _), kept in zip(sides, finite, strict=True)]
    names = [f"{name} ({count:,} not finite)" if count else name for name, count in zip(names, left, strict=True)]
    ax.set_xlabel("value")
    ax.set_ylabel("elements")
    if len(sides) > 1 or any(left):
        legend(ax, drawn, names, loc="upper right")
