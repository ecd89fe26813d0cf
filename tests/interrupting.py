"""Ctrl-C at every place inside probe where Python can deliver it."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from types import FrameType, TracebackType

import probe
from probe.store.writer import _LIVE

_PROBE = str(Path(probe.__file__).parent)
_TOY = ("numpy_nn.py", "numpy_tensor.py")
"""the numpy framework: what it runs by itself is the user's program"""


def finished() -> None:
    """Wait until every file is as it will be."""
    end = time.monotonic() + 20
    for writer in [*_LIVE]:
        while not writer._ended:
            assert time.monotonic() < end, "it waits for something"
            time.sleep(0.001)


class Interrupt:
    """Raises KeyboardInterrupt, by the signal itself, at the n-th place inside probe, counted from 1.

    Signals are handled when a function begins and when a built-in one has returned. Places are counted between the
    beginning of a function of probe that the program calls, and its end, whatever it calls in turn.
    """

    def __init__(self, at: int = sys.maxsize) -> None:
        self.at = at
        self.count = 0
        self._inside: FrameType | None = None

    def __enter__(self) -> Interrupt:
        sys.setprofile(self._look)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        sys.setprofile(None)

    def _look(self, frame: FrameType, event: str, argument: object) -> None:
        if self._inside is None and event == "call":
            name = frame.f_code.co_filename
            if name.startswith(_PROBE) and not name.endswith(_TOY):
                self._inside = frame
        if self._inside is None:
            return
        if event == "return" and frame is self._inside:
            self._inside = None
        elif event in ("call", "c_return"):
            self.count += 1
            if self.count == self.at:
                sys.setprofile(None)
                signal.raise_signal(signal.SIGINT)
