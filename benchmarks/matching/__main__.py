"""`python -m benchmarks.matching`: how much does matching find with no mapping?"""

from __future__ import annotations

import click
from rich.console import Console
from rich.table import Table

from tests.published.pairs import PAIRS
from tests.published.score import Relation, Score, score

WIDTH = 140
"""Columns of the table where it does not go to a terminal."""
PRECISION, RECALL, RECALL_SCRAMBLED = 0.98, 0.90, 0.85
"""What the sums must reach."""


@click.command()
@click.option("--only", multiple=True, type=click.Choice(list(PAIRS)), help="This pair; may be repeated.")
@click.option("--verbose", is_flag=True, help="List what is wrong and what was missed.")
def main(only: tuple[str, ...], verbose: bool) -> None:
    """Match every pair, and every pair with B's names scrambled; exit status 1 where the sums are below the limits.

    Example: python -m benchmarks.matching --only llama-meta --verbose
    """
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    table = Table()
    for name in ("pair", "modules", "true", "precision", "recall", "scrambled: precision", "recall", "seconds"):
        table.add_column(name, justify="left" if name == "pair" else "right")
    scores: list[tuple[Score, Score]] = []
    for name in only or PAIRS:
        pair = PAIRS[name]
        plain, scrambled = score(pair), score(pair, is_scrambled=True)
        scores.append((plain, scrambled))
        table.add_row(
            pair.title, "{} / {}".format(*plain.modules), str(plain.true), f"{plain.precision:.3f}", f"{plain.recall:.3f}",
            f"{scrambled.precision:.3f}", f"{scrambled.recall:.3f}", f"{plain.seconds:.2f}",
        )  # fmt: skip
        if verbose:
            _list(console, name, plain)
            _list(console, f"{name}, scrambled", scrambled)
    sums = [
        (
            sum(s.right for s in side) / max(1, sum(s.found for s in side)),
            sum(s.right for s in side) / sum(s.true for s in side),
        )
        for side in zip(*scores, strict=True)
    ]
    table.add_section()
    table.add_row("all", "", "", f"{sums[0][0]:.3f}", f"{sums[0][1]:.3f}", f"{sums[1][0]:.3f}", f"{sums[1][1]:.3f}", "")
    console.print(table)
    reached = sums[0][0] >= PRECISION and sums[0][1] >= RECALL and sums[1][1] >= RECALL_SCRAMBLED
    raise SystemExit(0 if reached else 1)


def _list(console: Console, name: str, found: Score) -> None:
    for what, relations in (("wrong", found.wrong), ("missed", found.missed)):
        for relation in relations:
            console.print(f"{name}: {what}: {_text(relation)}", markup=False, highlight=False, soft_wrap=True)


def _text(relation: Relation) -> str:
    a, b, is_part = relation
    return f"{a or 'the root'} = {b or 'the root'}{' (one of several)' if is_part else ''}"


if __name__ == "__main__":
    main()
