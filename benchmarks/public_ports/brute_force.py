"""`python -m benchmarks.public_ports.brute_force`: every fault changes numbers, and without one both sides agree; without probe."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.public_ports.pair import Pair
from benchmarks.public_ports.running import names, pair_of
from benchmarks.public_ports.training import training_of

Numbers = dict[str, np.ndarray]
NOISE = 1e-4
"""relative difference of the first losses of two right sides; later ones differ by what training makes of rounding"""


def numbers(pair: Pair, side: str, fault: str = "") -> dict[str, Numbers]:
    """Return what a side computes: weights before, losses, gradients as the optimizer uses them, weights after."""
    training = training_of(pair, side, fault)
    before = training.state()
    gradients: dict[str, Any] = {}
    training.before_update.append(lambda: gradients.update(training.gradients()))
    losses = {f"step {index}": training.step(index) for index in range(pair.steps)}
    found = {"init": before, "loss": losses, "gradient": gradients, "update": training.state()}
    return {phase: {name: np.asarray(x, dtype=np.float64) for name, x in each.items()} for phase, each in found.items()}


def change(right: Numbers, wrong: Numbers) -> float:
    """Return the largest relative difference of two tensors of the same name; infinite where one has gone."""
    if right.keys() != wrong.keys():
        return float("inf")
    return max((_error(right[name], wrong[name]) for name in right), default=0.0)


def _error(x: np.ndarray, y: np.ndarray) -> float:
    if x.shape != y.shape:
        return float("inf")
    norm = max(float(np.linalg.norm(x)), float(np.linalg.norm(y)))
    return float(np.linalg.norm(x - y)) / norm if norm else 0.0


@click.command()
@click.option("--pair", "chosen", multiple=True, help="This pair; may be repeated.")
@click.option("--fault", "glob", default="*", help="Faults whose names match.")
def main(chosen: tuple[str, ...], glob: str) -> None:
    """Train B right and with each fault, and print how much each phase's numbers change; exit status 1 if one does not."""
    table = Table("pair", "fault", "init", "loss", "gradient", "update")
    bad = []
    for name in chosen or names():
        pair = pair_of(name)
        a, right = numbers(pair, "a"), numbers(pair, "b")
        noise = _error(a["loss"]["step 0"], right["loss"]["step 0"])
        table.add_row(name, "right: A to B", "", f"{noise:.1e}", "", "")
        bad += [f"{name}: the right sides' losses differ by {noise:.1e}"] * (noise > NOISE)
        for fault in pair.faults:
            if not fnmatchcase(fault.name, glob):
                continue
            wrong = numbers(pair, "b", fault.name)
            changes = {phase: change(right[phase], wrong[phase]) for phase in right}
            table.add_row(name, fault.name, *(f"{each:.1e}" if each else "·" for each in changes.values()))
            bad += [f"{name}: {fault.name} changes nothing"] * (max(changes.values()) == 0)
    Console(width=120).print(table)
    Console().print("\n".join(bad) or "every fault changes numbers")
    raise SystemExit(1 if bad else 0)


if __name__ == "__main__":
    main()
