"""Calls without a partner: between which events they ran, and whether they did anything."""

from __future__ import annotations

from collections.abc import Mapping

from probe.comparison.steps.step_half import Loose, StepHalf
from probe.records import Role


def lies(loose: Loose, since: int, before: int, stepped: Mapping[int, int]) -> bool:
    """Tell whether a call began and ended between two events; of one that only holds another, whether it did either."""
    if loose.module in stepped:
        return since <= loose.end and loose.begin <= before
    return since <= loose.begin and loose.end <= before


def is_noop(half: StepHalf, loose: Loose) -> bool:
    """Tell whether a call returned what it was given (Identity, an inactive Dropout), or nothing at all.

    One that only holds another module does nothing if it hands on what it is given, and returns what that returns.
    """
    given, returned = (set(half.hashes(loose.key, role)) for role in (Role.INPUT, Role.OUTPUT))
    if loose.module in half.stepped:
        inner = (loose.micro, half.stepped[loose.module], loose.call)
        handed, made = (set(half.hashes(inner, role)) for role in (Role.INPUT, Role.OUTPUT))
        return handed <= given and returned <= made
    if not returned:
        return half.side.reader.modules[loose.module].n_params == 0
    return returned <= given
