"""Values of a step, compared before it is judged: by other processes, or kept for a comparison that is interrupted."""

from __future__ import annotations

import contextlib
import json
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import IO, Any, Self

from probe._version import __version__
from probe.errors import ConfigError
from probe.ranks.elsewhere import Seen, paths_of, seen_of, spread_over
from probe.ranks.opening import open_reader
from probe.records import Phase, Role
from probe.scheduling import OneKept, Scheduler, scheduler_of
from probe.store.reading.reader import Reader
from probe.verdict.distance.error import Error, View
from probe.verdict.ranks import let_see
from probe.verdict.side import PARAMETER_ROLES, Side
from probe.verdict.steps.events import Event
from probe.verdict.steps.step import Step

_STEP = OneKept()
"""the step that a worker has paired, for all of its jobs"""


@dataclass(frozen=True)
class _Job:
    """Values to be compared: events by their numbers among all of a step."""

    source: bytes
    """paths, what tells whether they have changed, matching, numbers of the step and whether it begins, pickled once"""
    numbers: tuple[int, ...]


class Ahead:
    """Compares the values of a step before it is judged, by `probe.scheduling.scheduler_of` or in this process."""

    least = 8 << 20
    """bytes of the values of one job at least"""

    def __init__(self, a: Reader, b: Reader, scheduler: str | None, resume: str | Path | None) -> None:
        self._scheduler: Scheduler | None = None
        self._kept: _Kept | None = None
        with contextlib.ExitStack() as opened:
            if resume is not None:
                self._kept = _Kept(resume, {"A": seen_of(paths_of(a)), "B": seen_of(paths_of(b))})
                opened.callback(self._kept.close)
            if scheduler is not None:
                self._scheduler = opened.enter_context(scheduler_of(scheduler))
                spread_over(self._scheduler, a, b)
            self._opened = opened.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._opened.close()

    def measure(self, step: Step) -> None:
        """Compare the values of a step that will be asked for."""
        if self._scheduler is None and self._kept is None:
            return
        events, known = _events(step), self._kept.found if self._kept is not None else {}
        wanted = [number for number, event in enumerate(events) if _is_read(event)]
        for number in wanted:
            name = _name(step, events[number])
            if name in known:
                step.take(events[number], known[name])
        left = [number for number in wanted if _name(step, events[number]) not in known]
        jobs = list(_jobs(step, events, left, self._scheduler.workers if self._scheduler is not None else 1))
        for job, errors in zip(jobs, self._measured(step, events, jobs), strict=True):
            found = {}
            for number, error in zip(job.numbers, errors, strict=True):
                if error is not None:
                    step.take(events[number], error)
                    found[_name(step, events[number])] = error
            if self._kept is not None:
                self._kept.add(found)

    def _measured(self, step: Step, events: Sequence[Event], jobs: Sequence[_Job]) -> Iterator[list[Error | None]]:
        if self._scheduler is not None and jobs:
            yield from self._scheduler.map(compared_elsewhere, jobs)
        elif jobs:
            yield from ([step.error(events[number]) for number in job.numbers] for job in jobs)


def compared_elsewhere(job: _Job) -> list[Error | None]:
    """Compare values in this process, which pairs the step for itself, once for all of its jobs."""
    with _STEP.of(job.source, lambda opened: _paired(job.source, opened)) as (step, events):
        return [step.error(events[number]) for number in job.numbers]


def _paired(source: bytes, opened: contextlib.ExitStack) -> tuple[Step, list[Event]]:
    paths, _, matching, numbers, begins = pickle.loads(source)  # noqa: S301  from the process that compares
    dims = dict(matching.dims)
    a, b = (opened.enter_context(open_reader(each, dims)) for each in paths)
    let_see(a, b, matching)
    sides = zip((a, b), numbers, (matching.views_a, matching.views_b), strict=True)
    step = Step(*(Side(*each, begins=begins) for each in sides), matching)
    return step, _events(step)


def _events(step: Step) -> list[Event]:
    """Return all events of a step, in the same order in every process."""
    found = [event for phase in Phase for role in PARAMETER_ROLES for event in step.parameters.events(phase, role)]
    for node in step.nodes:
        found += (*node.inputs, *node.outputs, *step.gradients(node))
    return found


def _is_read(event: Event) -> bool:
    """Return True if values will be read of an event, and both tensors are recorded as they are."""
    a, b = event.a, event.b
    if a is None or b is None or a.parts or b.parts or not (a.has_values and b.has_values):
        return False
    is_seldom = (event.phase, event.role) == (Phase.UPDATE, Role.PARAM)  # their updates are asked for
    return a.size == b.size and a.hash != b.hash and not is_seldom


def _name(step: Step, event: Event) -> str:
    """Return what is the same for the same contents that are compared in the same way."""
    assert event.a is not None and event.b is not None
    tensors = [(each.hash, each.dtype, each.shape, each.axes) for each in (event.a, event.b)]
    return repr((*tensors, step.may_permute(event)))


def _jobs(step: Step, events: Sequence[Event], numbers: Sequence[int], workers: int) -> Iterator[_Job]:
    """Yield jobs of about equal sizes, some for each worker, so that none is left with much while others are done."""
    a, b = step.a.reader, step.b.reader
    seen: tuple[Seen, Seen] = seen_of(paths_of(a)), seen_of(paths_of(b))
    numbers_of_step = step.a.step, step.b.step
    source = pickle.dumps(((str(a.path), str(b.path)), seen, step.matching, numbers_of_step, step.a.begins))
    sizes = [8 * each.size if (each := events[number].a) is not None else 0 for number in numbers]
    most, chunk, total = max(sum(sizes) // (8 * workers), Ahead.least), list[int](), 0
    for number, size in zip(numbers, sizes, strict=True):
        if chunk and total + size > most:
            yield _Job(source, tuple(chunk))
            chunk, total = [], 0
        chunk.append(number)
        total += size
    if chunk:
        yield _Job(source, tuple(chunk))


class _Kept:
    """A file of JSON lines: which recordings, and behind that the errors that were found.

    Raises
    ------
    ConfigError
        the file belongs to other recordings or another version of probe, or is none of these files
    """

    def __init__(self, path: str | Path, of: Mapping[str, object]) -> None:
        self._path = Path(path)
        self._head = {"probe": __version__, "engine": 2, **json.loads(json.dumps(of, sort_keys=True))}
        self.found: dict[str, Error] = {}
        """what is known, by what tells the contents of two tensors and how they are compared"""
        end = self._read() if self._path.exists() else 0
        try:
            self._file: IO[str] = self._path.open("r+" if end else "w", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror}") from None
        self._file.seek(end)
        self._file.truncate()
        if not end:
            self._write(self._head)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def add(self, found: Mapping[str, Error]) -> None:
        """Keep what was found."""
        if found:
            self._write([[name, list(astuple(error))] for name, error in found.items()])

    def _write(self, line: object) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def _read(self) -> int:
        """Read the file; return where its last whole line ends: a process that was killed leaves a part of one."""
        raw = self._path.read_bytes()
        end = raw.rfind(b"\n") + 1
        if not raw:
            return 0
        try:
            head, *rest = [json.loads(line) for line in raw[:end].splitlines()]
            known = {str(name): _error(values) for rows in rest for name, values in rows}
        except (ValueError, TypeError, IndexError, UnicodeDecodeError):
            raise ConfigError(f"{self._path} is no file that resume= has written; give another one") from None
        if head != self._head:
            same = head if isinstance(head, dict) else {}
            differing = [key for key in self._head if same.get(key) != self._head[key]]
            raise ConfigError(
                f"{self._path} was begun by another comparison (other {', '.join(differing) or 'contents'}): give "
                "another file, or remove it"
            )
        self.found.update(known)
        return end


def _error(values: Sequence[Any]) -> Error:
    size, norm_a, norm_b, along, view, *rest = values
    return Error(size, norm_a, norm_b, along, View(view), *rest)
