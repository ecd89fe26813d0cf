"""The page of the documentation, from the answers of several runs: `python -m benchmarks.localisation.page --help`."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import click

from benchmarks.localisation.peers import CANNOT, PeerAnswer, peer_rows
from benchmarks.localisation.suite import GRADES, PAIRS, Answer
from benchmarks.localisation.table import header, misses, rows, summary

INTRODUCTION = Path(__file__).with_name("introduction.md")
WHY = {
    "qwen2/bf16/eps/post_attention_layernorm/0.1": "5 times what it inherits; the built-in model allows 8",
    "qwen2/autocast/smoothing/0.1": "the loss differs by less than its logits, its gradient by 14 times their error",
    "bert/bf16/smoothing/0.2": "the loss differs by less than its logits",
    "bert/bf16/decay/weight/10": "bf16 rounds the whole decay away in the first step; the settings are named",
    "unet/fp32/eps/norm2/1.3e-05": "just under 16 roundings, and all numbers on the way agree to the bit",
}
"""why the built-in model misses what it misses"""


def read_answers(path: Path) -> list[Answer]:
    """Return the answers that `python -m benchmarks.localisation -o` wrote."""
    found = json.loads(path.read_text(encoding="utf-8"))["answers"]
    return [Answer(x["pair"], x["mode"], x["grade"], x["expected"], x["said"]) for x in found]


def page(answers: list[Answer], rungs: dict[str, list[Answer]], drawn: list[Answer], peers: list[PeerAnswer]) -> str:
    """Return the page."""
    modes = [mode for mode in ("tensor", "statistics") if any(answer.mode == mode for answer in answers)]
    lines = [INTRODUCTION.read_text(encoding="utf-8").rstrip(), ""]
    for mode in modes:
        lines += [f"## From {mode} dumps", "", *_table(header(), rows(answers, mode)), ""]
    lines += [f"* {summary(answers, mode)}" for mode in modes] + [""]
    lines += ["## Misses", "", *_table(["pair", "mode", "grade", "right answer", "answer", "why"],
              [[*line, WHY.get(line[0], "")] for line in misses(answers)]), ""]  # fmt: skip
    if rungs:
        lines += ["## The higher rungs", "", *_about_rungs(rungs)]
    if drawn:
        alarms = [answer for answer in drawn if answer.grade != "aligned"]
        lines += ["## Drawn clean pairs", "", f"Of {len(drawn)} clean pairs that no rule was tuned on (`--random`), "
                  f"{len(drawn) - len(alarms)} were aligned.", ""]  # fmt: skip
        lines += [f"* `{x.pair}`: {x.grade}, {x.said}" for x in alarms] + ([""] if alarms else [])
    if peers:
        lines += ["## Other tools on the same pairs", "", *_about_peers(peers, answers)]
    return "\n".join(lines).rstrip() + "\n"


def _about_rungs(rungs: dict[str, list[Answer]]) -> list[str]:
    lines = []
    for name, answers in rungs.items():
        for mode in dict.fromkeys(answer.mode for answer in answers):
            lines.append(f"* `--rung {name}`: {summary(answers, mode)}")
        lines += [f"  * `{x[0]}`, {x[1]}: {x[2]}, {x[4]}" for x in misses(answers)]
    return [*lines, ""]


def _about_peers(peers: list[PeerAnswer], answers: list[Answer]) -> list[str]:
    lines = []
    for names in dict.fromkeys(frozenset(x.pair for x in peers if x.tool == tool) for tool in _tools(peers)):
        some = [x for x in peers if x.pair in names]
        same = [
            PeerAnswer(f"probe, {x.mode}", x.pair, PAIRS[x.pair].truth is not None, x.grade, x.expected, x.said)
            for x in answers
            if x.pair in names
        ]
        lines += [*_table(["tool", "pairs", "number", *GRADES, CANNOT], peer_rows(some, same)), ""]
    reasons = Counter((x.tool, x.said) for x in peers if x.grade == CANNOT)
    lines += [f"* {tool} cannot run {number} pairs: {why}" for (tool, why), number in reasons.items()]
    return [*lines, ""]


def _tools(peers: list[PeerAnswer]) -> dict[str, None]:
    return dict.fromkeys(answer.tool for answer in peers)


def _table(names: list[str], lines: list[list[str]]) -> list[str]:
    table = [names, ["---"] * len(names), *lines]
    return ["| " + " | ".join(cell.strip().replace("|", "\\|") for cell in cells) + " |" for cells in table]


_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command()
@click.argument("full", type=_FILE, nargs=-1, required=True)
@click.option("--noise", type=_FILE, multiple=True, help="Answers of --rung noise.")
@click.option("--reference", type=_FILE, multiple=True, help="Answers of --rung reference.")
@click.option("--random", "drawn", type=_FILE, multiple=True, help="Answers about drawn pairs; may be repeated.")
@click.option("--peers", type=_FILE, multiple=True, help="What mindstudio or padiff wrote; may be repeated.")
@click.option("-o", "--output", type=_FILE, required=True)
def main(
    full: tuple[Path, ...],
    noise: tuple[Path, ...],
    reference: tuple[Path, ...],
    drawn: tuple[Path, ...],
    peers: tuple[Path, ...],
    output: Path,
) -> None:
    """Write the page from the answers of complete runs."""
    rungs = {name: _all(files) for name, files in (("noise", noise), ("reference", reference)) if files}
    said = [PeerAnswer(**x) for path in peers for x in json.loads(path.read_text(encoding="utf-8"))]
    output.write_text(page(_all(full), rungs, _all(drawn), said), encoding="utf-8")


def _all(files: tuple[Path, ...]) -> list[Answer]:
    return [answer for path in files for answer in read_answers(path)]


if __name__ == "__main__":
    main()
