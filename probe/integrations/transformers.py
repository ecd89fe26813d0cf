"""``ProbeCallback`` for the Trainer of transformers."""

from __future__ import annotations

import os
from typing import Any, Unpack

from transformers import TrainerCallback

from probe.config import RecordOptions
from probe.integrations.recording import TrainerRecording, harmless


class ProbeCallback(TrainerCallback):
    """Records what a Trainer trains: ``Trainer(..., callbacks=[ProbeCallback("a.h5")])``.

    A step of the recording is one of the Trainer's (``global_step``), with all of its micro-batches. Evaluation between two steps
    stands in the later one. Each call of ``train()`` writes a file of its own: ``a.h5``, ``a-2.h5`` …

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
        self._recording = TrainerRecording(path, options)

    @harmless
    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Begin to record."""
        self._recording.begin(model, state.global_step)

    @harmless
    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any) -> None:
        """Keep the learning rate."""
        self._recording.note_rate(optimizer)

    @harmless
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End a step."""
        # then each rank's loss is its share of all ranks'
        shared = getattr(args, "average_tokens_across_devices", False)
        self._recording.end_step(factor=args.world_size if shared else 1.0)

    @harmless
    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End the recording."""
        self._recording.end()
