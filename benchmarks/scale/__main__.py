"""`python -m benchmarks.scale`: what it costs to compare the files of 64 ranks with 2,000 module calls each, here and on a Dask cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click
import torch

from tests.torch.many_ranks import NODES_OF_A_LAYER, Layout, Side, make

ROOT = Path(__file__).parents[2]
MIB = 1 << 20
NOISE = 3e-8
LONG = 4096
"""tokens of a sample where values are recorded"""
RECORDS_OF_A_CALL = 6.7
"""of such a model, with one micro-batch a step"""
PAPER = Layout(8, 16, 8), 96, 5
"""a layout, its layers and steps: what it would cost, on paper"""
HERE, KILLED = "this process", "a Dask cluster of 2 workers, one of which is killed"
PLACES = {HERE: "", "2 processes": "processes:2", "a Dask cluster of 2 workers": "dask", KILLED: "dask-killed"}

HEAD = """# Many files

Written by `python -m benchmarks.scale --markdown docs/evidence/scale.md`. One process makes the recordings, rank by rank: a transformer whose
layers return drawn values, cut as the layout says (`benchmarks/scale/making.py`), with forward, backward, gradients and an SGD step; hidden
size 16, so that the number of records is what costs. Each comparison runs in a process of its own; time is without importing probe, memory is the
largest resident set of the process that compares. Where a machine does other work beside, CPU seconds tell more than seconds.

"""


@dataclass(frozen=True)
class Cost:
    """What one comparison cost, and what it said."""

    a: str
    b: str
    where: str
    records: int
    mib: float
    wall: float
    cpu: float
    """seconds of the process that compares, and of those that it started"""
    peak: float
    """MiB"""
    verdict: str
    path: str
    answer: str
    """a hash of all of it"""


def measured(folder: Path, a: str, b: str, where: str) -> Cost:
    """Compare two recordings in a process of its own."""
    paths = [folder / f"{name}.h5" for name in (a, b)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.scale.once", *map(str, paths), PLACES[where]], cwd=ROOT,
        capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{a}, {b}, {where}: {done.stderr[-2000:]}")
    size = sum(path.stat().st_size for name in (a, b) for path in _files(folder, name)) / MIB
    cost = Cost(a, b, where, mib=size, **json.loads(done.stdout.splitlines()[-1]))
    click.echo(
        f"{a}, {b}, {where}: {cost.verdict} {cost.path}, {cost.wall:.0f} s, CPU {cost.cpu:.0f} s, {cost.peak:.0f} MiB"
    )
    return cost


def _files(folder: Path, name: str) -> list[Path]:
    return sorted(folder.glob(f"{name}.rank*.h5")) or [folder / f"{name}.h5"]


def made(folder: Path, name: str, side: Side, like: str = "", ranks: range | None = None) -> None:
    """Record a side unless it is there; ranks that are not given are those of another side."""
    if ranks is not None:
        for path in _files(folder, like):
            link = folder / path.name.replace(like, name, 1)
            if not link.exists():
                os.link(path, link)
        if (folder / f"{name}.done").exists():
            return
        for path in _files(folder, name)[ranks.start : ranks.stop]:
            path.unlink()
    elif (folder / f"{name}.h5").exists() or any(folder.glob(f"{name}.rank*")):
        return
    make(side, folder / f"{name}.h5", ranks)
    (folder / f"{name}.done").touch()


@click.command()
@click.option("--tp", default=4, show_default=True)
@click.option("--dp", default=4, show_default=True)
@click.option("--pp", default=4, show_default=True)
@click.option("--nodes", default=2000, show_default=True, help="Module calls of each rank.")
@click.option("--markdown", type=click.Path(path_type=Path, dir_okay=False), help="Write the page here.")
@click.option("--keep", type=click.Path(path_type=Path, file_okay=False), help="Leave the recordings in this folder.")
def main(
    tp: int, dp: int, pp: int, nodes: int, markdown: Path | None, keep: Path | None
) -> None:  # fmt: skip
    """Make the recordings of many ranks, and compare them in every place."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        costs = _compared(keep or Path(temporary), Layout(tp, dp, pp), -(-nodes // NODES_OF_A_LAYER) * pp)
    if markdown:
        markdown.write_text(_page(costs, Layout(tp, dp, pp)), encoding="utf-8")
    sys.exit(any(_wrong(cost, costs) for cost in costs))


def _compared(folder: Path, layout: Layout, layers: int) -> list[Cost]:
    folder.mkdir(parents=True, exist_ok=True)
    ranks = f"{layout.world} ranks"
    one, many = Side(Layout(), layers), Side(layout, layers)
    fault = f"layers.{layers // 2}.mlp.linear_fc2"
    stage = layout.world // layout.pp
    made(folder, "one process", one)
    made(folder, ranks, many)
    made(folder, f"{ranks}, off by rounding", replace(many, noise=NOISE))
    made(
        folder,
        f"{ranks}, with a fault",
        replace(many, fault=fault),
        ranks,
        range(layout.pp // 2 * stage, (layout.pp // 2 + 1) * stage),
    )
    few = Side(Layout(2, 2, 2), 8, task="tensor", length=LONG)
    made(folder, "one process, values", replace(few, layout=Layout()))
    made(folder, "8 ranks, values", replace(few, noise=NOISE))
    pairs = [
        ("one process", f"{ranks}, off by rounding"),
        (ranks, f"{ranks}, off by rounding"),
        ("one process", f"{ranks}, with a fault"),
    ]
    costs = [measured(folder, *pair, HERE) for pair in pairs]
    costs += [measured(folder, *pairs[0], where) for where in PLACES if where != HERE]
    return costs + [measured(folder, "one process, values", "8 ranks, values", where) for where in PLACES]


def _wrong(cost: Cost, costs: Sequence[Cost]) -> bool:
    first = next(each for each in costs if (each.a, each.b) == (cost.a, cost.b))
    wanted = "diverged" if "fault" in cost.b else "aligned"
    return (
        cost.verdict != wanted
        or cost.answer != first.answer
        or ("fault" in cost.b and "mlp.linear_fc2" not in cost.path)
    )


def _page(costs: Sequence[Cost], layout: Layout) -> str:
    lines = [
        f"{HEAD}{layout.world} ranks are tensor parallel {layout.tp} × data parallel {layout.dp} × pipeline {layout.pp}.\n",
        "| A | B | compared by | records | MiB | seconds | CPU seconds | peak MiB | µs of CPU a record | verdict | the same answer |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for cost in costs:
        first = next(each for each in costs if (each.a, each.b) == (cost.a, cost.b))
        verdict = f"{cost.verdict}: `{cost.path}`" if cost.path else cost.verdict
        same = "–" if cost is first else "yes" if cost.answer == first.answer else "**no**"
        lines.append(
            f"| {cost.a} | {cost.b} | {cost.where} | {cost.records:,} | {cost.mib:,.0f} | {cost.wall:.1f} | {cost.cpu:.1f} | {cost.peak:,.0f} | "
            f"{cost.cpu / cost.records * 1e6:.0f} | {verdict} | {same} |"
        )
    return "\n".join([*lines, "", *_on_paper(costs)]) + "\n"


def _on_paper(costs: Sequence[Cost]) -> list[str]:
    """Return what many more ranks would cost, by what a record and a GiB of values cost here."""
    many, values = costs[0], next(cost for cost in costs if "values" in cost.a)
    layout, layers, steps = PAPER
    each, size = many.cpu / many.records, many.mib / many.records
    a_rank = layers // layout.pp * NODES_OF_A_LAYER * RECORDS_OF_A_CALL
    records = layout.world * steps * a_rank
    of_values = (values.cpu - values.records * each) / (values.mib / 1024)
    stage = layout.world // layout.pp * a_rank * 2 * size
    return [
        "## On paper\n",
        f"A record costs {each * 1e6:.0f} µs of CPU and {size * 1024:.2f} KiB of a file; a GiB of values {of_values:.1f} s of CPU more, in this process.",
        f"{layout.world:,} ranks ({layout}), {layers} layers of such a model and {steps} steps would be {records / 1e6:.1f} million records",
        f"in {records * size / 1024:.1f} GiB, with one micro-batch a step: {records * each / 60:.1f} minutes of CPU in one process. The records of one stage",
        f"in one step, about {stage / 1024:.1f} GiB with what is made of them, would be in memory at a time. More micro-batches cost as many times as much.",
    ]  # fmt: skip


if __name__ == "__main__":
    main()
