"""Where the work of a comparison is done: in processes of this machine, or on the workers of a Dask cluster."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

from probe.errors import ConfigError, ProbeError

if TYPE_CHECKING:
    from concurrent.futures import Future, ProcessPoolExecutor

J = TypeVar("J")
R = TypeVar("R")

PROCESSES = "processes"
_PROTOCOLS = ("tcp://", "tls://", "ucx://", "ws://", "wss://", "inproc://")
_POOLS = 3
"""pools of processes that are tried: a worker that was killed takes its pool with it"""
_SECONDS = 30
"""until a scheduler of Dask has to answer"""


class Scheduler(Protocol):
    """Does jobs elsewhere."""

    workers: int
    """jobs that are done at a time"""

    def map(self, function: Callable[[J], R], jobs: Sequence[J]) -> Iterator[R]:
        """Yield what a function of a module returns for each job, in the order of the jobs."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc: object) -> None: ...


def scheduler_of(text: str) -> Scheduler:
    """Return where work is done.

    Parameters
    ----------
    text
        ``"processes"`` or ``"processes:4"``: processes of this machine, by default one of each core; ``"tcp://host:8786"``: the scheduler
        of a Dask cluster, whose workers find the recordings under the same paths

    Raises
    ------
    ConfigError
        it is none of these, or Dask is not installed
    ProbeError
        no scheduler of Dask answers there
    """
    name, _, count = text.partition(":")
    if name == PROCESSES and (not count or (count.isascii() and count.isdigit() and int(count) > 0)):
        return Processes(int(count) if count else len(os.sched_getaffinity(0)))
    if text.startswith(_PROTOCOLS):
        return Cluster(text)
    raise ConfigError(
        f"scheduler={text!r} is not known; expected 'processes', 'processes:4', or the address of a Dask scheduler such as "
        "'tcp://host:8786'"
    )


class OneKept:
    """The last thing that a process has opened for its jobs; it is closed when another one takes its place.

    Jobs have it one after the other: workers of Dask have several threads, and a recording is read by one at a time.
    """

    def __init__(self) -> None:
        self._key: object = None
        self._kept: Any = None
        self._opened = contextlib.ExitStack()
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def of(self, key: object, make: Callable[[contextlib.ExitStack], R]) -> Iterator[R]:
        """Yield what was made for a key, or make it; what is opened on the way is closed with it."""
        with self._lock:
            if key != self._key:
                self._opened.close()
                self._key = self._kept = None
                self._kept = make(self._opened)
                self._key = key
            yield self._kept


class Processes:
    """Processes of this machine. They begin anew, as `multiprocessing` calls ``spawn``: nothing of a training is copied.

    What runs them is imported when they are asked for: few comparisons do.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=exc[:1] == (None,), cancel_futures=True)

    def map(self, function: Callable[[J], R], jobs: Sequence[J]) -> Iterator[R]:
        """Yield what a function returns for each job, in their order; where a process dies, what it had not done is done again."""
        from concurrent.futures.process import BrokenProcessPool

        done, broken = 0, 0
        while done < len(jobs):
            futures: list[Future[R]] = []
            try:
                futures = [self._opened().submit(function, job) for job in jobs[done:]]
                for future in futures:
                    found = future.result()
                    done += 1
                    yield found
            except BrokenProcessPool as error:
                self._pool, broken = None, broken + 1
                if broken == _POOLS:
                    raise ProbeError(
                        f"processes that compare were ended {_POOLS} times: is the memory full? In a script, call probe.compare under "
                        "`if __name__ == '__main__':`, as multiprocessing demands"
                    ) from error
            finally:
                for future in futures:
                    future.cancel()

    def _opened(self) -> ProcessPoolExecutor:
        from concurrent.futures import ProcessPoolExecutor
        from multiprocessing import get_context

        if self._pool is None:
            self._pool = ProcessPoolExecutor(self.workers, get_context("spawn"))
        return self._pool


class Cluster:
    """The workers of an existing Dask cluster, which does again what a worker that died had not done."""

    def __init__(self, address: str) -> None:
        try:
            from distributed import Client
        except ImportError:
            raise ConfigError(f"{address} needs Dask: pip install 'probe-align[dask]'") from None
        try:
            self._client: Any = Client(address, timeout=_SECONDS, set_as_default=False)
        except (OSError, ValueError) as error:
            raise ProbeError(f"no Dask scheduler answers at {address}: {error}") from None
        self.workers = max(1, sum(self._client.nthreads().values()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._client.close()

    def map(self, function: Callable[[J], R], jobs: Sequence[J]) -> Iterator[R]:
        """Yield what a function returns for each job, in their order."""
        futures = self._client.map(function, jobs, pure=False)
        try:
            for future in futures:
                yield future.result()
        finally:
            self._client.cancel(futures)
