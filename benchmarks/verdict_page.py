"""`python -m benchmarks.verdict_page`: the tables of the verdict, as docs/reference/verdict.md lists them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

from probe.comparison.blame.gradients import GRADIENT
from probe.comparison.blame.table import INPUT, OUTPUT
from probe.comparison.coverage.table import ROWS
from probe.comparison.exemptions.table import EXEMPTIONS, REFITS

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "verdict.md"
_PART = re.compile(r"(<!-- begin: (\w+), by python -m benchmarks\.verdict_page -->\n).*?(<!-- end -->)", re.DOTALL)


def made(page: str) -> str:
    """Return the page with its generated parts as the tables are now."""
    return _PART.sub(lambda part: f"{part[1]}\n{_PARTS[part[2]]()}\n{part[3]}", page)


def _exemptions() -> str:
    return (
        f"Tried, in this order, on a value of the forward pass that differs by more than its sources explain:\n\n{_table('what', REFITS.items())}"
        f"\nNot judged:\n\n{_table('why', EXEMPTIONS.items())}"
    )


def _blame() -> str:
    tables = {
        "For an input of a call": INPUT,
        "For what a call returned": OUTPUT,
        "For a gradient of the backward pass": GRADIENT,
    }
    return "\n".join(
        f"{title}:\n\n{_table('who answers', ((row.code, row.text) for row in rows))}" for title, rows in tables.items()
    )


def _coverage() -> str:
    return _table("what", ((row.code, row.text) for row in ROWS))


def _table(title: str, rows: Iterable[tuple[str, str]]) -> str:
    return f"| code | {title} |\n|---|---|\n" + "".join(f"| `{code}` | {sentence} |\n" for code, sentence in rows)


_PARTS: dict[str, Callable[[], str]] = {"exemptions": _exemptions, "blame": _blame, "coverage": _coverage}

if __name__ == "__main__":
    PAGE.write_text(made(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
