"""A few training steps of a model, recorded: what `auto_diff` does with each side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from probe import session
from probe.adapters.replaying import Replaying
from probe.errors import ConfigError
from probe.numbers.slots import flatten
from probe.numbers.statistics import is_integer

Micro = Mapping[str, Any]
"""the arguments of a model, by name"""


@dataclass(frozen=True)
class Training:
    """What runs."""

    model: Any
    micros: Sequence[Micro]
    """what the model is called with, once for each; their gradients add up"""
    loss: Callable[[Any], Any] | None
    """of what the model returns; the mean of its first tensor of real numbers when None"""
    update: Any
    """an optimizer, or a function that does its work; None for no update"""
    steps: int = 1
    backward: bool = True


def record(training: Training, replaying: Replaying, path: Path, modules: Sequence[str] | None = None) -> None:
    """Run the steps, and record them with values."""
    micros = [_given(replaying, training.model, micro) for micro in training.micros]
    phases = None if training.backward else ["init", "forward"]
    with session.capture(
        training.model, path, task="tensor", modules=modules, phases=phases, quiet=True, overwrite=True
    ):
        for _ in range(training.steps):
            losses = [lambda micro=micro: _loss(training, replaying, micro) for micro in micros]
            found = replaying.trained(training.model, losses, training.update, training.backward)
            session.step(loss=sum(found))


def _loss(training: Training, replaying: Replaying, micro: Micro) -> Any:
    output = training.model(**micro)
    if training.loss is not None:
        return training.loss(output)
    adapter = replaying.adapter
    real = [tensor for _, tensor in flatten(output, adapter.is_tensor) if not is_integer(adapter.facts(tensor).dtype)]
    if not real:
        raise ConfigError(
            "the model returns no tensor of real numbers to take the mean of; give loss_fns=(loss_a, loss_b)"
        )
    return real[0].mean()


def _given(replaying: Replaying, model: Any, micro: Micro) -> dict[str, Any]:
    """Return arguments with arrays as the framework's tensors."""
    return {
        name: replaying.tensor(value, None, model) if isinstance(value, np.ndarray) else value
        for name, value in micro.items()
    }
