"""All situations of PyTorch, and what probe changes in one."""

from __future__ import annotations

import functools
from pathlib import Path

import torch

import probe
from benchmarks.situations import torch_pieces, torch_programs  # noqa: F401  they fill the table
from benchmarks.situations.table import SITUATIONS, Situation
from benchmarks.situations.watching import Seen, Watch, seed
from benchmarks.situations.zoos import Differences


def all_of_them() -> dict[str, Differences]:
    """Return what finds the differences that probe makes, by the names of the situations."""
    torch.set_num_threads(1)
    return {name: functools.partial(differences, each) for name, each in SITUATIONS.items()}


def differences(run: Situation, path: Path, task: str) -> list[str]:
    """Return what is not the same with and without probe, in words."""
    plain, recorded = seen_plainly(run), seen(run, Watch(path, task))
    names = list(dict.fromkeys([*plain, *recorded]))
    return [name for name in names if plain.get(name) != recorded.get(name)]


@functools.cache
def seen_plainly(run: Situation) -> Seen:
    """Return what is seen without probe; the first time fills caches of PyTorch's and is not what counts."""
    seen(run, Watch())
    return seen(run, Watch())


def seen(run: Situation, watch: Watch) -> Seen:
    """Run a situation from a fixed seed; return all that the program can see of it."""
    seed()
    try:
        run(watch)
    finally:
        watch.stop()
        probe.stop()
    return watch.seen
