"""The results as tables."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from benchmarks.cost.model import SIZES
from benchmarks.cost.rows import MIB, ROWS

COST = ("row", "wall ×", "limit", "written ×", "CPU ×", "MiB a step", "limit", "files", "memory +MiB", "bits")
PASSES = ("tensor", "passes", "limit", "ms", "ns an element")


def cost_table(size: str, results: list[dict[str, Any]]) -> Table:
    """Return what every row of one size costs beside plain training."""
    of = SIZES[size]
    table = Table(title=f"{of.layers} layers, hidden {of.hidden}, sequence {of.sequence}, batch {of.batch}")
    _columns(table, COST)
    for result in results:
        row = ROWS[result["row"]]
        probe, peer = row.tool == "probe", row.tool == "msprobe"
        table.add_row(
            f"{row.tool} {result['version']}: {row.title}" if peer else row.title,
            _spread(result["wall_ratio"], row.wall.get(size)),
            _limit(row.wall.get(size), "{:.2f}"),
            _spread(result["written_ratio"]),
            _spread(result["cpu_ratio"]),
            _coloured(result["bytes_per_step"] / MIB, row.mib.get(size), "{:,.1f}"),
            _limit(row.mib.get(size), "{:,.0f}"),
            "1 in all" if probe else str(result["new_files_per_step"]),
            f"{result['memory_growth'] / MIB:,.0f}",
            "same" if result["losses_equal"] else "changed",
        )
    return table


def passes_table(results: list[dict[str, Any]]) -> Table:
    """Return what the statistics of one tensor cost, in passes over its memory."""
    table = Table(title="statistics + sketch + hash of one tensor, one core, 1 pass = x.sum()")
    _columns(table, PASSES)
    for result in results:
        table.add_row(
            result["case"],
            _spread(result["passes"], result["limit"]),
            _limit(result["limit"], "{:.0f}"),
            f"{1e3 * result['seconds']['median']:.3f}",
            f"{result['nanoseconds_per_element']:.2f}",
        )
    return table


def trust(results: list[dict[str, Any]]) -> str:
    """Say how far the figures can be trusted: unhooked twins in pairs, and plain steps before and between."""
    twins = [result["unhooked_ratio"] for result in results]
    slowed = [result["plain_seconds"]["median"] / result["plain_seconds_before"]["median"] for result in results]
    return (
        f"two unhooked models against each other: medians {_range([twin['median'] for twin in twins])}, "
        f"single pairs {min(twin['min'] for twin in twins):.2f} to {max(twin['max'] for twin in twins):.2f}; "
        f"plain steps between recorded ones against before: {_range(slowed)}"
    )


def _range(values: list[float]) -> str:
    return f"{min(values):.2f} to {max(values):.2f}"


def _columns(table: Table, names: tuple[str, ...]) -> None:
    for name in names:
        table.add_column(name, justify="left" if name == names[0] else "right", no_wrap=True)


def _spread(found: dict[str, float], limit: float | None = None) -> str:
    return f"{_coloured(found['median'], limit, '{:.2f}')} ({found['min']:.2f}–{found['max']:.2f})"


def _coloured(value: float, limit: float | None, form: str) -> str:
    text = form.format(value)
    return text if limit is None else f"[{'green' if value <= limit else 'red'}]{text}[/]"


def _limit(limit: float | None, form: str) -> str:
    return "–" if limit is None else "≤ " + form.format(limit)
