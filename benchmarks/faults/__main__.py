"""`python -m benchmarks.faults`: does probe name every planted fault, and is it silent on clean pairs?"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path

import click
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.faults.suite import MODES, ROWS, Answer, failures, judge, record
from benchmarks.faults.truth import Truth

WIDTH = 160
"""Columns of the table where it does not go to a terminal."""
COLOURS = {"exact": "green", "aligned": "green", "undecided": "yellow"}
HEADER = ("row", "planted", "right answer", *MODES)


@click.command()
@click.option("--only", multiple=True, type=click.Choice(list(ROWS)), help="Run this row; may be repeated.")
@click.option("--mode", type=click.Choice([*MODES, "both"]), default="both", show_default=True)
@click.option("--markdown", type=click.Path(path_type=Path, dir_okay=False), help="Write the table here too.")
@click.option("--keep", type=click.Path(path_type=Path, file_okay=False), help="Leave the recordings here.")
def main(only: tuple[str, ...], mode: str, markdown: Path | None, keep: Path | None) -> None:
    """Record every row on both sides, compare, and print the table; exit status 1 if a row misses.

    Example: python -m benchmarks.faults --only eps_small --mode statistics
    """
    rows, modes, console = list(only or ROWS), MODES if mode == "both" else (mode,), Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    with nullcontext(keep) if keep else tempfile.TemporaryDirectory() as folder:
        with console.status("recording"):
            record(Path(folder), rows, modes)
        pairs = [(row, mode) for row in rows for mode in modes]
        waiting = track(pairs, "comparing", console=Console(stderr=True), transient=True)
        answers = [judge(Path(folder), *pair) for pair in waiting]
    lines = [_cells(row, [answer for answer in answers if answer.row == row], modes) for row in rows]
    table = Table()
    for name in HEADER:
        table.add_column(name, overflow="fold")
    for cells in lines:
        table.add_row(*cells[:3], *(f"[{COLOURS.get(_grade(cell), 'red')}]{cell}" for cell in cells[3:]))
    console.print(table)
    console.print(summary(answers))
    if markdown:
        markdown.write_text(_markdown(lines, answers), encoding="utf-8")
    raise SystemExit(1 if failures(answers) else 0)


def summary(answers: list[Answer]) -> str:
    """One line per mode: how many faults were named and how many clean pairs were aligned."""
    lines = []
    for mode in dict.fromkeys(answer.mode for answer in answers):
        right: dict[bool, list[bool]] = {True: [], False: []}
        for answer in answers:
            if answer.mode == mode:
                right[isinstance(ROWS[answer.row], Truth)].append(answer.right)
        lines.append(
            f"{mode}: {sum(right[True])} of {len(right[True])} faults exact, "
            f"{sum(right[False])} of {len(right[False])} clean pairs aligned"
        )
    return "\n".join(lines)


def _cells(row: str, answers: list[Answer], modes: tuple[str, ...]) -> list[str]:
    truth = ROWS[row]
    right = "aligned"
    if isinstance(truth, Truth):
        right = f"step {truth.step} · {truth.phase} · {truth.kind} · {truth.path or 'as a whole'}"
    said = {x.mode: x.grade if x.right else f"{x.grade}: {x.said}" for x in answers}
    return [row, truth.description, right, *(said.get(mode, "–") for mode in MODES)]


def _grade(cell: str) -> str:
    return "exact" if cell == "–" else cell.partition(":")[0]


def _markdown(lines: list[list[str]], answers: list[Answer]) -> str:
    """The figures as a page; written by `--markdown`, not by hand."""
    right = [cells for cells in lines if all(cell in ("exact", "aligned") for cell in cells[3:])]
    text = [
        "# The fault suite",
        "",
        "Written by `python -m benchmarks.faults --markdown docs/evidence/faults.md`, which prints each answer. One fault at a time on side B of a",
        "6-layer `Qwen2ForCausalLM` (A: sdpa, B: eager attention); the right answers of `benchmarks/faults/truth.py` were written before the",
        "comparator. It shows nothing about other models: [localisation.md](localisation.md) does.",
        "",
        *(f"* {line}" for line in summary(answers).splitlines()),
        "",
        "Named exactly:",
        "",
        *_listed(cells for cells in right if cells[2] != "aligned"),
        "",
        "Clean, and aligned:",
        "",
        *_listed(cells for cells in right if cells[2] == "aligned"),
        "",
    ]
    wrong = [cells for cells in lines if cells not in right]
    if wrong:
        text += ["| " + " | ".join(HEADER) + " |", "|" + "---|" * len(HEADER)]
        text += ["| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |" for cells in wrong] + [""]
    return "\n".join(text)


def _listed(lines: Iterable[list[str]]) -> list[str]:
    return [f"* `{cells[0]}`: {cells[1]}" for cells in lines] or ["None."]


if __name__ == "__main__":
    main()
