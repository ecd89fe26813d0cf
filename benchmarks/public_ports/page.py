"""The page of the documentation: `python -m benchmarks.public_ports.page ANSWERS.json … -o docs/evidence/public-ports.md`."""

from __future__ import annotations

from pathlib import Path

import click

from benchmarks.public_ports.running import Answer, Recall, names, pair_of, read_json
from benchmarks.public_ports.table import HEADER, misses, rows

_INTRODUCTION = """\
# Public packages against each other

Pairs of public packages that implement the same model, in the versions below. The weights are random, B's are made of A's, and both
train two steps with AdamW. Every fault is planted in B as porters make it, and changes numbers: `python -m
benchmarks.public_ports.brute_force` shows that without probe. *Bare* is without a mapping; `mapping` is one that a user would write.
*Named* is the module, phase and step; `wrong name` is another module, `other` the right module in another phase or step, or the
module around it.

    benchmarks/public_ports/venv                                   # once: a virtual environment of its own
    .venv-public/bin/python -m benchmarks.public_ports -o answers.json
    .venv-public/bin/python -m benchmarks.public_ports.page answers.json -o docs/evidence/public-ports.md

This page is written by that last command.
"""

_BLIND = """\
These pairs and their faults were written by somebody who had seen neither the rules of the comparison nor its answers, with the truth written down
first. They were scored once, on the rules as they stood (`--set blind`), and the figures are what unseen pairs gave then.
The causes of its two false alarms have been mended since, so that these pairs are no unseen ones any more.
"""


def page(found: list[Answer], recalls: list[Recall]) -> str:
    """Return the page."""
    chosen = [name for name in names() if any(each.pair == name for each in found)]
    packages = [[name, *(", ".join(side.packages) for side in (pair.a, pair.b)), str(len(pair.faults))]
                for name in chosen for pair in [pair_of(name)]]  # fmt: skip
    wrong = [[x.pair, x.fault or "right", x.mode, x.way, x.grade, x.expected, x.said] for x in misses(found)]
    is_blind = all(pair_of(name).set == "blind" for name in chosen)
    parts = [
        _INTRODUCTION.replace("against each other", "against each other, written blind", 1)
        if is_blind
        else _INTRODUCTION,
        *([_BLIND] if is_blind else []),
        _table(("pair", "A", "B", "faults"), packages),
        "## Answers\n",
        _table(HEADER, rows(found, recalls)),
        "## What is not named rightly\n",
        _table(("pair", "fault", "mode", "way", "grade", "expected", "said"), wrong) if wrong else "Nothing.\n",
    ]
    return "\n".join(parts)


def _table(header: tuple[str, ...], lines: list[list[str]]) -> str:
    shown = [header, ["---"] * len(header), *lines]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in shown) + "\n"


@click.command()
@click.argument("answers", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path, dir_okay=False))
def main(answers: tuple[Path, ...], output: Path) -> None:
    """Write the page from what the benchmark wrote with -o."""
    read = [read_json(path) for path in answers]
    text = page([x for found, _ in read for x in found], [x for _, recalls in read for x in recalls])
    output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
