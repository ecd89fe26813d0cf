"""Calls without a partner: between which events they ran, and whether they did anything."""

from __future__ import annotations

from collections.abc import Mapping

from probe.comparison.events import Loose, Rows
from probe.comparison.metrics import Side
from probe.records import Role


def lies(loose: Loose, since: int, before: int, stepped: Mapping[int, int]) -> bool:
    """Tell whether a call began and ended between two events; of one that only holds another, whether it did either."""
    if loose.module in stepped:
        return since <= loose.end and loose.begin <= before
    return since <= loose.begin and loose.end <= before


def is_noop(side: Side, rows: Rows, loose: Loose, stepped: Mapping[int, int]) -> bool:
    """Tell whether a call returned what it was given (Identity, an inactive Dropout), or nothing at all.

    One that only holds another module does nothing if it hands on what it is given, and returns what that returns.
    """
    key = (loose.micro, loose.module, loose.call)
    given = {side.digest(found[0]) for found in rows.get(key, Role.INPUT).values()}
    outputs = rows.get(key, Role.OUTPUT)
    if loose.module in stepped:
        inner = (loose.micro, stepped[loose.module], loose.call)
        made = {side.digest(found[0]) for found in rows.get(inner, Role.OUTPUT).values()}
        handed = {side.digest(found[0]) for found in rows.get(inner, Role.INPUT).values()}
        return handed <= given and all(side.digest(found[0]) in made for found in outputs.values())
    if not outputs:
        return side.reader.modules[loose.module].n_params == 0
    return all(side.digest(found[0]) in given for found in outputs.values())
