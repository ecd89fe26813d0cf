"""The page of the documentation: `python -m benchmarks.public_ports.page ANSWERS.json … -o docs/evidence/public-ports.md`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from benchmarks.markdown import table
from benchmarks.public_ports.running import MODES, WAYS, Answer, Recall, names, pair_of, read_json
from benchmarks.public_ports.table import NAMED, misses

_INTRODUCTION = """\
# Public packages against each other

Pairs of public packages that implement the same model, in the versions below. The weights are random, B's are made of A's, and both
train two steps with AdamW. Every fault is planted in B as porters make it; `python -m benchmarks.public_ports.brute_force` shows without
probe that it changes numbers. Each pair is judged from values (`tensor`) and from statistics, without a mapping (`bare`) and with one
that a user would write (`mapping`).

    benchmarks/public_ports/venv                                   # once: a virtual environment of its own
    .venv-public/bin/python -m benchmarks.public_ports -o answers.json
    .venv-public/bin/python -m benchmarks.public_ports.page answers.json -o docs/evidence/public-ports.md

The last command writes this page; `answers.json` has each answer. The [index](README.md) has the commit at which they were given.
"""

_BLIND = """\
Pairs and faults were written by somebody who had seen neither the rules of the comparison nor its answers, with the truth written down
first. They were first scored (`--set blind`) by the rules of commit fdc1b2d8: 31 of 60 without a mapping, 45 with one. The figures are those of the
engine that replaced these rules.
The causes of the two false alarms have been mended since, so that these pairs are no longer unseen.
"""

_ANSWERS = """\
## Answers

Named faults: module, phase and step are right. *Right* is the pair without a fault, in the four ways; *true pairs* are those of modules
that were found without a mapping.
"""

_MISSES = """\
## What is not named rightly

*wrong name* is another module, *other phase* and *parent* the right module in another phase or step, or the module around it. Faults for
which the answer is that of the pair without a fault are counted, not listed.
"""


_JUDGED = [(mode, way) for mode in MODES for way in WAYS]
_HEADER = ("pair", "A", "B", "faults", *(f"{mode} {way}" for mode, way in _JUDGED), "right", "true pairs")


def page(found: list[Answer], recalls: list[Recall]) -> str:
    """Return the page."""
    chosen = [name for name in names() if any(each.pair == name for each in found)]
    is_blind = all(pair_of(name).set == "blind" for name in chosen)
    title, rest = _INTRODUCTION.split("\n", 1)
    recalls = [each for each in recalls if each.mode == found[0].mode]
    lines = [
        [name, *(", ".join(side.packages) for side in (pair.a, pair.b)),
         *_answers([each for each in found if each.pair == name], [each for each in recalls if each.pair == name])]
        for name in chosen for pair in [pair_of(name)]
    ]  # fmt: skip
    parts = [
        f"{title}, written blind\n{rest}\n{_BLIND}" if is_blind else _INTRODUCTION,
        _ANSWERS,
        table(_HEADER, [*lines, ["all", "", "", *_answers(found, recalls)]]),
        _MISSES,
        table(("pair", "fault", "judged", "grade", "expected", "said"), _missed(found)),
    ]
    return "\n".join(parts)


def _answers(found: list[Answer], recalls: list[Recall]) -> Iterator[str]:
    """Return how many faults are named in each way, how many right pairs are aligned, and how many true pairs are found."""
    yield str(len({(each.pair, each.fault) for each in found if each.fault}))
    for judged in _JUDGED:
        yield str(sum(each.grade in NAMED for each in found if each.fault and (each.mode, each.way) == judged))
    right = [each.grade == "aligned" for each in found if not each.fault]
    yield f"{sum(right)} of {len(right)}"
    yield f"{sum(each.found for each in recalls)} of {sum(each.true for each in recalls)}"


def _missed(found: list[Answer]) -> list[list[str]]:
    """Return a line for each wrong answer about a fault, with the ways in which it was given, and for each false alarm."""
    alarms = {(x.pair, x.mode, x.way): x.said for x in misses(found) if not x.fault}
    grouped: dict[tuple[str, ...], list[Answer]] = {}
    for x in sorted(misses(found), key=lambda x: x.pair):
        same = x.fault and alarms.get((x.pair, x.mode, x.way)) == x.said
        fault = "as the right pair" if same else x.fault or "right"
        key = (x.pair, fault, *(("", "", "") if same else (x.grade, x.expected, x.said)))
        grouped.setdefault(key, []).append(x)
    lines = []
    for (pair, fault, *said), some in grouped.items():
        faults = len({x.fault for x in some})
        lines.append([pair, f"{faults} faults, {fault}" if not said[0] else fault, _ways(some), *said])
    return lines


def _ways(some: list[Answer]) -> str:
    """Say in which ways answers were given: both words, or the one that they share."""
    modes, ways = (list(dict.fromkeys(getattr(x, name) for x in some)) for name in ("mode", "way"))
    if len({(x.mode, x.way) for x in some}) < len(modes) * len(ways):
        return ", ".join(dict.fromkeys(f"{x.mode} {x.way}" for x in some))
    words = [one[0] for one in (modes, ways) if len(one) == 1]
    return " ".join(words) or "all"


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
