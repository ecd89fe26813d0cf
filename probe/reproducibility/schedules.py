"""`compare_schedules`: the learning rates of two schedules, step by step, held against each other relatively."""

from __future__ import annotations

import importlib
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from probe.errors import ConfigError

STEPS = 1000
_FRAMEWORKS = ("torch", "paddle", "mindspore")
_RELATIVE = 1e-6
_ROUNDED = 2.0**-22
"""of the largest rate: schedules that compute in float32 round as much, which is everything where a rate falls to 0"""
_MOST = 10_000_000
_WIDTH = 80


@dataclass(frozen=True)
class ScheduleComparison:
    """The learning rates of two schedules."""

    a: np.ndarray = field(repr=False)
    """float64, shape (groups, steps): one group where all parameters have the same rate"""
    b: np.ndarray = field(repr=False)
    relative: np.ndarray = field(repr=False)
    """\\|B − A\\| relative to the larger of both; 0 where both are 0"""
    first: int | None
    """the first step in which they differ by more than rounding, from 0"""
    group: int
    """in which group that is"""
    hints: tuple[str, ...]
    """how B's rates are related to A's"""

    @property
    def steps(self) -> int:
        """How many steps were simulated."""
        return self.a.shape[1]

    @property
    def equal(self) -> bool:
        """Whether all rates are the same but for rounding."""
        return self.first is None

    def __bool__(self) -> bool:
        return self.equal

    def __str__(self) -> str:
        """Return the answer in words."""
        if self.first is None:
            return f"the learning rates agree in {_counted(self.steps)} (rel at most {self.relative.max():.1e})"
        group = f", group {self.group}" if len(self.a) > 1 else ""
        a, b = self.a[self.group, self.first], self.b[self.group, self.first]
        worst = int(np.nan_to_num(self.relative[self.group], nan=np.inf).argmax())
        lines = [
            f"the learning rates part at step {self.first}{group}:",
            f"  {a:.6g} in A, {b:.6g} in B ({_percent(self.relative[self.group, self.first])})",
            f"  most at step {worst}: {_percent(self.relative[self.group, worst])}, of {_counted(self.steps)}",
        ]
        wrapped = [textwrap.fill(hint, _WIDTH, initial_indent="  → ", subsequent_indent="    ") for hint in self.hints]
        return "\n".join([*lines, *wrapped])


def compare_schedules(a: Any, b: Any, steps: int | None = None, relative: float = _RELATIVE) -> ScheduleComparison:
    """Simulate two learning-rate schedules, and name the first step in which they differ.

    Parameters
    ----------
    a, b
        a scheduler of PyTorch (so transformers' too) or PaddlePaddle, from where it stands; a ``LearningRateSchedule`` of
        MindSpore; a function of the step, which counts from 0; or a sequence of rates. None of them is changed: schedulers
        are copied.
    steps
        how many; by default as many as a sequence has, else 1000
    relative
        rates may differ by this share of the larger one, and by the rounding of float32 of the largest of all

    Raises
    ------
    ConfigError
        one of them is no schedule, depends on more than the step, has too few rates, or they have other numbers of parameter
        groups
    """
    lengths = [len(each) for each in (a, b) if _is_sequence(each)]
    count = min(lengths, default=STEPS) if steps is None else steps
    if isinstance(count, bool) or not isinstance(count, int) or not 0 < count <= _MOST:
        raise ConfigError(f"compare_schedules: steps={count!r}; expected a number from 1 to {_MOST:,}")
    mine, theirs = _rates("A", a, count), _rates("B", b, count)
    if len(mine) != len(theirs):
        raise ConfigError(
            f"compare_schedules: A has {len(mine)} parameter groups of different rates, B has {len(theirs)}; give the rates of "
            "one group on each side, as a function or a sequence"
        )
    larger = np.maximum(np.abs(mine), np.abs(theirs))
    apart = np.abs(theirs - mine)
    shares = np.divide(apart, larger, out=np.zeros_like(apart), where=larger > 0)
    peak = np.nanmax(np.where(np.isfinite(larger), larger, 0.0))
    out = ~(apart <= np.maximum(relative * larger, _ROUNDED * peak))
    first = int(out.any(axis=0).argmax()) if out.any() else None
    group = 0 if first is None else int(out[:, first].argmax())
    hints = () if first is None else tuple(_hints(mine[group], theirs[group]))
    return ScheduleComparison(mine, theirs, shares, first, group, hints)


def _is_sequence(given: Any) -> bool:
    return isinstance(given, (list, tuple, np.ndarray)) or (hasattr(given, "__array__") and hasattr(given, "shape"))


def _rates(side: str, given: Any, steps: int) -> np.ndarray:
    """Return the rates of a schedule, shape (groups, steps); groups of the same rates are one."""
    if _is_sequence(given):
        found = _of_sequence(side, given, steps)
    else:
        found = _of_framework(given, steps)
        if found is None and callable(given):
            found = _of_function(side, given, steps)
    if found is None:
        kind = f"{type(given).__module__}.{type(given).__qualname__}"
        raise ConfigError(
            f"compare_schedules: {side} is a {kind}; expected a learning-rate schedule of PyTorch, PaddlePaddle or MindSpore, a "
            "function of the step, or rates"
        )
    groups = np.asarray(found, np.float64).reshape(steps, -1).T
    return groups[:1] if all(np.array_equal(groups[0], each) for each in groups) else groups


def _of_framework(given: Any, steps: int) -> list[tuple[float, ...]] | None:
    for framework in _FRAMEWORKS:
        if framework in sys.modules:
            module = importlib.import_module(f"probe.adapters.{framework}.schedules")
            found = module.rates(given, steps)
            if found is not None:
                return found
    return None


def _of_function(side: str, given: Callable[[int], Any], steps: int) -> list[float]:
    try:
        return [float(given(step)) for step in range(steps)]
    except Exception as error:
        raise ConfigError(
            f"compare_schedules: {side} gives no rate ({type(error).__name__}: {error}); expected a function of the step, from 0"
        ) from error


def _of_sequence(side: str, given: Any, steps: int) -> np.ndarray:
    try:
        found = np.asarray(given, np.float64)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"compare_schedules: {side} holds what is no rate ({error}); expected numbers") from None
    if found.ndim != 1 or len(found) < steps:
        raise ConfigError(
            f"compare_schedules: {side} has the shape {found.shape}; expected {steps} numbers, one for each step"
        )
    return found[:steps]


def _hints(a: np.ndarray, b: np.ndarray) -> list[str]:
    """Say how the rates of one group are related."""
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return []
    both = (a != 0) & (b != 0)
    ratios = b[both] / a[both]
    if both.any() and np.ptp(ratios) <= _RELATIVE * abs(ratios[0]) and np.array_equal(a == 0, b == 0):
        return [f"B's rate is {ratios[0]:.6g} times A's in every step: the base rate, or its scaling"]
    for by, who in ((1, "B is one step ahead"), (-1, "A is one step ahead")):
        early, late = (a, b) if by > 0 else (b, a)
        if len(a) > 2 and np.allclose(late[:-1], early[1:], _RELATIVE, _ROUNDED * np.abs(a).max()) and np.ptp(a):
            return [f"{who}: it counts steps from another number, or steps before the optimizer"]
    peaks, ends = (int(a.argmax()), int(b.argmax())), (_last_change(a), _last_change(b))
    if peaks[0] != peaks[1]:
        return [f"the largest rate is that of step {peaks[0]} in A, of step {peaks[1]} in B: the warm-up"]
    stops_above = (ends[0] < ends[1] and a[-1] > b[-1]) or (ends[1] < ends[0] and b[-1] > a[-1])
    if ends[0] != ends[1] and not stops_above:
        return [f"the rate changes until step {ends[0]} in A, until step {ends[1]} in B: the number of steps"]
    if a[-1] != b[-1]:
        what = "the lowest rate" if stops_above else "the number of steps, the lowest rate, or the form of the decay"
        return [f"the last rate is {a[-1]:.6g} in A, {b[-1]:.6g} in B: {what}"]
    return []


def _last_change(rates: np.ndarray) -> int:
    changes = np.flatnonzero(np.diff(rates))
    return int(changes[-1]) + 1 if len(changes) else 0


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _counted(steps: int) -> str:
    return f"{steps:,} step" if steps == 1 else f"{steps:,} steps"
