"""``ProbeCallback`` for ``mindspore.train.Model.train``, in PyNative mode."""

from __future__ import annotations

import os
from typing import Any, Unpack

from mindspore.train import Callback

from probe.config import RecordOptions
from probe.integrations.recording import TrainerRecording, harmless


class ProbeCallback(Callback):
    """Records what ``Model.train`` trains: ``model.train(..., callbacks=[ProbeCallback("a.h5")])``.

    A step of the recording is one of the Model's. Evaluation between two steps stands in the later one. Each call of ``train()``
    writes a file of its own: ``a.h5``, ``a-2.h5`` … In graph mode no hooks run: it says so, and nothing is recorded.

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

    @harmless
    def on_train_begin(self, run_context: Any) -> None:
        """Begin to record."""
        known = run_context.original_args()
        self._recording.begin(known.network, known.cur_step_num)

    @harmless
    def on_train_step_begin(self, run_context: Any) -> None:
        """Keep the learning rate."""
        known = run_context.original_args()
        # the latter where a Model was given no other
        self._recording.note_rate(known.optimizer or known.train_network.optimizer)

    @harmless
    def on_train_step_end(self, run_context: Any) -> None:
        """End a step."""
        outputs = run_context.original_args().net_outputs
        # with loss scale: loss, overflow, scale
        self._recording.end_step(outputs[0] if isinstance(outputs, (tuple, list)) else outputs)

    @harmless
    def on_train_end(self, run_context: Any) -> None:
        """End the recording."""
        self._recording.end()
