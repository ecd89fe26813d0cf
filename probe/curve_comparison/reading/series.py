"""One curve of one run, and all curves of a run, wherever they were read from."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from probe.curve_comparison.reading.names import GRAD_NORM, LR, canonical
from probe.records import ModuleInfo, OptimizerGroup, ParameterInfo

_NUMBER = re.compile(r"\s*[+-]?(\d+)(?:\.(\d*))?(?:[eE]([+-]?\d+))?\s*$")

_LOCAL_NORM = "local_norm"
"""MindFormers' name for the norm of one parameter's gradient, which stands behind a slash"""
_MOST_OF_A_RATE = 1e-3
"""0.001 may be the whole of a learning rate, and not what is left of it by printing"""


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """A number that was written down at every step, or at some."""

    name: str
    """``loss``, ``grad_norm``, ``lr`` or as it was written"""
    steps: np.ndarray
    """int64, ascending, each once"""
    values: np.ndarray
    """float64, may be NaN or infinite"""
    written: str = ""
    """what the source calls it"""
    unit: float = 0.0
    """the last digit that was printed is worth this much: 0.001 for ``10.617``"""
    relative_unit: float = 0.0
    """the same relative to the value, for what was printed as ``1.086573E+01``"""

    def resolution(self, values: np.ndarray) -> np.ndarray:
        """Return what the last printed digit of each value is worth; of a learning rate at most a thousandth."""
        finite = np.where(np.isfinite(values), np.abs(values), 0.0)
        units = np.maximum(self.unit, self.relative_unit * finite)
        return np.minimum(units, _MOST_OF_A_RATE * finite) if self.name.startswith(LR) else units


@dataclass(frozen=True, slots=True)
class RecordedModel:
    """What a recording knows beyond its curves."""

    run_id: str
    modules: list[ModuleInfo]
    parameters: list[ParameterInfo]
    groups: Mapping[int, list[OptimizerGroup]]
    """the optimizer's parameter groups, by step"""
    full_steps: frozenset[int]
    """steps of which more than norms was recorded"""
    has_16_bits: bool = False
    """something that was recorded is of a 16-bit (or narrower) floating-point type"""


@dataclass(frozen=True, slots=True)
class Given:
    """A tensor of a step's batch, as the model was given it."""

    micro: int
    slot: str
    dtype: str
    shape: tuple[int, ...]
    hash: tuple[int, int, int]
    """kind, higher and lower half"""
    tensor: int
    """number of its values in the file, −1 where there are none"""

    @property
    def name(self) -> str:
        """How it is called: by its name in the call, and the number of the micro-batch behind the first."""
        plain = f"argument {self.slot}" if self.slot.isdecimal() else self.slot
        return f"{plain} of micro-batch {self.micro}" if self.micro else plain


@dataclass(frozen=True, slots=True)
class RunCurves:
    """All curves of one run."""

    path: str
    kind: str
    """what the file is: ``probe recording``, ``Megatron log`` …"""
    series: Mapping[str, Series]
    norms: Mapping[str, Series] = field(default_factory=dict)
    """norm of each parameter's gradient as the optimizer used it, by the parameter's name"""
    notes: tuple[str, ...] = ()
    """what is to be known about the reading"""
    model: RecordedModel | None = None
    """only of recordings"""
    batches: Mapping[int, tuple[Given, ...]] = field(default_factory=dict)
    """what the model was given, by step; only of recordings"""


class Collector:
    """Gathers numbers by name and step as a file is read."""

    def __init__(self) -> None:
        self._values: dict[str, dict[int, tuple[float, str]]] = {}
        self._twice: set[int] = set()

    def add(self, step: int, written: str, value: float, text: str = "") -> None:
        """Take in one number; a later one of the same step takes its place.

        Parameters
        ----------
        step
            number of the step
        written
            the name in the file
        value
            the number
        text
            as it was printed, which tells how much of it is known; empty where nothing was lost
        """
        found = self._values.setdefault(written, {})
        if step in found:
            self._twice.add(step)
        found[step] = (value, text)

    def __bool__(self) -> bool:
        return bool(self._values)

    @property
    def notes(self) -> tuple[str, ...]:
        """Say which steps stood in the file more than once."""
        if not self._twice:
            return ()
        first, last = min(self._twice), max(self._twice)
        steps = f"step {first} stands" if first == last else f"steps {first} to {last} stand"
        return (f"{steps} there more than once (a restart?): what came last counts",)

    def curves(self, path: Path, kind: str, notes: tuple[str, ...] = ()) -> RunCurves:
        """Return the curves of a file; norms of single gradients apart, and without gradient norms that were not computed."""
        series = self.series()
        norms = {
            name.partition("/")[2]: series.pop(name) for name in [*series] if name.partition("/")[0] == _LOCAL_NORM
        }
        total = series.get(GRAD_NORM)
        if total is not None and len(total.values) > 1 and not total.values.any():
            del series[GRAD_NORM]
            notes = (f"{total.written} is 0 in all {len(total.values)} steps: it was not computed there", *notes)
        return RunCurves(str(path), kind, series, norms, (*self.notes, *notes))

    def series(self) -> dict[str, Series]:
        """Return the series by name; where two names mean the same, one keeps the name it was written under."""
        found: dict[str, Series] = {}
        for written in sorted(self._values, key=lambda name: (canonical(name) != name, len(name), name)):
            name = canonical(written)
            if name in found:
                name = written
            found[name] = self._series(name, written)
        return found

    def _series(self, name: str, written: str) -> Series:
        pairs = sorted(self._values[written].items())
        values = np.array([value for _, (value, _) in pairs], np.float64)
        texts = [text for _, (_, text) in pairs if text]
        steps = np.array([step for step, _ in pairs], np.int64)
        return Series(name, steps, values, written, *_units(texts))


def _units(texts: list[str]) -> tuple[float, float]:
    """Return what the last printed digit is worth, (absolute, relative): the finest among the texts.

    All numbers of a log are printed by one format, and trailing zeros may have been dropped: of a single number, or of
    ``1e-05``, nothing is known.
    """
    if len(set(texts)) == 1:
        return 0.0, 0.0
    fixed, scientific = math.inf, math.inf
    for text in texts:
        found = _NUMBER.match(text)
        if found is None:
            continue
        digits = len(found[2] or "")
        if found[3] is None:
            fixed = min(fixed, 10.0**-digits)
        elif digits:
            scientific = min(scientific, 10.0**-digits)
    if math.isfinite(scientific):
        return 0.0, scientific
    return (fixed if math.isfinite(fixed) else 0.0), 0.0
