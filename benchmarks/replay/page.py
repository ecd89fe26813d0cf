"""`python -m benchmarks.replay.page FAULTY.json CLEAN.json PORTS.json`: write docs/evidence/replay.md from answers of `benchmarks.replay`."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import click

PAGE = Path(__file__).parents[2] / "docs" / "evidence" / "replay.md"
_FILE = click.Path(path_type=Path, dir_okay=False, exists=True)


def _section(title: str, right: tuple[str, ...], path: Path) -> list[str]:
    answers = json.loads(path.read_text(encoding="utf-8"))
    grades = Counter(each["grade"] for each in answers)
    lines = [
        f"## {title}",
        "",
        f"{sum(grades[each] for each in right)} of {len(answers)} pairs: {' or '.join(right)}.",
        "",
        "| grade | pairs |",
        "|---|---|",
    ]
    lines += [f"| {grade} | {number} |" for grade, number in grades.most_common()]
    others = [each for each in answers if each["grade"] not in right]
    lines += ["", *(f"* `{each['pair']}`: {each['grade']}, expected {each['expected']}" for each in others), ""]
    return lines


@click.command()
@click.argument("faulty", type=_FILE)
@click.argument("clean", type=_FILE)
@click.argument("ports", type=_FILE)
def main(faulty: Path, clean: Path, ports: Path) -> None:
    """Write the page."""
    lines = [
        "# Replay: faults named, clean pairs", "",
        "Written by `python -m benchmarks.replay.page`, from the pairs of [localisation](localisation.md) in PyTorch on the CPU.",
        "Each command takes `-o ANSWERS.json`.", "",
        *_section("bf16 faults in the code of a module (`--kind faulty --dtype bf16`)", ("exact",), faulty),
        *_section("Clean pairs, fp32 and bf16 (`--kind clean --dtype bf16 --dtype fp32 --number 160 --seed 1`)", ("aligned",), clean),
        *_section("Ports to PaddlePaddle and MindSpore, with what PyTorch recorded (`python -m benchmarks.replay.ports`)",
                  ("exact", "aligned"), ports),
    ]  # fmt: skip
    PAGE.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
