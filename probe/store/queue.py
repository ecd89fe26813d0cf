"""What waits for the writer's thread."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable


class Queue:
    """First in, first out; who waits for room after each item lets it hold ``limit`` bytes, or one item more."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._items: deque[tuple[Callable[[], object] | None, int]] = deque()
        self._bytes = 0
        self._closed = False
        self._changed = threading.Condition()

    def put(self, job: Callable[[], object] | None, nbytes: int = 0) -> None:
        """Append a job. Does not wait: what interrupts a wait must not lose the job, see `wait_for_room`."""
        with self._changed:
            if self._closed:
                return
            self._items.append((job, nbytes))
            self._bytes += nbytes
            self._changed.notify_all()

    def wait_for_room(self) -> None:
        """Wait while more is held than the limit, unless it is a single item."""
        with self._changed:
            while self._bytes > self.limit and len(self._items) > 1:
                self._changed.wait()

    def get(self) -> Callable[[], object] | None:
        """Take the first job, or wait for one; None is the last."""
        with self._changed:
            while not self._items:
                self._changed.wait()
            job, nbytes = self._items.popleft()
            self._bytes -= nbytes
            self._changed.notify_all()
            return job

    def close(self) -> None:
        """Drop what is left; later items are dropped too."""
        with self._changed:
            self._closed = True
            self._items.clear()
            self._items.append((None, 0))
            self._bytes = 0
            self._changed.notify_all()
