"""A range of tokens (``tokens="128:160"``): what of a tensor is recorded, along the first axis that is as long as the model's ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from probe.adapters.base import TensorFacts
from probe.numbers.statistics import is_integer
from probe.recorder.run import Run


class Tokens:
    """Cuts tensors to the tokens that were chosen; ``note`` says once what is recorded otherwise."""

    def __init__(self, run: Run, note: Callable[..., None]) -> None:
        self._run, self._note = run, note
        self.counts: dict[int, int] = {}
        """of a step's passes: how many tokens the models were given"""

    def count(self, micro: int, tensors: Sequence[tuple[str, Any]]) -> None:
        """Take note of how many tokens a model is given in a pass: as many as its first integers have along their last axis."""
        facts = [self._run.adapter.facts(tensor) for _, tensor in tensors]
        self.counts[micro] = next((each.shape[-1] for each in facts if each.shape and is_integer(each.dtype)), 0)

    def of(
        self, tensor: Any, facts: TensorFacts, micro: int, wanted: slice, *place: Any
    ) -> tuple[Any, TensorFacts] | None:
        """Return what was chosen of a tensor: all of it if it has no axis of tokens, None if none of them is in it."""
        count = self.counts.get(micro, 0)
        if not count:
            self._note("a model was given no integers, so tensors with all tokens are recorded", *place)
        if not count or count not in facts.shape:
            return tensor, facts
        axis, length = facts.shape.index(count), len(range(count)[wanted])
        if not length:
            return self._note(f"forwards of fewer than {wanted.start + 1} tokens are not recorded", *place)
        with self._run.adapter.quiet():
            part = tensor[(slice(None),) * axis + (wanted,)]
        return part, facts._replace(shape=(*facts.shape[:axis], length, *facts.shape[axis + 1 :]))
