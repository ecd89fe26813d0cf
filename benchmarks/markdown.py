"""Tables of Markdown for the pages that benchmarks write."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any


def table(header: Sequence[Any], rows: Iterable[Iterable[Any]], numbers: bool = False) -> str:
    """Return a table with its last line's end; `numbers`: all columns but the first stand to the right."""
    rule = ["---", *["---:" if numbers else "---"] * (len(header) - 1)]
    lines = [header, rule, *rows]
    return "".join(f"| {' | '.join(str(cell).replace('|', '/') for cell in line)} |\n" for line in lines)
