"""The table of a conversion: which tensor became which."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from probe.conversion.plan import Plan
from probe.report.names import plain


def conversion_table(plan: Plan) -> Table:
    """Return a row per tensor of the target, and one for each that was left out."""
    table = Table(box=None, pad_edge=False)
    for heading in ("old name", "shape", "action", "new name", "shape"):
        table.add_column(heading, overflow="fold")
    for move in plan.moves:
        old = " + ".join(plain(part.stored.name) for part in move.parts)
        shapes = " + ".join(str(list(part.stored.shape)) for part in move.parts)
        _add(table, old, shapes, move.action, plain(move.target.name), str(list(move.target.shape)))
    for stored in plan.left_out:
        _add(table, plain(stored.name), str(list(stored.shape)), "left out", "", "")
    return table


def _add(table: Table, *cells: str) -> None:
    table.add_row(*(Text(cell) for cell in cells))
