"""Copies in a wider dtype that an optimizer trains in the stead of a model's parameters: mixed precision written by hand."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from probe.adapters.shared.user_objects import Identity
from probe.recorder.run import Run


class Masters:
    """Which of the tensors that optimizers train stand for which parameters.

    Megatron's optimizers and many training loops keep float32 copies of 16-bit parameters, let the optimizer change those,
    and copy them back behind its step.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self._known: dict[int, tuple[Identity, int | None]] = {}
        """by the id of a tensor that is no parameter: itself, and the index of the parameter that it is a copy of"""

    def index_of(self, tensor: Any) -> int | None:
        """Return the index of a parameter, or of the one that a tensor is a copy of; None for any other."""
        index = self.run.parameter_index.get(id(tensor))
        if index is None and id(tensor) in self._known:
            known, index = self._known[id(tensor)]
            return index if known.is_of(tensor) else None
        return index

    def look(self, trained: Iterable[Any]) -> None:
        """Look at what an optimizer is about to change: what is a copy is one now, as they were copied from each other."""
        run = self.run
        news = [each for each in trained if id(each) not in run.parameter_index and not self._is_known(each)]
        if not news:
            return
        taken = {index for known, index in self._known.values() if known.lives()}
        free = [
            index for index, named in enumerate(run.tensors)
            if not named.is_buffer and index not in taken and index not in run.gone
        ]  # fmt: skip
        for tensor in news:
            index = next((i for i in free if self._is_copy(tensor, run.tensors[i].tensor)), None)
            self._known[id(tensor)] = run.adapter.identity(tensor), index
            if index is not None:
                free.remove(index)

    def _is_copy(self, tensor: Any, parameter: Any) -> bool:
        try:
            return self.run.adapter.is_wider_copy(tensor, parameter)
        except Exception:  # noqa: BLE001  tensors without values, or of another device: they must not lose the others
            return False

    def _is_known(self, tensor: Any) -> bool:
        return id(tensor) in self._known and self._known[id(tensor)][0].is_of(tensor)
