"""A few training steps of a model, recorded: what `auto_diff` does with each side.

Two frameworks may not bear each other in one process. Then this module runs as a program, which is told what to do on its standard input.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from probe import session
from probe.adapters.replaying import Replaying
from probe.errors import ConfigError, RecordingError
from probe.numbers.slots import flatten
from probe.numbers.statistics import is_integer
from probe.records import Phase
from probe.replaying.factories import function_of, model_of
from probe.replaying.passing.writing import Written
from probe.replaying.prepared import as_tensors, verbs_for

Micro = Mapping[str, Any]
"""the arguments of a model, by name"""
_LAST = 2000
"""letters of what a failed process said last"""


@dataclass(frozen=True)
class Training:
    """What runs."""

    model: Any
    micros: Sequence[Micro]
    """what the model is called with, once for each; their gradients add up"""
    loss: Callable[[Any], Any] | None
    """of what the model returns; the mean of its first tensor of real numbers when None"""
    update: Any
    """an optimizer, or a function that does its work; None for no update. What runs elsewhere has names: of model, loss and update"""
    steps: int = 1
    backward: bool = True


def record(
    training: Training,
    replaying: Replaying,
    path: Path,
    modules: Sequence[str] | None = None,
    begun: Path | None = None,
) -> None:
    """Run the steps, and record them with values; before that all weights in a file of their own, where it is given."""
    if begun is not None:
        begun.unlink(missing_ok=True)
        weights = Written(replaying.adapter, training.model, begun, 0)
        weights.weights(Phase.INIT)
        weights.close()
    micros = [as_tensors(replaying, training.model, micro) for micro in training.micros]
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


# Elsewhere


def record_elsewhere(training: Training, path: Path, modules: list[str] | None, begun: Path | None) -> None:
    """Record a training in a new process; what it is made of is named.

    Raises
    ------
    ConfigError
        what it is to be given cannot be sent there
    RecordingError
        the process failed
    """
    for what, name in (("loss_fns", training.loss), ("optimizers", training.update)):
        if name is not None and not isinstance(name, str):
            raise ConfigError(
                f"{what}: that of a model which is named must be named too (module:function), as it runs elsewhere"
            )
    plain = [[value for value in micro.values() if not isinstance(value, np.ndarray)] for micro in training.micros]
    try:
        json.dumps(plain)
    except TypeError:
        raise ConfigError(
            "inputs of a model that is named must be numpy arrays or plain values, as it runs elsewhere"
        ) from None
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")])}
    job = pickle.dumps((training, path, modules, begun))
    done = subprocess.run([sys.executable, "-m", __name__], input=job, capture_output=True, env=environment)
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip()[-_LAST:]
        raise RecordingError(f"{training.model} could not be recorded in a process of its own: {last}")


def _main() -> None:
    """Do the job that stands on standard input."""
    named, path, modules, begun = pickle.load(sys.stdin.buffer)
    model, own = model_of(named.model)
    micros: list[Any] = [{**own, **micro} for micro in named.micros] or [own]
    loss = None if named.loss is None else function_of(named.loss)
    update = None if named.update is None else function_of(named.update)(model)
    training = Training(model, micros, loss, update, named.steps, named.backward)
    record(training, verbs_for(model, "probe.auto_diff()"), path, modules, begun)


if __name__ == "__main__":
    _main()
