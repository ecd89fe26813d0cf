"""`python -m benchmarks.localisation`: is the fault named, and is probe silent where there is none?"""

from __future__ import annotations

import json
import sys
import tempfile
from contextlib import nullcontext
from fnmatch import fnmatchcase
from pathlib import Path

import click
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.localisation.pairs.registry import PARTS
from benchmarks.localisation.tools.noise_ladder import RUNGS
from benchmarks.localisation.tools.random_pairs import random_pair
from benchmarks.localisation.tools.suite import MODES, Answer, answers, chosen
from benchmarks.localisation.tools.table import as_json, header, misses, rows, summary

WIDTH = 200
"""Columns of the table where it does not go to a terminal."""


@click.command()
@click.option(
    "--share", type=click.FloatRange(0, 1), default=1.0, show_default=True, help="Of the pairs; always the same."
)
@click.option("--part", type=click.Choice([*PARTS]), default="all", show_default=True)
@click.option("--random", "drawn", type=click.IntRange(0), default=0, help="This many clean pairs, drawn, instead.")
@click.option("--first", type=click.IntRange(0), default=0, show_default=True, help="The number of the first of those.")
@click.option("--only", multiple=True, help="Pairs whose names match this glob; may be repeated.")
@click.option("--mode", "modes", multiple=True, type=click.Choice(MODES), default=MODES, show_default=True)
@click.option("--rung", type=click.Choice(RUNGS), default="built-in", show_default=True, help="Of the noise ladder.")
@click.option("--jobs", type=click.IntRange(1), default=2, show_default=True, help="Processes.")
@click.option("--cache", type=click.Path(path_type=Path, file_okay=False), help="Keep the recordings here.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Write all answers here, as JSON."
)
def main(
    share: float,
    part: str,
    drawn: int,
    first: int,
    only: tuple[str, ...],
    modes: tuple[str, ...],
    rung: str,
    jobs: int,
    cache: Path | None,
    output: Path | None,
) -> None:
    """Record every pair, compare, and print how many answers are right; exit status 1 if one is not.

    Example: python -m benchmarks.localisation --share 0.1 -o localisation.json
    """
    pairs = [random_pair(number) for number in range(first, first + drawn)] or chosen(share, part)
    pairs = [pair for pair in pairs if not only or any(fnmatchcase(pair.name, glob) for glob in only)]
    if not pairs:
        raise click.ClickException(f"no pair is left: --share {share} --part {part} --only {' '.join(only) or '*'}")
    if cache:
        cache.mkdir(parents=True, exist_ok=True)
    found: list[Answer] = []
    with nullcontext(cache) if cache else tempfile.TemporaryDirectory() as folder:
        waiting = answers(pairs, modes, Path(folder), jobs, rung)
        for some in track(waiting, "pairs", len(pairs), console=Console(stderr=True), transient=True):
            found += some
    _print(found, modes)
    if output:
        output.write_text(json.dumps(as_json(found), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    raise SystemExit(1 if misses(found) else 0)


def _print(found: list[Answer], modes: tuple[str, ...]) -> None:
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    for mode in modes:
        table = Table(*header(), title=mode)
        for line in rows(found, mode):
            table.add_row(*line)
        console.print(table)
    wrong = misses(found)
    if wrong:
        table = Table("pair", "mode", "grade", "right answer", "answer", title="misses")
        for line in wrong:
            table.add_row(*line)
        console.print(table)
    for mode in modes:
        console.print(summary(found, mode))


if __name__ == "__main__":
    main()
