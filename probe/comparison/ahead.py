"""Values of a step, compared before it is judged: by other processes, by threads, and kept for a comparison that is interrupted."""

from __future__ import annotations

import contextlib
import math
import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from probe.comparison.distance.in_threads import Threads, cores
from probe.comparison.distance.metrics import Metrics
from probe.comparison.distance.values import Request, compare_values, is_summed_as_it_lies, key_of
from probe.comparison.resuming import Kept
from probe.comparison.steps.dataflow import passes
from probe.comparison.steps.events import StepPairs
from probe.comparison.steps.paired_step import paired_step
from probe.comparison.steps.side import PARAMETER_ROLES, Side
from probe.matching import Matching
from probe.matching.changes import Change
from probe.numbers import kernel
from probe.numbers.statistics import dtype_of
from probe.ranks.elsewhere import Seen, paths_of, seen_of, spread_over
from probe.ranks.opening import open_reader
from probe.records import Phase, Role
from probe.scheduling import OneKept, Scheduler, scheduler_of
from probe.store.reading.reader import Reader

_OF_WEIGHTS = Phase.INIT, Phase.GRADIENT, Phase.UPDATE
_JOBS = 8
"""jobs of a worker, so that none is left with much while others are done"""
_LEAST, _MOST = 8 << 20, 256 << 20
"""bytes of the values of one job"""
_IN_THREADS, _IN_THREADS_EACH = 64 << 20, 4 << 20
"""bytes of values that differ from which on threads sum them up, in all and by the record: of small tensors, pairing them is what takes time,
and while this thread does that, the others wait for Python's lock"""


_KEPT = OneKept()


@dataclass(frozen=True)
class Source:
    """What another process needs to pair the same step."""

    a: str
    b: str
    seen: tuple[Seen, Seen]
    matching: Matching
    changes: tuple[Change, ...]
    steps: tuple[int, int]


@dataclass(frozen=True)
class Job:
    """Values to be compared."""

    source: bytes
    """a `Source`, pickled once for all jobs of a step"""
    requests: tuple[Request, ...]


class Ahead:
    """Compares the values of a step before it is judged, for somebody else is to do so, or what is found is to be kept.

    Parameters
    ----------
    scheduler
        who reads and compares values (`probe.scheduling.scheduler_of`); None: this process
    resume
        the file in which what was found is kept
    """

    def __init__(self, a: Reader, b: Reader, scheduler: str | None, resume: str | Path | None) -> None:
        self._scheduler: Scheduler | None = None
        self._kept: Kept | None = None
        self._threads: Threads | None = None
        with contextlib.ExitStack() as opened:
            if resume is not None:
                self._kept = opened.enter_context(Kept(resume, {"A": seen_of(paths_of(a)), "B": seen_of(paths_of(b))}))
            if scheduler is not None:
                self._scheduler = opened.enter_context(scheduler_of(scheduler))
                spread_over(self._scheduler, a, b)
            count = cores()
            if scheduler is None and count > 1 and kernel.AVAILABLE:
                self._threads = opened.enter_context(Threads(count))
            self._opened = opened.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._opened.close()

    def measure(self, pairs: StepPairs) -> None:
        """Compare the values of a step that will be asked for, or let threads begin to sum them up."""
        threads = self._threads if self._threads is not None and _is_worth_threads(pairs) else None
        if self._scheduler is None and self._kept is None and threads is None:
            return
        wanted = _wanted(pairs)
        known = {} if self._kept is None else self._kept.found
        for key, request in list(wanted.items()):
            if (name := _name(pairs, request)) in known:
                pairs.a.measured[key] = known[name]
                del wanted[key]
        if threads is not None:
            pairs.a.summed_ahead = threads.begin(pairs.a, pairs.b, _in_order(pairs, wanted.values()))
        if self._scheduler is None and self._kept is None:
            return
        workers = 1 if self._scheduler is None else self._scheduler.workers
        chunks = list(_chunks(pairs, list(wanted.values()), workers))
        for requests, found in zip(chunks, _measured(pairs, chunks, self._scheduler), strict=True):
            pairs.a.measured.update(
                (key_of(pairs.a, pairs.b, each), metrics) for each, metrics in zip(requests, found, strict=True)
            )
            if self._kept is not None:
                self._kept.add({_name(pairs, each): metrics for each, metrics in zip(requests, found, strict=True)})


def _name(pairs: StepPairs, request: Request) -> str:
    """Return what is the same for the same contents that are compared in the same way, whatever the mapping; empty where nothing tells it."""
    i, j, *how = request
    rows = (pairs.a, i), (pairs.b, j)
    if any(side.digest(row) is None for side, row in rows):
        return ""
    return repr((*((side.digest(row), side.dtypes[row], side.shapes[row]) for side, row in rows), *how))


def _wanted(pairs: StepPairs) -> dict[tuple[object, ...], Request]:
    """Return what would be read of a step, in the order of its events; rows that are made on the way are left out."""
    first = len(pairs.a.columns["tensor"]), len(pairs.b.columns["tensor"])
    found: dict[tuple[object, ...], Request] = {}
    pairs.a.to_measure = found
    try:
        for phase in _OF_WEIGHTS:
            for role in PARAMETER_ROLES:
                list(pairs.parameter_events(phase, role))
        if pairs.same_micros:
            for micro, backward in passes(pairs):
                list(pairs.node_events(micro, backward=backward))
            for micro in sorted({node.micro for node in pairs.nodes.values() if node.micro < 0}):
                list(pairs.node_events(micro, backward=False))
    finally:
        pairs.a.to_measure = None
    return {key: each for key, each in found.items() if each.row_a < first[0] and each.row_b < first[1]}


def _is_worth_threads(pairs: StepPairs) -> bool:
    """Tell whether so many bytes will be read that threads are done sooner."""
    a, b = pairs.a, pairs.b
    if not (a.has_stored_values and b.has_stored_values):
        return False
    there = b.digests_of(range(len(b.slots)))
    size = 2 * sum(_size(a, row) for row in range(len(a.slots)) if a.has_values(row) and a.digest(row) not in there)
    return size >= max(_IN_THREADS, _IN_THREADS_EACH * len(a.slots))


def _in_order(pairs: StepPairs, wanted: Iterable[Request]) -> Iterator[tuple[int, int]]:
    """Yield the rows of what is wanted, and summed up as it lies, in the order in which a step is judged.

    Updated weights are left out: they are seldom asked for, their updates are.
    """
    phases, roles = pairs.a.columns["phase"], pairs.a.columns["role"]
    for request in sorted(wanted, key=lambda each: phases[each.row_a]):
        is_seldom = (phases[request.row_a], roles[request.row_a]) == (Phase.UPDATE, Role.PARAM)
        if not is_seldom and is_summed_as_it_lies(pairs.a, pairs.b, request):
            yield request.row_a, request.row_b


def _chunks(pairs: StepPairs, requests: Sequence[Request], workers: int) -> Iterator[tuple[Request, ...]]:
    sizes = [_bytes(pairs, each) for each in requests]
    most = min(max(sum(sizes) // (_JOBS * workers), _LEAST), _MOST)
    chunk: list[Request] = []
    total = 0
    for request, size in zip(requests, sizes, strict=True):
        if chunk and total + size > most:
            yield tuple(chunk)
            chunk, total = [], 0
        chunk.append(request)
        total += size
    if chunk:
        yield tuple(chunk)


def _bytes(pairs: StepPairs, request: Request) -> int:
    return _size(pairs.a, request.row_a) + _size(pairs.b, request.row_b)


def _size(side: Side, row: int) -> int:
    return math.prod(side.shapes[row]) * dtype_of(side.dtypes[row]).itemsize


def _measured(
    pairs: StepPairs, chunks: Sequence[tuple[Request, ...]], scheduler: Scheduler | None
) -> Iterator[list[Metrics]]:
    if scheduler is None:
        yield from (_compared(pairs, requests) for requests in chunks)
    elif chunks:
        a, b = pairs.a.reader, pairs.b.reader
        seen = seen_of(paths_of(a)), seen_of(paths_of(b))
        source = Source(
            str(a.path), str(b.path), seen, pairs.matching, tuple(pairs.changes), (pairs.step, pairs.step_b)
        )
        pickled = pickle.dumps(source)
        yield from scheduler.map(compared_elsewhere, [Job(pickled, requests) for requests in chunks])


def compared_elsewhere(job: Job) -> list[Metrics]:
    """Compare values in this process, which pairs the step for itself, once for all of its jobs."""
    with _KEPT.of(job.source, lambda opened: _paired(job.source, opened)) as pairs:
        return _compared(pairs, job.requests)


def _paired(source: bytes, opened: contextlib.ExitStack) -> StepPairs:
    wanted: Source = pickle.loads(source)  # noqa: S301  from the process that compares
    dims = dict(wanted.matching.dims)
    a, b = (opened.enter_context(open_reader(each, dims)) for each in (wanted.a, wanted.b))
    return paired_step(a, b, *wanted.steps, wanted.matching, wanted.changes)


def _compared(pairs: StepPairs, requests: Sequence[Request]) -> list[Metrics]:
    return [
        compare_values(pairs.a, i, pairs.b, j, free_axes=free_axes, turned=turned, taken=taken)
        for i, j, free_axes, turned, taken in requests
    ]
