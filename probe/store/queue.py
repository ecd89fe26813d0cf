"""What waits for the writer's thread."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable


class Queue:
    """First in, first out; holds at most ``limit`` bytes (or one item that is larger)."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._items: deque[tuple[Callable[[], object] | None, int]] = deque()
        self._bytes = 0
        self._closed = False
        self._changed = threading.Condition()

    def put(self, job: Callable[[], object] | None, nbytes: int = 0) -> None:
        """Append a job; wait while there is no room for its bytes."""
        with self._changed:
            while nbytes and self._items and self._bytes + nbytes > self.limit and not self._closed:
                self._changed.wait()
            if self._closed:
                return
            self._items.append((job, nbytes))
            self._bytes += nbytes
            self._changed.notify_all()

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
            self._changed.notify_all()
