"""Ranks as processes that are forked from one that has imported all it needs."""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path


def train_on_ranks(name: str, world: int, run: Callable[[int, Path], None]) -> None:
    """Run every rank in a process of its own, and print which have failed.

    Parameters
    ----------
    run
        given the rank, and the file by which the ranks find each other
    """
    with tempfile.TemporaryDirectory() as place:
        children = [_forked(run, rank, Path(place) / "store") for rank in range(world)]
        failed = [rank for rank, child in enumerate(children) if os.waitpid(child, 0)[1]]
    print(name, "failed on " + ", ".join(map(str, failed)) if failed else "done", flush=True)


def _forked(run: Callable[[int, Path], None], rank: int, store: Path) -> int:
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        run(rank, store)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
