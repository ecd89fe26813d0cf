"""The tools that record: probe, and the peer. Each is imported only where a row asks for it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.cost.model import Trainee


class Probe:
    """probe, with the options of `probe.start`."""

    def __init__(self, options: dict[str, Any]) -> None:
        import probe

        self._probe, self._options = probe, options
        self.version = probe.__version__

    def open(self, trainee: Trainee, folder: Path) -> None:
        """Set hooks on a model; its optimizer is named so that no other one is slowed."""
        self._probe.start(trainee.model, folder / "a.h5", optimizer=trainee.optimizer, **self._options)

    def step(self, train: Callable[[], Any]) -> Any:
        """Train and record one step; return the loss."""
        loss = train()
        self._probe.step(loss=loss)
        return loss

    def wait(self) -> None:
        """Wait until all that was recorded is in the file."""
        written = threading.Event()
        self._probe.session._current.run.writer._queue.put(written.set)
        written.wait()

    def close(self) -> None:
        """Take the hooks off."""
        self._probe.stop()


class Msprobe:
    """mindstudio-probe; it has one debugger per process, so the folder stays that of the first call."""

    def __init__(self, options: dict[str, Any]) -> None:
        from importlib.metadata import version

        from msprobe.pytorch import PrecisionDebugger

        self._options = options
        self._make = PrecisionDebugger
        self._debugger: Any = None
        self._model: Any = None
        self.version = version("mindstudio-probe")

    def open(self, trainee: Trainee, folder: Path) -> None:
        """Make the debugger; `step` sets the hooks."""
        self._model = trainee.model
        if self._debugger is None:
            task = self._options["task"]
            config = {
                "dump_path": str(folder),
                "rank": [],
                "step": [],
                "async_dump": False,
                task: {"scope": [], "list": [], "data_mode": ["all"]},
                **self._options,
            }
            path = folder.parent / "config.json"
            path.write_text(json.dumps(config), encoding="utf-8")
            self._debugger = self._make(config_path=str(path))

    def step(self, train: Callable[[], Any]) -> Any:
        """Train and record one step, as its manual shows."""
        self._debugger.start(model=self._model)
        loss = train()
        self._debugger.stop()
        self._debugger.step()
        return loss

    def wait(self) -> None:
        """Nothing to wait for: all is written in the step."""

    def close(self) -> None:
        """Its hooks cannot be taken off; they rest between `stop` and `start`."""


TOOLS = {"probe": Probe, "msprobe": Msprobe}
