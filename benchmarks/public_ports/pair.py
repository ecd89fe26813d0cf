"""What a pair of public packages is: two sides, the weights of one made of the other's, the truth, the faults."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.grading import Truth

Batch = dict[str, Any]
Made = tuple[Any, ...]
"""how a tensor of B is made: a function, and the names of A's tensors that it is given"""
_PLACE = re.compile(r"\\\{(\w+)\\\}")


@dataclass(frozen=True)
class Side:
    """One implementation."""

    packages: tuple[str, ...]
    """name and version"""
    build: Callable[[], Any]
    """returns the model; of B, its weights are replaced by those made of A's"""
    loss: Callable[[Any, Batch], Any]
    """runs the model on a batch, as this code base's users do; returns the loss"""


@dataclass(frozen=True)
class Fault:
    """One mistake of a porter, planted in B."""

    name: str
    plant: Callable[[Any], None]
    """changes B's `training.Training` before the first step; see `planting`"""
    places: tuple[str, ...]
    """globs of the modules of A that are the right answer; ``""`` is the model, the loss or the optimizer as a whole"""
    phases: tuple[str, ...]
    """init, forward, loss, backward, gradient or update: where it is seen first; others are as right"""
    step: int = 0
    """the first step in which it makes a difference"""
    places_b: tuple[str, ...] = ()
    """modules of B that are right where what is found has no counterpart in A: a module that B alone has"""

    @property
    def truth(self) -> Truth:
        """The right answer, in the words of the localisation benchmark."""
        return Truth(self.places[0], self.phases, self.step, self.places[1:], self.places_b)


@dataclass(frozen=True)
class Pair:
    """Two public implementations of one model."""

    name: str
    a: Side
    b: Side
    batch: Callable[[int], Batch]
    """returns the batch of a step"""
    faults: tuple[Fault, ...]
    weights: Mapping[str, Made] | None = None
    """
    B's parameters and buffers that are not a copy of the one of the same name in the paired module: ``{i}`` as above. A
    fault of the pair's file is one tensor of B that is not made at all: that is an error
    """
    convert: Callable[[Any, Any], None] | None = None
    """sets the weights of B, given both models, where ``weights`` cannot say it: another framework"""
    training_b: Callable[..., Any] | None = None
    """what trains B, where it is not `training.Training`"""
    set: str = "tuned"
    """
    tuned, or blind: written by somebody who had not read how probe decides, and scored once, not tuned on. One that was looked at
    after it was scored is tuned
    """
    steps: int = 2
    learning_rate: float = 1e-3

    @functools.cached_property
    def _tables(self) -> dict[str, Any]:
        file = Path(__file__).parent / "pairs" / f"{self.name}.yaml"
        return yaml.safe_load(file.read_text(encoding="utf-8"))

    @property
    def true_pairs(self) -> Mapping[str, str | list[str]]:
        """
        Path in A to path in B; ``{i}`` stands for a number. A list, or a key with ``|``: several modules of one side are
        one on the other.
        """
        return self._tables["true_pairs"]

    @property
    def mapping(self) -> dict[str, Any]:
        """The layer mapping that a user would write, from B's side."""
        return self._tables["mapping"]

    def fault(self, name: str) -> Fault:
        """Return the fault of that name."""
        return next(fault for fault in self.faults if fault.name == name)

    def relations(self, paths_a: Iterable[str]) -> set[tuple[str, str]]:
        """Return every true (path in A, path in B); of several for one, each with the one."""
        paths = list(paths_a)
        return {
            (a, b)
            for key, value in self.true_pairs.items()
            for left in key.split("|")
            for right in (value if isinstance(value, list) else (value,))
            for a, b in expanded(left, right, paths)
        }


def expanded(pattern: str, other: str, names: Iterable[str]) -> list[tuple[str, str]]:
    """Return each of the names that the pattern fits, with what it makes of the other pattern."""
    form = re.compile(_PLACE.sub(r"(?P<\1>\\d+)", re.escape(pattern)))
    matches = [(name, form.fullmatch(name)) for name in names]
    return [(name, other.format(**match.groupdict())) for name, match in matches if match]
