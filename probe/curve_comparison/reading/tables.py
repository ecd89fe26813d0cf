"""CSV (or tab-separated) files with a column of steps."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path

from probe.curve_comparison.reading.series import Collector, RunCurves
from probe.curve_comparison.reading.trainer import STEP_NAMES
from probe.errors import FormatError

TABLE = "CSV"
_EMPTY = {"", "none", "null", "na", "n/a"}


def header_of(text: str) -> list[str]:
    """Return the names in a table's first line, or nothing where that holds no column of steps."""
    line = next((line for line in text.splitlines() if line.strip()), "")
    names = [name.strip() for name in next(csv.reader([line], delimiter=_delimiter(line)), [])]
    return names if len(names) > 1 and _step_column(names) is not None else []


def read_table(path: Path, text: str) -> RunCurves:
    """Return the curves of a table in which `header_of` found a column of steps; empty cells are no values.

    Raises
    ------
    FormatError
        a cell is no number, or a row has another length than the header; with the line
    """
    names = header_of(text)
    column = _step_column(names)
    rows = csv.reader(io.StringIO(text), delimiter=_delimiter(text.lstrip().splitlines()[0]))
    found, seen_header = Collector(), False
    for row in rows:
        if not any(cell.strip() for cell in row):
            continue
        if not seen_header:
            seen_header = True
            continue
        where = f"{path}, line {rows.line_num}"
        if len(row) != len(names):
            raise FormatError(f"{where}: expected {len(names)} cells ({', '.join(names)}), got {len(row)}")
        step = _number(row[column], names[column], where)
        if step is None or not math.isfinite(step) or step != int(step):
            raise FormatError(f"{where}: {names[column]}: expected a whole number, got {row[column]!r}")
        for index, (name, cell) in enumerate(zip(names, row, strict=True)):
            value = None if index == column or name.lower() == "wall time" else _number(cell, name, where)
            if value is not None:
                found.add(int(step), name, value, cell.strip())
    if not found:
        raise FormatError(f"{path}: no row with a number behind the header {', '.join(names)}")
    return found.curves(path, TABLE)


def _delimiter(line: str) -> str:
    return max(",;\t", key=line.count)


def _step_column(names: list[str]) -> int | None:
    lower = [name.lower() for name in names]
    return next((lower.index(name) for name in STEP_NAMES if name in lower), None)


def _number(cell: str, name: str, where: str) -> float | None:
    if cell.strip().lower() in _EMPTY:
        return None
    try:
        return float(cell)
    except ValueError:
        raise FormatError(f"{where}: {name}: expected a number, got {cell!r}") from None
