"""`Initial` in words."""

from __future__ import annotations

import math

from rich.text import Text

from probe.checks.initial import Initial
from probe.checks.initial.checking import Kind, Parameter
from probe.report.checks.frame import headed, number, table
from probe.report.names import plain

_MOST = 10
"""rows of the table"""
_HEAD = ("parameter", "mean A", "mean B", "std A", "std B", "KS", "p")


def render(result: Initial, width: int | None = None, *, verbose: bool = False) -> Text:
    """Return the answer, and the parameters with the smallest p.

    Parameters
    ----------
    result
        what to show
    width
        columns of the terminal; None for what goes to none
    verbose
        show all parameters, not only the first ten of those that were tested
    """
    out = headed(result, width)
    tested = [each for each in result.parameters if each.p]
    shown = list(result.parameters) if verbose else sorted(tested, key=lambda each: min(each.p.values()))[:_MOST]
    if shown:
        out.append("\nEvery parameter\n" if verbose else "\nLeast alike\n")
        out.append_text(table(_HEAD, map(_row, shown), width))
        if not verbose and len(tested) > len(shown):
            out.append(f"  {len(tested) - len(shown)} more: -v shows all\n", style="dim")
    out.rstrip()
    return out


def _row(each: Parameter) -> tuple[str, ...]:
    p = "equal" if each.kind is Kind.EQUAL else "few" if not each.p else f"{min(each.p.values()):.0e}"
    statistic = "–" if math.isnan(each.statistic) else f"{each.statistic:.3f}"
    return plain(each.name_a), *map(number, (each.a.mean, each.b.mean, each.a.std, each.b.std)), statistic, p
