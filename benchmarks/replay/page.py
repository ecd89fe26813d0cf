"""`python -m benchmarks.replay.page`: write sections of docs/evidence/replay.md from answers; the others stay as they are."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import click

from benchmarks.cost.model import SIZES

PAGE = Path(__file__).parents[2] / "docs" / "evidence" / "replay.md"
_FILE = click.Path(path_type=Path, dir_okay=False, exists=True)
_HEAD = """# Replay: faults named, clean pairs, cost

Written by `python -m benchmarks.replay.page`, from the pairs of [localisation](localisation.md) in PyTorch on the CPU.
Each command takes `-o ANSWERS.json`.
"""
_RIGHT = {
    "bf16 faults in the code of a module (`--kind faulty --dtype bf16`)": ("exact",),
    "Clean pairs, fp32 and bf16 (`--kind clean --dtype bf16 --dtype fp32 --number 160 --seed 1`)": ("aligned",),
    "Ports to PaddlePaddle and MindSpore, with what PyTorch recorded (`python -m benchmarks.replay.ports`)": ("exact", "aligned"),
    "All faults that localisation lists as missed by a comparison of two runs (`--kind faulty --names FILE`)": ("exact",),
}  # fmt: skip
"""the sections of answers, and the grades of right ones"""
_COST = "Cost (`python -m benchmarks.replay.cost`)"
_BOUND = 3
"""steps of the training that a replay may take"""


def _of_answers(title: str, path: Path) -> str:
    answers, right = json.loads(path.read_text(encoding="utf-8")), _RIGHT[title]
    grades = Counter(each["grade"] for each in answers)
    lines = [
        f"{sum(grades[each] for each in right)} of {len(answers)} pairs: {' or '.join(right)}.",
        "",
        "| grade | pairs |",
        "|---|---|",
    ]
    lines += [f"| {grade} | {number} |" for grade, number in grades.most_common()]
    others = [each for each in answers if each["grade"] not in right]
    return "\n".join(
        [*lines, "", *(f"* `{each['pair']}`: {each['grade']}, expected {each['expected']}" for each in others)]
    )


def _of_cost(path: Path) -> str:
    found = json.loads(path.read_text(encoding="utf-8"))
    first = found[0]
    lines = [
        "The replay of a step against the step itself (forward, backward, AdamW, without probe) of a Qwen2 of 12 layers in fp32, in turn in one",
        "process, pair by pair: medians, and the smallest and the largest ratio. A step is timed after one that is not. "
        f"torch {first['torch']}, {first['cores']}",
        f"cores that others used too: with more than one thread (`--threads`), threads wait for those of others, and ratios vary tenfold. The aim is ≤ {_BOUND}.",
        "",
        "| hidden | sequence | batch | threads | step, s | replay, s | replay ÷ step | pairs | reached |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for each in found:
        size, ratio = SIZES[each["size"]], each["ratio"]
        times = f"{each['step']['median']:.3f} | {each['replay']['median']:.3f}"
        spread = f"{ratio['median']:.1f} ({ratio['min']:.1f}–{ratio['max']:.1f})"
        reached = "yes" if ratio["median"] <= _BOUND else "**no**"
        lines.append(
            f"| {size.hidden} | {size.sequence} | {size.batch} | {each['threads']} | {times} | {spread} | {each['pairs']} | {reached} |"
        )
    return "\n".join(lines)


def _sections(text: str) -> dict[str, str]:
    """Return what stands under each heading of a page."""
    parts = [part.partition("\n") for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:]]
    return {title: body.strip("\n") for title, _, body in parts}


@click.command()
@click.option("--faulty", type=_FILE)
@click.option("--clean", type=_FILE)
@click.option("--ports", type=_FILE)
@click.option("--missed", type=_FILE)
@click.option("--cost", type=_FILE)
def main(faulty: Path | None, clean: Path | None, ports: Path | None, missed: Path | None, cost: Path | None) -> None:
    """Write the sections whose answers are given."""
    bodies = _sections(PAGE.read_text(encoding="utf-8"))
    for title, path in zip(_RIGHT, (faulty, clean, ports, missed), strict=True):
        if path is not None:
            bodies[title] = _of_answers(title, path)
    if cost is not None:
        bodies[_COST] = _of_cost(cost)
    sections = [f"\n## {title}\n\n{bodies[title]}\n" for title in (*_RIGHT, _COST) if title in bodies]
    PAGE.write_text(_HEAD + "".join(sections), encoding="utf-8")


if __name__ == "__main__":
    main()
