"""Stages of many ranks that are put together by other processes: each opens the files for itself."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from probe.ranks.layout.files import files_of
from probe.ranks.opening import is_of_ranks
from probe.ranks.reader import RanksReader
from probe.ranks.stages import Block
from probe.records import Role
from probe.scheduling import OneKept, Scheduler
from probe.store.reading.reader import Reader

Seen = tuple[tuple[str, int, float], ...]
"""names, sizes and times of the last write of files: what was opened once is opened again where they have changed"""


_KEPT = OneKept()


@dataclass(frozen=True)
class StageJob:
    """A stage of one step, to be put together."""

    given: str
    seen: Seen
    layouts: Mapping[str, str]
    whole: Callable[[str, Role, str], Sequence[tuple[int, ...]]]
    step: int
    stage: int
    spans: np.ndarray
    share: float


def spread_over(scheduler: Scheduler, *readers: Reader) -> None:
    """Let the stages of recordings of many ranks be put together by a scheduler's workers."""
    for reader in readers:
        if is_of_ranks(reader) and len(set(reader.union.stages)) > 1:
            reader.blocks_elsewhere = functools.partial(_blocks, scheduler, reader)


def paths_of(reader: Reader) -> tuple[Path, ...]:
    """Return the files of a recording."""
    return reader.paths if is_of_ranks(reader) else (reader.path,)


def seen_of(paths: Sequence[Path]) -> Seen:
    """Return what tells whether files have changed."""
    found = ((str(path), path.stat()) for path in paths)
    return tuple((name, stat.st_size, stat.st_mtime) for name, stat in found)


def _blocks(scheduler: Scheduler, reader: RanksReader, step: int, spans: np.ndarray, share: float) -> list[Block]:
    seen, hints = seen_of(reader.paths), reader.hints
    jobs = [
        StageJob(str(reader.path), seen, hints.layouts, hints.whole, step, stage, spans, share)
        for stage in sorted(set(reader.union.stages))
    ]
    return list(scheduler.map(block_of, jobs))


def block_of(job: StageJob) -> Block:
    """Return a stage, put together in this process."""
    key = job.given, job.seen, tuple(sorted(job.layouts.items()))
    paths = files_of(job.given)
    with _KEPT.of(key, lambda opened: opened.enter_context(RanksReader(job.given, paths, job.layouts))) as reader:
        reader.has_looked = False
        reader.hints = replace(reader.hints, whole=job.whole)
        block = reader.of_stage(job.step, job.stage, job.spans, job.share)
        return replace(block, has_looked=reader.has_looked)
