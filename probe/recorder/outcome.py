"""What a recording holds in the end, and what makes it look like a mistake."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from probe.store.writing.growth import size


@dataclass(frozen=True)
class Outcome:
    """Counts of a whole recording, and where it is."""

    path: Path
    model: str
    """class names of the models"""
    steps_taken: int
    """calls of ``probe.step()``"""
    steps: int
    """that are in the file"""
    modules: int
    """that ran in them"""
    tensors: int
    has_forwards: bool
    """a model was called, in whatever step"""
    has_gradients: bool
    """a parameter of the models had a gradient"""
    is_trainable: bool
    """a parameter of the models requires one"""
    other_updates: int
    """steps of optimizers that updated other parameters only; 0 as soon as one updated the models'"""

    def __str__(self) -> str:
        """Return the line that `probe.stop` prints."""
        held = ", ".join(
            _counted(*each) for each in ((self.steps, "step"), (self.modules, "module"), (self.tensors, "tensor"))
        )
        return f"{held} → {self.path} ({_size_of(self.path)})"

    def mistake(self) -> str:
        """Say why this is probably not what was to be recorded, or return an empty text."""
        other = (
            f"; an optimizer updated other parameters {_counted(self.other_updates, 'time')}"
            if self.other_updates
            else ""
        )
        if not self.steps and (self.steps_taken or self.has_forwards):
            return f"no step was recorded: {_counted(self.steps_taken, 'step')} ended, and steps= chose none of them"
        if not self.tensors and not self.has_gradients and not self.has_forwards:
            return (
                f"nothing was recorded: no module of {self.model} ran between probe.start() and probe.stop(){other}. "
                "Give probe.start() the model object that you call, not a copy of it"
            )
        if other and self.is_trainable and not self.has_gradients:
            return (
                f"{self.model} ran, but it was not trained: none of its parameters had a gradient{other}. "
                "Give probe.start() the model object that you train"
            )
        return ""


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _size_of(path: Path) -> str:
    try:
        return size(path.stat().st_size)
    except OSError:  # removed meanwhile
        return "size unknown"
