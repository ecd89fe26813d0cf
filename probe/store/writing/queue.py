"""What waits for the writer's thread.

No lock is held here while Python code runs: an interrupt (Ctrl-C) between taking a lock and the block that gives it
back would leave the other thread waiting for ever.
"""

from __future__ import annotations

import contextlib
import queue
import time
from collections import deque
from collections.abc import Callable

PAUSE = 0.001
"""seconds between two looks at what another thread has done"""


class Queue:
    """First in, first out; who waits for room after each item lets it hold ``limit`` bytes, or one item more.

    One thread puts at a time, and one takes.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._items: deque[tuple[Callable[[], object] | None, int]] = deque()
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._put = self._taken = 0
        self._closed = False

    def put(self, job: Callable[[], object] | None, nbytes: int = 0) -> None:
        """Append a job. Does not wait: what interrupts a wait must not lose the job, see `wait_for_room`."""
        if not self._closed:
            self._put += nbytes
            self._items.append((job, nbytes))
            self._wake.put(None)

    def wait_for_room(self) -> None:
        """Wait while more is held than the limit, unless it is a single item."""
        while self._put - self._taken > self.limit and len(self._items) > 1 and not self._closed:
            time.sleep(PAUSE)

    def get(self) -> Callable[[], object] | None:
        """Take the first job, or wait for one; None is the last."""
        while not self._closed:
            with contextlib.suppress(IndexError):
                job, nbytes = self._items.popleft()
                self._taken += nbytes
                return job
            self._wake.get()
        return None

    def close(self) -> None:
        """Drop what is left; later items are dropped too."""
        self._closed = True
        self._items.clear()
        self._wake.put(None)
