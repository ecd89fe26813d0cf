"""`python -m benchmarks.long_run`: does a recording of 100,000 steps hold more than one of 10,000?

A tiny model is trained, with statistics of everything at every step. What the process holds is taken at 100 moments, each after
the writer has nothing left to do, and a line is fitted to what comes behind the warm-up.
"""

from __future__ import annotations

import gc
import os
import tempfile
import threading
import time
from dataclasses import dataclass, fields
from pathlib import Path

import click
import numpy as np
import torch
from torch import nn

import probe

MOMENTS = 100
WARM_UP = 0.2
"""part of the steps that the line is not fitted to: HDF5's cache and torch's fill"""
LIMIT = 20.0
"""bytes a step"""


@dataclass(frozen=True)
class Held:
    """What the process holds at a moment, a row of what is kept in an array: objects of Python would be counted."""

    step: int
    resident: int
    """bytes"""
    threads: int
    handles: int
    objects: int
    """that Python's garbage collector knows"""


QUANTITIES = {
    "resident": "memory (RSS), bytes",
    "threads": "threads",
    "handles": "open files",
    "objects": "Python objects",
}


@click.command()
@click.option("--steps", default=100_000, show_default=True)
@click.option("--task", default="statistics", show_default=True)
@click.option("--markdown", type=click.Path(path_type=Path, dir_okay=False), help="Write the table here too.")
def main(steps: int, task: str, markdown: Path | None) -> None:
    """Train and record; exit status 1 if something grows."""
    torch.set_num_threads(1)
    began = time.perf_counter()
    held = record(steps, task)
    page = as_page(held, steps, task, time.perf_counter() - began)
    click.echo(page)
    if markdown:
        markdown.parent.mkdir(parents=True, exist_ok=True)
        markdown.write_text(page, encoding="utf-8")
    raise SystemExit(0 if is_flat(held) else 1)


def record(steps: int, task: str) -> list[Held]:
    """Train a tiny model for so many steps; return what the process held on the way."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    every = max(1, steps // MOMENTS)
    held = np.zeros((steps // every, len(fields(Held))), np.int64)
    gc.collect()
    gc.freeze()  # what PyTorch is made of is not looked at any more
    with tempfile.TemporaryDirectory() as folder:
        probe.start(model, Path(folder) / "a.h5", task=task, quiet=True)
        for step in range(steps):
            optimizer.zero_grad()
            loss = model(torch.randn(3, 4)).square().sum()
            loss.backward()
            optimizer.step()
            probe.step(loss=loss)
            if step % every == every - 1:
                held[step // every] = _held(step + 1)
        probe.stop()
    return [Held(*row) for row in held.tolist()]


def _held(step: int) -> tuple[int, ...]:
    recorder = probe.session._current
    assert recorder is not None
    written = threading.Event()
    recorder.run.writer._queue.put(written.set)
    written.wait()
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    handles = len(os.listdir("/proc/self/fd"))
    return step, pages * os.sysconf("SC_PAGE_SIZE"), threading.active_count(), handles, len(gc.get_objects())


def slope(held: list[Held], quantity: str) -> float:
    """Return by how much a quantity grows with a step, behind the warm-up."""
    late = [each for each in held if each.step > WARM_UP * held[-1].step]
    return float(np.polyfit([each.step for each in late], [getattr(each, quantity) for each in late], 1)[0])


def is_flat(held: list[Held]) -> bool:
    """Tell whether memory grows by no more than the limit, and nothing else grows by one in a thousand steps."""
    return slope(held, "resident") <= LIMIT and all(
        slope(held, name) < 1e-3 for name in ("threads", "handles", "objects")
    )


def as_page(held: list[Held], steps: int, task: str, seconds: float) -> str:
    """Return the figures as a page of Markdown."""
    marks = [held[int(part * (len(held) - 1))] for part in (0, WARM_UP, 0.5, 1)]
    lines = [
        "# A long run",
        "",
        f"Written by `python -m benchmarks.long_run --steps {steps} --task {task} --markdown docs/evidence/long-run.md`: "
        f'{steps:,} steps of a model with two Linear, all of them recorded (`task="{task}"`), in {seconds:.0f} s. The line is fitted to '
        f"what {MOMENTS} moments show behind the first {WARM_UP:.0%} of the steps.",
        "",
        "| held | " + " | ".join(f"step {each.step:,}" for each in marks) + " | growth per step |",
        "|---|" + "---:|" * (len(marks) + 1),
    ]
    for name, words in QUANTITIES.items():
        values = " | ".join(f"{getattr(each, name):,}" for each in marks)
        lines.append(f"| {words} | {values} | {slope(held, name):.4f} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
