"""`Weights` in words."""

from __future__ import annotations

import math

from rich.text import Text

from probe.checks.weights import Weights
from probe.checks.weights.measuring import WeightRow
from probe.report.checks.frame import headed, number, table
from probe.report.names import plain

_MOST = 10
"""rows of the table"""
_HEAD = ("weight of B", "mean A", "mean B", "var A", "var B", "norm B/A")


def render(result: Weights, width: int | None = None, *, verbose: bool = False) -> Text:
    """Return the answer, and mean, variance and norm of the weights that differ most.

    Parameters
    ----------
    result
        what to show
    width
        columns of the terminal; None for what goes to none
    verbose
        show all weights, in the order of B, not only the ten that differ most
    """
    out = headed(result, width)
    rows = (
        list(result.rows) if verbose else sorted((row for row in result.rows if not row.is_equal), key=_apart)[:_MOST]
    )
    if rows:
        out.append("\nEvery weight\n" if verbose else "\nFurthest apart in norm or variance\n")
        out.append_text(table(_HEAD, map(_cells, rows), width))
        left = len(result.rows) - len(rows)
        if left and not verbose:
            out.append(f"  {left} more: -v shows all\n", style="dim")
    out.rstrip()
    return out


def _apart(row: WeightRow) -> float:
    ratios = [ratio for ratio in (row.norm_ratio, row.std_ratio) if math.isfinite(ratio) and ratio > 0]
    is_constant_once = row.a.drawn.is_constant is not row.b.drawn.is_constant
    return -math.inf if is_constant_once else -max((abs(math.log(ratio)) for ratio in ratios), default=0.0)


def _cells(row: WeightRow) -> tuple[str, ...]:
    ratio = "equal" if row.is_equal else "–" if math.isnan(row.norm_ratio) else f"{row.norm_ratio:.4f}"
    return plain(row.name_b), *map(number, (row.a.mean, row.b.mean, row.a.variance, row.b.variance)), ratio
