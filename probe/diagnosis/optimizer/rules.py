"""By what rule one side updated one parameter, from its own gradient, state and update: no settings, and not the other side."""

from __future__ import annotations

import math
from dataclasses import dataclass

from probe.diagnosis.optimizer.linear import simplest
from probe.diagnosis.optimizer.traces import Trace
from probe.verdict.tensors import Tensor

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
        """Whether the first moment is an average, as Adam's, and not a sum, as SGD's."""
        if self.is_adaptive or self.gain is None or self.first_decay is None:
            return self.is_adaptive
        return abs(self.gain + self.first_decay - 1) < _SUM_TO_ONE and self.gain < 1 - _SUM_TO_ONE


def rule_of(trace: Trace) -> Rule:
    """Return the rule of one side for one parameter."""
    names = tuple(sorted(trace.states))
    if trace.gradient_sketch is None:
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


def _may_be_squares(state: Tensor) -> bool:
    """Return True if no element is negative, and not all are zero: MindSpore's SGD keeps such zeros beside its momentum."""
    return state.low >= 0 and state.norm > 0


def _first_moment(trace: Trace, name: str) -> dict[str, float | bool | None]:
    """Return what the first moment is made of: its old value, the gradient, the parameter."""
    state, old = trace.states[name], (trace.old_states or {}).get(name)
    columns = {"gradient": trace.gradient_sketch, "old": None if old is None else old.sketch}
    if state.sketch is None:
        return {}
    choices = "gradient", "gradient old", "gradient parameter", "gradient old parameter"
    found = simplest(state.sketch, columns | {"parameter": trace.parameter}, choices, state.u * state.norm, _EXACT)
    if found is None:
        return {"is_fresh": False} if trace.old_states is None else {}
    of, gain = found[0], found[0]["gradient"]
    coupled = of.get("parameter", 0.0) / gain if gain else 0.0
    return {"is_fresh": "old" not in of, "first_decay": of.get("old"), "gain": gain, "coupled": coupled}


def _second_decay(trace: Trace, name: str, is_fresh: float | bool | None) -> float | None:
    """Return β2, from v = β2 · v₀ + (1 − β2) · g²: means of both sides of it."""
    gradient, size = trace.gradient, max(1, trace.size)
    assert gradient is not None
    squared = gradient.norm**2 / size
    new = trace.states[name].mean
    old = (trace.old_states or {}).get(name)
    before = 0.0 if is_fresh else None if old is None else old.mean
    if before is None or not squared or not all(map(math.isfinite, (squared, new, before))):
        return None
    if abs(before - squared) < 1e-3 * squared:
        return None
    found = (new - squared) / (before - squared)
    return found if 0 <= found < 1 else None


def _linear_update(trace: Trace, first: str) -> dict[str, float | bool | None]:
    """Return learning rate and decay of an update that is a multiple of the gradient, of its momentum, or of both."""
    update, momentum, after = trace.update.sketch, trace.states[first].sketch if first else None, trace.after
    if update is None or not trace.update.norm:
        return {}
    columns = {"gradient": trace.gradient_sketch, "momentum": momentum, "parameter": trace.parameter}
    choices = ["gradient", "gradient parameter"]
    if momentum is not None:
        choices = ["momentum", "momentum parameter", "momentum gradient", "momentum gradient parameter"]
    found = simplest(update, columns, choices, 0.0 if after is None else after.u * after.norm, _EXACT)
    if found is None:
        return {}
    of, rest = found
    is_nesterov = None if momentum is None else len({"momentum", "gradient"} & of.keys()) == 2
    rate = -of.get("gradient", of.get("momentum", 0.0))
    return {"rest": rest, "rate": rate, "decay": -of.get("parameter", 0.0), "is_nesterov": is_nesterov}
