"""What probe must say about every row of the fault suite, written down before the comparator was.

Both sides are the same 6-layer `Qwen2ForCausalLM` with the same weights and data, A with sdpa and B with
eager attention; the fault is planted on B. `check_truth.py` confirms the table without probe, by brute force.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml

PHASES = ("init", "forward", "loss", "backward", "gradient", "update")
KINDS = ("inputs", "init", "introduced", "missing", "nonfinite", "shape", "dtype", "update")


@dataclass(frozen=True)
class Truth:
    """One planted fault and the only right answer to it."""

    name: str
    description: str
    path: str
    """Module path on side A of the first divergence; "" is the root, the loss or the optimizer as a whole."""
    phase: str
    """The first phase in causal order in which the fault is real, one of `PHASES`."""
    kind: str
    """One of `KINDS`."""
    step: int = 0
    """The step of the first divergence."""
    steps_run: int = 1
    """How many steps both sides record."""
    baseline: str = "base"
    """The recording of side A that it is compared with; most rows share one."""
    also: tuple[str, ...] = ()
    """Globs of other paths that are as right as `path`, because the fault is in all of them."""
    told: tuple[str, str] | None = None
    """Phase and kind in which the fault shows in a recording, where those are others."""

    def names(self, path: str) -> bool:
        """Whether `path` is the right module."""
        return path == self.path or any(fnmatchcase(path, glob) for glob in self.also)

    def near(self, path: str) -> bool:
        """Whether `path` is not the right module but the one directly around it."""
        return not self.names(path) and "." in self.path and path == self.path.rpartition(".")[0]


@dataclass(frozen=True)
class Clean:
    """A pair of runs that differ in nothing that matters: anything but "aligned" is a false alarm."""

    name: str
    description: str
    steps_run: int = 1
    baseline: str = "base"


def _tuples(row: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}


_FOUND = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
FAULTS: tuple[Truth, ...] = tuple(Truth(**_tuples(row)) for row in _FOUND["faults"])
CLEAN: tuple[Clean, ...] = tuple(Clean(**row) for row in _FOUND["clean"])
