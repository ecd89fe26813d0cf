"""By what rule one side updated one parameter, from its own gradient, state and update: no settings, and not the other side."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from probe.comparison.optimizer.linear import Solution, simplest
from probe.comparison.optimizer.traces import Found, Trace

_EXACT = 2e-4
"""share of a state, or of an update, that rounding may leave unexplained"""
_SUM_TO_ONE = 1e-3
"""β and the weight of the gradient add up to 1 in an average"""


@dataclass(frozen=True, slots=True)
class Rule:
    """What the numbers of one parameter determine; None where they do not."""

    is_fresh: bool | None = None
    """the optimizer's state began empty"""
    first_decay: float | None = None
    """what the first moment, or the momentum's sum, keeps of its old value"""
    gain: float | None = None
    """what it takes of the gradient: 1 − β1 in an average, 1 − dampening in a sum"""
    coupled: float | None = None
    """how much of the parameter is added to the gradient: L2"""
    second_decay: float | None = None
    """β2"""
    is_adaptive: bool = False
    """it divides by a second moment"""
    rate: float | None = None
    """the learning rate, of an optimizer that is linear"""
    rest: float = 0.0
    """share of the update that these do not explain, as it is rounded in 16 bits"""
    is_nesterov: bool | None = None
    decay: float | None = None
    """how much of the parameter is taken away beside the gradient: lr · weight decay"""
    states: tuple[str, ...] = ()
    moments: tuple[str, str] = ("", "")
    """names of the first and of the second one"""

    @property
    def is_average(self) -> bool:
        """Tell whether the first moment is an average, as Adam's, and not a sum, as SGD's."""
        return self.is_adaptive or (
            self.gain is not None and self.first_decay is not None and abs(self.gain + self.first_decay - 1) < _SUM_TO_ONE
            and self.gain < 1 - _SUM_TO_ONE
        )  # fmt: skip


def rule_of(trace: Trace) -> Rule:
    """Return the rule of one side for one parameter."""
    names = tuple(sorted(trace.states))
    if not trace.tells:
        return Rule(states=names)
    first, kept, second = _moments(trace)
    if second is None:
        return Rule(**kept, **_linear_update(trace, first), states=names)
    decay = None if kept.get("coupled") else _second_decay(trace, second, kept.get("is_fresh"))
    return Rule(**kept, second_decay=decay, is_adaptive=True, states=names, moments=(first, second))


def _moments(trace: Trace) -> tuple[str, dict[str, float | bool | None], str | None]:
    """Return the name of the first moment, what it is made of, and the name of the second one.

    The first is a sum of the gradient and its own old value; the second has no negative element.
    """
    made = {name: _first_moment(trace, name) for name in trace.states if "max" not in name}
    linear = [name for name, found in made.items() if "gain" in found]
    squares = [name for name in made if name not in linear and _may_be_squares(trace.states[name])]
    open_ = [name for name in made if name not in linear and name not in squares]
    first = linear[0] if len(linear) == 1 else open_[0] if len(open_) == 1 and not linear else ""
    return first, made.get(first, {}), squares[0] if len(squares) == 1 else None


def _may_be_squares(state: Found) -> bool:
    """Tell whether no element is negative, and not all are zero: MindSpore's SGD keeps such zeros beside its momentum."""
    return state.number("min") >= 0 and state.number("norm") > 0


def _first_moment(trace: Trace, name: str) -> dict[str, float | bool | None]:
    """Return what the first moment is made of: its old value, the gradient, the parameter."""
    state, gradient, parameter = trace.states[name], trace.gradient, trace.parameter
    assert gradient is not None
    target, g = state.sketch, gradient.sketch
    old = (trace.old_states or {}).get(name)
    before = None if old is None else old.sketch
    if target is None or g is None:
        return {}
    choices = [[g]]
    choices += (
        [[g, before]] if before is not None and np.any(before) else []
    )  # of a weight that began with zeros both fit
    choices += [[g, parameter]] if parameter is not None else []
    choices += [[g, before, parameter]] if before is not None and parameter is not None else []
    rounding = state.u * state.number("norm")
    found = simplest(target, choices, rounding, _EXACT)
    if found is None:
        return {"is_fresh": False} if before is None and trace.old_states is None else {}
    place, solution = found
    gain = solution.coefficients[0]
    with_parameter = len(choices[place]) > 1 and choices[place][-1] is parameter
    with_old = before is not None and any(column is before for column in choices[place])
    coupled = solution.coefficients[-1] / gain if with_parameter and gain else 0.0
    return {
        "is_fresh": not with_old,
        "first_decay": solution.coefficients[1] if with_old else None,
        "gain": gain,
        "coupled": coupled,
    }


def _second_decay(trace: Trace, name: str, is_fresh: float | bool | None) -> float | None:
    """Return β2, from v = β2 · v₀ + (1 − β2) · g²: means of both sides of it."""
    gradient, size = trace.gradient, max(1, trace.size)
    assert gradient is not None
    squared = gradient.number("norm") ** 2 / size
    new = trace.states[name].number("mean")
    old = (trace.old_states or {}).get(name)
    before = 0.0 if is_fresh else None if old is None else old.number("mean")
    if before is None or not squared or not all(map(math.isfinite, (squared, new, before))):
        return None
    if abs(before - squared) < 1e-3 * squared:
        return None
    found = (new - squared) / (before - squared)
    return found if 0 <= found < 1 else None


def _linear_update(trace: Trace, first: str) -> dict[str, float | bool | None]:
    """Return learning rate and decay of an update that is a multiple of the gradient, of its momentum, or of both."""
    update, gradient, parameter = trace.update.sketch, trace.gradient, trace.parameter
    if update is None or gradient is None or gradient.sketch is None or not trace.update.number("norm"):
        return {}
    g = gradient.sketch
    momentum = trace.states[first].sketch if first else None
    choices: list[list[np.ndarray]] = [[g] if momentum is None else [momentum]]
    choices += [[*choices[0], parameter]] if parameter is not None else []
    if momentum is not None:
        choices += [[momentum, g]]
        choices += [[momentum, g, parameter]] if parameter is not None else []
    weight = trace.after
    rounding = 0.0 if weight is None else weight.u * weight.number("norm")
    found = simplest(update, choices, rounding, _EXACT)
    if found is None:
        return {}
    place, solution = found
    return _read(choices[place], solution, g, momentum, parameter)


def _read(
    columns: list[np.ndarray], solution: Solution, g: np.ndarray, momentum: np.ndarray | None, parameter: np.ndarray | None
) -> dict[str, float | bool | None]:  # fmt: skip
    """Name the coefficients."""
    of = {id(column): value for column, value in zip(columns, solution.coefficients, strict=True)}
    decay = -of.get(id(parameter), 0.0) if parameter is not None else 0.0
    both = momentum is not None and id(momentum) in of and id(g) in of
    rate = -of[id(g)] if id(g) in of else -of[id(momentum)]
    return {
        "rest": solution.residual,
        "rate": rate,
        "decay": decay,
        "is_nesterov": both if momentum is not None else None,
    }
