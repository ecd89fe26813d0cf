"""How far two curves of a kind may be apart. All thresholds of `probe curves` stand here, with where they come from.

M is the MindFormers precision guide (its migration standard and its case); C was found by clean trainings
(docs/guide/curves.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from probe.curve_comparison.reading.names import GRAD_NORM, LOSS, LR, is_of_the_machine
from probe.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Tolerance:
    """What is noise in one kind of curve."""

    absolute: float
    relative: float
    """without further runs of A, a step may differ by the larger of the two"""
    least: float
    """differences below this share of the value are never out of the band"""
    offset: float
    offset_relative: float
    """an offset up to both of these is none"""
    is_relative: bool
    """differences are held against the value in the same step: norms, whose size changes from step to step"""
    spikes_count: bool
    """a single step out of the widest band is a finding; else it takes `SUSTAINED` of `AHEAD`"""
    is_noisy: bool = True
    """it depends on what was trained; a learning rate does not"""


@dataclass(frozen=True, slots=True)
class MetricLimit:
    """How far the last values of a metric may be apart: what the user says, in the place of what is known of noise."""

    name: str
    limit: float
    is_relative: bool
    """a share of A's value"""

    def allowed(self, a: np.ndarray) -> np.ndarray:
        """Return the largest difference that is accepted, for values of A."""
        return self.limit * np.abs(a) if self.is_relative else np.full(a.shape, self.limit)

    def __str__(self) -> str:
        return f"{100 * self.limit:.6g} %" if self.is_relative else f"{self.limit:.6g}"


KINDS = {
    LOSS: Tolerance(0.03, 0.01, 1e-5, 0.002, 0.002, is_relative=False, spikes_count=True),
    GRAD_NORM: Tolerance(0.0, 0.10, 1e-4, 0.0, 0.05, is_relative=True, spikes_count=False),
    LR: Tolerance(0.0, 1e-6, 1e-6, 0.0, 1e-6, is_relative=True, spikes_count=True, is_noisy=False),
}
"""Loss: M's case ends with differences below 0.03, its standard allows 1 % on average; at lr = 0 it calls 0.001 per step
as expected, so an offset of 0.002 is none. Gradient norm: M's standard, 10 %. Learning rate: computed, not trained; M's
neighbours miss 3 % of 3e-5 by an absolute 1e-6. ``least``: C."""
OTHER = Tolerance(0.0, 0.01, 1e-4, 0.0, 0.01, is_relative=True, spikes_count=False)
LOCAL_NORM = KINDS[GRAD_NORM]
LEAST_16_BIT = 2e-3
"""what takes the place of ``least`` for local norms where 16-bit numbers were recorded: half a unit of bfloat16"""

WARM_UP = 8
"""steps after which what went before says how large the noise is (C)"""
HISTORY = 100
"""steps that are looked back on"""
GAIN = 8
"""a difference this many times larger than all in `HISTORY` is no noise (C)"""
OUTLYING = 3
"""a difference this many times larger than all in `HISTORY` is no noise either, once `SEEN` steps are known (benchmarks/curve_power.py)"""
SEEN = 32
CHANCE = 1e-4
"""how likely noise may look like a fault in the first steps: so likely do `n` differences stay below `CHANCE` ** (1 / n) times the next"""
LOOK_AHEAD = 50
"""steps ahead that count for the spread of further runs of A"""
AHEAD = 5
SUSTAINED = 3
"""steps out of the band among the `AHEAD` that begin with the first"""
WIDENED = {2: 2.0, 3: 1.5}
"""by the number of runs of A: the band reaches this many times their largest spread so far beyond them"""
VANISHING = 0.02
"""gradients smaller than this share of their kind's median are rounding in part, and held against that share (C)"""


def tolerance_of(name: str) -> Tolerance:
    """Return what is noise in a series, by its name."""
    if name in KINDS:
        return KINDS[name]
    lowered = name.lower().replace("_", " ").replace("-", " ")
    if lowered.startswith(LR):
        return KINDS[LR]
    if GRAD_NORM.replace("_", " ") in lowered:
        return KINDS[GRAD_NORM]
    return KINDS[LOSS] if is_loss(name) else OTHER


def is_loss(name: str) -> bool:
    """Tell names like ``aux_loss`` and ``validation lm loss value``, but not ``loss scale``."""
    lowered = name.lower().replace("_", " ").replace("-", " ")
    return "loss" in lowered and "scale" not in lowered and "ppl" not in lowered


def decides(name: str) -> bool:
    """Return True if a series counts for the verdict: losses, gradient norms and learning rates do."""
    return tolerance_of(name) is not OTHER and not is_of_the_machine(name)


def metric_limits(given: Iterable[str] | Mapping[str, str | float]) -> dict[str, MetricLimit]:
    """Return limits by the names of metrics.

    Parameters
    ----------
    given
        ``"accuracy:0.15%"`` (of A's value), ``"accuracy:0.002"`` (absolute), or the same as a mapping

    Raises
    ------
    ConfigError
        there is no name, or the limit is no number from 0
    """
    pairs = given.items() if isinstance(given, Mapping) else [_name_and_limit(each) for each in given]
    return {name: _limit(name, str(limit).strip()) for name, limit in pairs}


def _name_and_limit(text: str) -> tuple[str, str]:
    name, _, limit = text.rpartition(":")
    return name.strip(), limit


def _limit(name: str, text: str) -> MetricLimit:
    is_relative = text.endswith("%")
    try:
        value = float(text.removesuffix("%")) / (100 if is_relative else 1)
    except ValueError:
        value = math.nan
    if not name or not 0 <= value < math.inf:
        raise ConfigError(
            f"--metric {name}:{text}: expected a name and a limit, such as accuracy:0.15% or accuracy:0.002"
        )
    return MetricLimit(name, value, is_relative)
