"""`python -m benchmarks.public_ports`: pairs of public packages, right and with planted faults."""

from __future__ import annotations

import json
import os
import sys
import warnings
from functools import partial
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from benchmarks.public_ports.running import MODES, ROOT, SETS, WAYS, Answer, Recall, answers, as_json, names, recall
from benchmarks.public_ports.table import HEADER, misses, rows

WIDTH = 160
"""Columns of the table where it does not go to a terminal."""


@click.command()
@click.option("--pair", "chosen", multiple=True, help="This pair; may be repeated. All of the set when left out.")
@click.option("--set", "which", type=click.Choice(SETS), default=SETS[0], show_default=True, help="The pairs that probe was tuned on, or those that it was not.")  # fmt: skip
@click.option("--fault", "faults", multiple=True, default=["*"], help="Faults whose names match; may be repeated.")
@click.option("--mode", "modes", multiple=True, type=click.Choice(MODES), default=MODES, show_default=True)
@click.option("--bare", "way", flag_value="bare", help="Without a mapping only.")
@click.option("--mapping", "way", flag_value="mapping", help="With each pair's mapping only.")
@click.option("--cache", type=click.Path(path_type=Path, file_okay=False), default=ROOT / "build" / "public-ports", help="Keep the recordings here.")  # fmt: skip
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Write all answers here, as JSON."
)
def main(
    chosen: tuple[str, ...],
    which: str,
    faults: tuple[str, ...],
    modes: tuple[str, ...],
    way: str | None,
    cache: Path,
    output: Path | None,
) -> None:
    """Record every pair, compare, and print how many answers are right; exit status 1 if one is not.

    Run it in the environment that benchmarks/public_ports/venv makes. Example: .venv-public/bin/python -m
    benchmarks.public_ports --pair litgpt_pythia --mode tensor --bare
    """
    ways = (way,) if way else WAYS
    work = partial(_work, faults=faults, modes=modes, ways=ways, folder=cache)
    found: list[Answer] = []
    recalls: list[Recall] = []
    for some, other in map(work, chosen or names(which)):
        found += some
        recalls += other
    _print(found, recalls)
    if output:
        output.write_text(json.dumps(as_json(found, recalls), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    raise SystemExit(1 if misses(found) else 0)


def _work(
    name: str, faults: tuple[str, ...], modes: tuple[str, ...], ways: tuple[str, ...], folder: Path
) -> tuple[list[Answer], list[Recall]]:
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    warnings.simplefilter("ignore")
    found = list(answers(name, faults, modes, ways, folder))
    return found, [recall(name, mode, folder) for mode in modes] if "bare" in ways else []


def _print(found: list[Answer], recalls: list[Recall]) -> None:
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    table = Table(*HEADER)
    for line in rows(found, recalls):
        table.add_row(*line)
    console.print(table)
    for each in misses(found):
        place = f"{each.pair} · {each.fault or 'right'} · {each.mode} · {each.way}"
        text = f"{place}: {each.grade}: {each.expected} | {each.said} ({each.confidence:.2f})"
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    for one in recalls:
        for what, each in (*(("missed", x) for x in one.missed), *(("wrong", x) for x in one.wrong)):
            console.print(f"{one.pair} · {one.mode}: {what}: {each}", markup=False, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()
