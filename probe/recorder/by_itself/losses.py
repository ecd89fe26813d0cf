"""The loss of a step, found in what models and loss functions return: for programs that hand none to ``probe.step()``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from probe.adapters.base import Adapter
from probe.adapters.shared.user_objects import attribute
from probe.recorder.given import as_number

NAME = "loss"
"""what models call it in the mapping or object that they return"""
SHARES = "num_items_in_batch"
"""the argument by which transformers tells a model over how many items of all micro-batches its loss is averaged: such losses add up"""


class Losses:
    """The losses that were returned since `take` was called last; ``seen`` is called with every one."""

    def __init__(self, adapter: Adapter, seen: Callable[[object], None]) -> None:
        self._adapter, self._seen = adapter, seen
        self._found: list[Any] = []
        self._add_up = False

    def given(self, kwargs: Mapping[str, Any]) -> None:
        """Look at the keyword arguments that a model is called with."""
        self._add_up = self._add_up or kwargs.get(SHARES) is not None

    def returned(self, output: object) -> None:
        """Look at what a model or a loss function returned; what can't be differentiated is no loss."""
        loss = next(self._losses_in(output), None)
        if loss is not None:
            self._seen(loss)
            with self._adapter.quiet():
                self._found.append(self._adapter.snapshot(loss))

    def take(self) -> float | None:
        """Return the mean of the losses, or their sum where each is a share of the whole; None where there was none."""
        found, self._found = self._found, []
        add_up, self._add_up = self._add_up, False
        if not found:
            return None
        total = math.fsum(as_number(each) for each in found)
        return total if add_up else total / len(found)

    def _losses_in(self, output: object) -> Iterator[Any]:
        if self._is_loss(output):
            yield output
        elif isinstance(output, Mapping):
            yield from (each for each in [output.get(NAME)] if self._is_loss(each))
        elif isinstance(output, (tuple, list)):
            yield from (each for each in [attribute(output, NAME), *output] if self._is_loss(each))
        elif self._is_loss(attribute(output, NAME)):
            yield attribute(output, NAME)

    def _is_loss(self, value: object) -> bool:
        adapter = self._adapter
        if not adapter.is_tensor(value) or not adapter.requires_grad(value):
            return False
        return math.prod(adapter.facts(value).shape) == 1
