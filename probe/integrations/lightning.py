"""``ProbeCallback`` for the Trainer of Lightning, under either of its names: ``lightning`` and ``pytorch_lightning``."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any, Unpack

from probe.config import RecordOptions
from probe.integrations.recording import TrainerRecording, harmless

_NAMES = ("lightning.pytorch", "pytorch_lightning")
"""two packages with the same classes, which are not each other's: a trainer takes callbacks of its own alone"""


def _base() -> type:
    """Return the Callback of the package that the program uses: the one that is imported already, or the first that is there."""
    loaded = [name for name in _NAMES if name in sys.modules]
    for name in [*loaded, *_NAMES]:
        try:
            return importlib.import_module(name).Callback
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise
    raise ModuleNotFoundError(
        "probe.integrations.lightning needs lightning or pytorch_lightning; neither is installed", name="lightning"
    )


class ProbeCallback(_base()):  # type: ignore[misc]
    """Records what a Trainer trains: ``Trainer(..., callbacks=[ProbeCallback("a.h5")])``.

    A step of the recording is a batch, or what ``accumulate_grad_batches`` makes one of, in which optimizers made steps; so with
    manual optimization it holds the turns of all optimizers. Validation between two steps stands in the later one; the sanity
    check isn't recorded. Each call of ``fit()`` writes a file of its own: ``a.h5``, ``a-2.h5`` …

    Parameters
    ----------
    path
        as `probe.start` takes it
    options
        the other options of `probe.start`: ``steps``, ``task``, ``modules`` …

    Raises
    ------
    ConfigError
        an option makes no sense
    ExistsError
        the file is already there, and ``overwrite`` is off
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, **options: Unpack[RecordOptions]) -> None:
        super().__init__()
        self._recording = TrainerRecording(path, options)
        self._losses: list[Any] = []
        self._made = 0
        """steps of optimizers until the last step of the recording"""

    @harmless
    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to record."""
        self._made, self._losses = trainer.global_step, []
        self._recording.begin(pl_module, trainer.global_step)

    @harmless
    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Keep the learning rate."""
        self._recording.note_rate(optimizer)

    @harmless
    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """End a step, if an optimizer made one."""
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if loss is not None:
            self._losses.append(loss.detach())
        if trainer.global_step != self._made:
            losses, self._losses, self._made = self._losses, [], trainer.global_step
            # Lightning has divided them by the number of batches
            self._recording.end_step(sum(losses) if losses else None)

    @harmless
    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """End the recording."""
        self._recording.end()

    @harmless
    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """End the recording."""
        self._recording.end()
