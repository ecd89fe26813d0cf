"""`python -m benchmarks.situations --framework torch`: is a training bitwise the same with probe, whatever the program does?

Each situation runs plainly and, from the same seed, recorded with both tasks. Compared are losses, gradients with their strides, weights,
buffers, the optimizer's state, random states and modes of the process, and in PyTorch what the program can see of tensors and of the
model: whether storages can be resized, weak references, what the model's pickle is made of while it is recorded and afterwards.
Not shown: several processes ([distributed.md](distributed.md)), accelerators.
"""

from __future__ import annotations

import re
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import click

from benchmarks.situations import zoos

FRAMEWORKS = ("torch", "paddle", "mindspore")
TASKS = ("statistics", "tensor")
Row = tuple[str, str, str]
"""a situation, and what came out with each task"""


@click.command()
@click.option("--framework", type=click.Choice(FRAMEWORKS), default="torch", show_default=True)
@click.option("--only", default="", help="Situations whose names have this in them.")
@click.option(
    "--markdown", type=click.Path(path_type=Path, dir_okay=False), help="Write the framework's part of this page."
)
def main(framework: str, only: str, markdown: Path | None) -> None:
    """Run every situation of a framework; exit status 1 if one is not bitwise the same."""
    warnings.simplefilter("ignore")
    rows = []
    for name, differences in situations(framework).items():
        if only in name:
            row = (name, *(outcome(differences, task) for task in TASKS))
            click.echo(" · ".join(row))
            rows.append(row)
    if markdown:
        write(markdown, framework, rows)
    same = sum(row[1:] == ("same", "same") for row in rows)
    click.echo(f"{same} of {len(rows)} situations of {framework} are bitwise the same with both tasks")
    raise SystemExit(0 if same == len(rows) else 1)


def situations(framework: str) -> dict[str, zoos.Differences]:
    """Return what finds the differences that probe makes in each situation."""
    if framework != "torch":
        return zoos.cases(framework)
    from benchmarks.situations import torch_situations

    return {**torch_situations.all_of_them(), **zoos.cases(framework)}


def outcome(differences: Callable[[Path, str], list[str]], task: str) -> str:
    """Return ``same``, or in words what is not."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            places = differences(Path(folder) / "a.h5", task)
        except Exception as error:  # noqa: BLE001  the others are run all the same
            places = [f"{type(error).__name__}: {error}"]
    return f"{len(places)} differ: {'; '.join(places[:3])}"[:300] if places else "same"


def write(page: Path, framework: str, rows: list[Row]) -> None:
    """Put a framework's table into the page, in the place of the one that it has."""
    page.parent.mkdir(parents=True, exist_ok=True)
    parts = {name: "" for name in FRAMEWORKS}
    if page.exists():
        parts |= {m[1]: m[2] for m in re.finditer(r"^## (\w+)\n(.*?)(?=^## |\Z)", page.read_text("utf-8"), re.S | re.M)}
    parts[framework] = part(rows)
    head = (
        "# Situations in which a training is bitwise the same\n\nWritten by `python -m benchmarks.situations --framework F --markdown "
        "docs/evidence/situations.md` for each framework, which prints each situation.\n"
        + (__doc__ or "").partition("\n")[2]
    )
    text = head + "".join(f"\n## {name}\n{parts[name].rstrip()}\n" for name in FRAMEWORKS if parts[name])
    page.write_text(text, encoding="utf-8")


def part(rows: list[Row]) -> str:
    """Return a framework's figures: how many situations of each kind are the same, and each that is not."""
    shared = Counter(row[0].partition(": ")[0] for row in rows)
    kinds: dict[str, list[Row]] = {}
    for row in rows:
        kind = row[0].partition(": ")[0]
        kinds.setdefault(kind if shared[kind] > 1 else "program", []).append(row)
    same = {kind: sum(row[1:] == ("same", "same") for row in some) for kind, some in kinds.items()}
    lines = [
        "",
        f"{sum(same.values())} of {len(rows)} are bitwise the same.",
        "",
        "| kind | situations | the same |",
        "|---|---|---|",
    ]
    lines += [f"| {kind} | {len(some)} | {same[kind]} |" for kind, some in kinds.items()]
    lines.append("")
    lines += [
        f"* {name}: {one} (statistics), {two} (tensor)" for name, one, two in rows if (one, two) != ("same", "same")
    ]
    return "\n".join([*lines, "", ""])


if __name__ == "__main__":
    main()
