"""Numbers as the document has them: six digits, what is not finite as JSON can say it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

Number = float | int | str | None
_SHORT, _FEW = 64, 4
"""columns of so many numbers are written down as they are, and those with more than one run among so many"""


def number(value: float, digits: int = 6) -> Number:
    """Return a number of a few digits; NaN as None, infinities as ``"inf"`` and ``"-inf"``."""
    if math.isfinite(value):
        return value if isinstance(value, int) else float(f"{value:.{digits}g}")
    return None if math.isnan(value) else "inf" if value > 0 else "-inf"


def numbers(values: Iterable[float]) -> list[Number]:
    """Return `number` of each."""
    return [number(value) for value in values]


def speakable(value: Any) -> Any:
    """Return nested dicts and lists with every `number` in them as JSON can say it."""
    if isinstance(value, dict):
        return {name: speakable(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [speakable(each) for each in value]
    return number(value) if isinstance(value, float) else value


def in_runs(table: dict[str, Any]) -> dict[str, Any]:
    """Return columns, or tables of them, in which those that hardly change are ``{"runs": [value, count, …]}``: they are unpacked much faster."""
    return {name: in_runs(column) if isinstance(column, dict) else _in_runs(column) for name, column in table.items()}


def _in_runs(column: Sequence[Number]) -> object:
    """Return a column, or its runs where there are few."""
    if len(column) < _SHORT or (column[0] is not None and not isinstance(column[0], int)):
        return column
    runs: list[Number] = []
    for value, same in itertools.groupby(column):
        runs += [value, sum(1 for _ in same)]
        if _FEW * len(runs) > len(column):
            return column
    return {"runs": runs}


class Words:
    """Texts that are said often, by number."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def number(self, text: str) -> int:
        """Return the number of a text."""
        return self._known.setdefault(text, len(self._known))

    @property
    def all(self) -> list[str]:
        """All texts, in the order of their numbers."""
        return list(self._known)
