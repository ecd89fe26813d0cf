"""`PrecisionDebugger` for verl's profiler of that name (docs/guide/integrations.md)."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

from probe import session
from probe.adapters.base import adapter_for
from probe.config import RecordConfig, load_config


class PrecisionDebugger:
    """Records what runs between `start` and `stop`: ``probe.h5``, ``probe-2.h5`` … in the folder of a step and stage.

    ``config_path`` has options of `probe.start`, or mindstudio-probe's. Steps end behind an optimizer's step.
    """

    _instance: ClassVar[PrecisionDebugger | None] = None

    def __init__(self, config_path: str | None = None, dump_path: str = ".", **others: Any) -> None:
        self._options = load_config(config_path)
        RecordConfig.from_options(self._options)
        self.service = SimpleNamespace(config=SimpleNamespace(dump_path=dump_path))  # verl writes the next folder here
        type(self)._instance = self

    def start(self, model: Any = None, **others: Any) -> None:
        """Begin to record a model, without what only spreads it over devices."""
        adapter, folder = adapter_for(model), Path(self.service.config.dump_path)
        while (inner := adapter.inside(model)) is not None:
            model = inner
        folder.mkdir(parents=True, exist_ok=True)
        session.start_by_itself(model, folder / "probe.h5", is_numbered=True, config=self._options)

    def stop(self) -> None:
        """End the recording: its file is complete."""
        session.stop()

    def step(self) -> None:
        """Do nothing: steps end where optimizers' do."""
