"""Record one side in a process of its own: `python -m benchmarks.faults.record --side b --out DIR`."""

from __future__ import annotations

from pathlib import Path

import click

import probe
from benchmarks.faults.models import A, B, Run, Setup


def record(setup: Setup, path: Path, task: str) -> None:
    """Train the steps of `setup` and write the recording `path`."""
    run = Run(setup)
    probe.start(run.model, path, task=task, phases=setup.phases)
    for index in range(setup.steps):
        probe.step(loss=run.step(index))
    probe.stop()


@click.command()
@click.option("--side", type=click.Choice(["a", "b"]), required=True)
@click.option("--name", "names", multiple=True, help="A baseline (side a) or a row (side b); all by default.")
@click.option("--task", "tasks", multiple=True, default=("tensor", "statistics"), show_default=True)
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), required=True)
def main(side: str, names: tuple[str, ...], tasks: tuple[str, ...], out: Path) -> None:
    """Write OUT/TASK/SIDE/NAME.h5 for every task and name, one after the other."""
    setups = A if side == "a" else B
    for task in tasks:
        folder = out / task / side
        folder.mkdir(parents=True, exist_ok=True)
        for name in names or setups:
            record(setups[name], folder / f"{name}.h5", task)


if __name__ == "__main__":
    main()
