"""What the callbacks for all trainers share: a recording that raises nothing into the trainer."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from probe import session, targets
from probe.adapters.base import Adapter, adapter_for
from probe.config import RecordOptions
from probe.errors import warn
from probe.messages import say
from probe.recorder.by_itself.losses import Losses

_Method = TypeVar("_Method", bound=Callable[..., None])
_NOT_OF_THE_FILE = ("optimizer", "quiet")
"""options of `probe.start` that do not say what is recorded"""


def harmless(method: _Method) -> _Method:
    """Let no exception out of a callback's method: it is said, and the training goes on."""

    @functools.wraps(method)
    def safe(*args: Any, **kwargs: Any) -> None:
        try:
            method(*args, **kwargs)
        except Exception as error:  # noqa: BLE001  the trainer's loop must go on whatever happened here
            with contextlib.suppress(Exception):  # the user has made warnings errors
                warn(f"ProbeCallback: {error}")

    return safe  # type: ignore[return-value]


class TrainerRecording:
    """A recording of the model in somebody's training loop.

    It takes what `probe.start` does; a second training of the same trainer writes ``a-2.h5``. Raises ConfigError
    where an option makes no sense, ExistsError where the file is already there, and ``overwrite`` is off.
    """

    def __init__(self, path: str | os.PathLike[str] | None, options: RecordOptions) -> None:
        targets.check(path, **{name: value for name, value in options.items() if name not in _NOT_OF_THE_FILE})
        self._path = None if path is None else Path(path)
        self._options = options
        self._trainings = 0
        self._is_mine = False
        self._adapter: Adapter | None = None
        self._losses: Losses | None = None
        self._removal: Callable[[], None] | None = None
        self._rate: float | None = None

    def begin(self, model: Any, first_step: int = 0) -> None:
        """Begin to record a model; ``first_step`` is how many steps the trainer counts before, which it has resumed from."""
        if self._is_mine:  # the training before was left by an exception
            self.end()
        if session.is_recording() and not session.steps_by_itself():
            warn(
                "ProbeCallback: a recording is under way, which the program began by probe.start(): this callback does nothing"
            )
            return
        self._trainings += 1
        adapter = adapter_for(model)
        while (inner := adapter.inside(model)) is not None:
            model = inner
        session.start(model, self._numbered(), **self._options)
        self._is_mine, self._adapter = True, adapter
        self._losses = Losses(adapter, session.look_at_loss)
        losses = self._losses
        self._removal = adapter.on_call(
            model, lambda args, kwargs: losses.given(kwargs), lambda output, _: losses.returned(output)
        )
        if first_step:
            session.tell(f"the trainer has resumed: step 0 of the recording is its step {first_step}")

    def note_rate(self, optimizer: Any) -> None:
        """Keep the learning rate of the step that an optimizer is about to make."""
        if self._is_mine and self._adapter is not None:
            groups = self._adapter.groups_of(optimizer)
            rate = groups[0].hyper.get("lr") if groups else None
            self._rate = float(rate) if isinstance(rate, (int, float)) else None

    def end_step(self, loss: Any = None, factor: float = 1.0) -> None:
        """End a step, with its loss; without it, with what the model has returned, multiplied by ``factor``."""
        if not self._is_mine:
            return
        returned = self._losses.take() if self._losses is not None else None
        if loss is None and returned is not None:
            loss = returned * factor
        rate, self._rate = self._rate, None
        session.step(loss, **({} if rate is None else {"lr": rate}))

    def end(self) -> None:
        """End the recording."""
        if self._removal is not None:
            self._removal()
        self._removal = self._losses = self._adapter = None
        if self._is_mine:
            self._is_mine = False
            session.stop()

    def _numbered(self) -> Path | None:
        """Return the file of this training."""
        if self._path is None or self._trainings == 1:
            return self._path
        path = self._path.with_name(f"{self._path.stem}-{self._trainings}{self._path.suffix}")
        say(f"this is training {self._trainings} of the trainer: it is recorded to {path}")
        return path
