"""The tools that record: probe, the peer, and hooks that record nothing. Each is imported only where a row asks for it."""

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


class Hooks:
    """PyTorch's hooks where probe has some, which do nothing: what nobody who hooks modules in Python gets below."""

    def __init__(self, options: dict[str, Any]) -> None:
        from importlib.metadata import version

        self._removals: list[Callable[[], None]] = []
        self.version = version("torch")

    def open(self, trainee: Trainee, folder: Path) -> None:
        """Set hooks on the calls of modules; these set those on gradients."""
        for module in trainee.model.modules():
            before = module.register_forward_pre_hook(_watch_inputs, with_kwargs=True)
            after = module.register_forward_hook(_watch_outputs, with_kwargs=True, always_call=True)
            self._removals += [before.remove, after.remove]
        for parameter in trainee.model.parameters():
            self._removals.append(parameter.register_post_accumulate_grad_hook(_nothing).remove)

    def step(self, train: Callable[[], Any]) -> Any:
        """Train one step; return the loss."""
        return train()

    def wait(self) -> None:
        """Nothing to wait for."""

    def close(self) -> None:
        """Take the hooks off."""
        while self._removals:
            self._removals.pop()()


def _watch_inputs(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    _watch(*args, *kwargs.values())


def _watch_outputs(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
    _watch(*(output if isinstance(output, tuple) else (output,)))


def _watch(*values: Any) -> None:
    for value in values:
        if getattr(value, "requires_grad", False):
            value.register_hook(_nothing)


def _nothing(gradient: Any) -> None:
    """Do nothing."""


TOOLS = {"probe": Probe, "msprobe": Msprobe, "hooks": Hooks}
