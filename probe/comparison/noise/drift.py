"""Parameters that were not compared: how far rounding alone may have taken them apart in a step."""

from __future__ import annotations

import math

from probe.comparison.ledger.known import State
from probe.comparison.noise import tolerance
from probe.comparison.noise.tolerance import Level
from probe.comparison.optimizer.counters import is_counter
from probe.comparison.steps.events import StepPairs
from probe.numbers.statistics import unit_roundoff
from probe.records import Phase, Role


def share_of_update(gradient: float, u: float, shape: tuple[int, ...], *, is_adaptive: bool) -> float:
    """Return which share of an update may be rounding.

    Adam and its kin make a whole update of a gradient that is rounding: a key bias, among others.

    Parameters
    ----------
    gradient
        relative error of the gradient that was used
    u
        unit roundoff of the parameter
    """
    gradient = max(gradient, tolerance.GRADIENT.limit(u, 0.0))
    if not is_adaptive:
        return gradient
    return min(1.0, tolerance.update_bound(gradient, u, 0.0, math.prod(shape)) if len(shape) > 1 else 1.0)


def drifted(pairs: StepPairs, state: State) -> dict[int, Level]:
    """Return how large the errors of updated parameters without a counterpart may be, by their module of A, pooled."""
    parts: dict[int, list[tuple[float, float, float]]] = {}
    prefix = f"{Phase.UPDATE.label}:"
    side = pairs.a
    for module, rows in _by_module(pairs, Role.DELTA).items():
        pair = pairs.pair_of_a.get(module)
        of_a, of_b = state.unpaired.get(pair, ({}, {})) if pair is not None else ({}, {})
        parameters, states = (pairs.rows_a.get((0, module, 0), role) for role in (Role.PARAM, Role.STATE))
        for slot, row in rows.items():
            is_compared = pair is not None and not (slot in of_a and of_b) and (module, slot) not in state.in_parts
            if is_compared:
                continue
            after = parameters.get(f"{prefix}{slot}")
            if after is None:
                continue
            kept = [name.removeprefix(f"{prefix}{slot}.") for name in states if name.startswith(f"{prefix}{slot}.")]
            is_adaptive = sum(not is_counter(side, states[f"{prefix}{slot}.{name}"][-1], name) for name in kept) > 1
            u, norm = unit_roundoff(side.dtypes[after[-1]]), side.columns["norm"][after[-1]]
            share = share_of_update(0.0, u, side.shapes[row], is_adaptive=is_adaptive)
            parts.setdefault(module, []).append((share * side.columns["norm"][row], norm, u))
    return {module: _pooled(each) for module, each in parts.items()}


def _pooled(parts: list[tuple[float, float, float]]) -> Level:
    total = math.hypot(*(norm for _, norm, _ in parts))
    error = math.hypot(*(error for error, _, _ in parts))
    return Level(tolerance.UPDATED_GAIN * error / total if total else 0.0, max(u for *_, u in parts))


def _by_module(pairs: StepPairs, role: Role) -> dict[int, dict[str, int]]:
    """Return the rows of a role of A in the update, by module and parameter."""
    found: dict[int, dict[str, int]] = {}
    prefix = f"{Phase.UPDATE.label}:"
    for (_, module, _), slots in pairs.rows_a.by_role[role].items():
        named = {slot[len(prefix) :]: rows[-1] for slot, rows in slots.items() if slot.startswith(prefix)}
        found.setdefault(module, {}).update(named)
    return found
