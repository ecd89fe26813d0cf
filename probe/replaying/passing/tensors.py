"""A's tensors for B: which is meant, in B's framework, laid as B has it, and with its dtype."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from probe.comparison.steps.rows import Key
from probe.numbers.slots import flatten
from probe.numbers.statistics import is_integer
from probe.records import Role
from probe.replaying.partners import Partner
from probe.replaying.passing.containers import replaced
from probe.replaying.passing.plan import Plan
from probe.replaying.passing.slots import Form, distance, laid_as, paired

Named = list[tuple[str, Any]]
_FILLED = -1e4
"""what masks put at the least in the place of a score that does not count"""
_FAR = 0.05
"""relative difference from which on an argument may be one of two terms of what A's module was given"""
_SUM = 0.02
"""up to which their sum is that"""


class Tensors:
    """Turns what A recorded into tensors of B."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.recorded = plan, plan.recorded
        self.replaying, self.adapter = plan.replaying, plan.replaying.adapter

    def named(self, value: Any) -> Named:
        """Return the tensors in nested containers, by slot."""
        return flatten(value, self.adapter.is_tensor)

    def put(self, value: Any, by: Mapping[str, Any]) -> Any:
        """Return nested containers with other tensors in some slots."""
        return replaced(value, by, self.adapter.is_tensor)

    def values(self, tensor: Any) -> np.ndarray:
        """Return the values of a tensor of B."""
        with self.adapter.quiet():
            return self.adapter.values(tensor)

    def of(
        self, row: int, like: Any, autocast: str = "", partner: Partner | None = None, forward: int = -1
    ) -> Any:  # fmt: skip
        """Return the values of a row of A as a tensor of B, laid as another one is, and with its dtype.

        Parameters
        ----------
        like
            of B; None for A's form and dtype
        autocast
            dtype that operations are cast to
        partner
            of which A's row is cut
        forward
            of a gradient: the row of that of which it is one
        """
        values = self._read(row, partner)
        if self.plan.changed is not None:
            values = self.plan.changed(values, autocast)
        if like is not None:
            before = None if forward < 0 else (lambda: self._read(forward, partner))
            values = laid_as(values, self.adapter.facts(like).shape, lambda: self.values(like), before)
        return self.replaying.tensor(values, like, self.plan.model)

    def _read(self, row: int, partner: Partner | None) -> np.ndarray:
        values = self.recorded.values(row)
        return values if partner is None or partner.cut is None else partner.cut.of(values)

    def learns(self, tensor: Any, row: int) -> bool:
        """Tell whether a gradient is wanted of what stands for a tensor: where A's had one, if it is A's (``row`` is not -1)."""
        if row < 0:
            return self.replaying.learns(tensor)
        return self.recorded.learns(row) and not is_integer(self.adapter.facts(tensor).dtype)

    # Which is which

    def rows(
        self, key: Key, role: Role, tensors: Named, names: Sequence[str] = (), partner: Partner | None = None
    ) -> dict[str, int]:
        """Return, for what a call of B is given or returns, the rows of what A's was, by B's slots; only those with values.

        Parameters
        ----------
        key
            A's call
        names
            of the parameters of B's function, in their order
        partner
            where A's tensor is cut into parts
        """
        rows = {slot: row for slot, row in self.recorded.slots(key, role).items() if self.recorded.has_values(row)}
        by_slot = dict(tensors)
        if partner is not None and partner.cut is not None:
            return {slot: rows[slot] for slot in by_slot if slot in rows}
        facts = {slot: self.adapter.facts(tensor) for slot, tensor in tensors}
        forms = {slot: Form(each.dtype, each.shape) for slot, each in facts.items()}
        found = paired(
            {slot: Form(self.recorded.dtype(row), self.recorded.shape(row)) for slot, row in rows.items()},
            forms, names, lambda slot: self.recorded.values(rows[slot]), lambda slot: self.values(by_slot[slot]),
        )  # fmt: skip
        return {slot: rows[mine] for slot, mine in found.items()}

    def with_other_masks(self, arrived: Named, rows: Mapping[str, int]) -> list[str]:
        """Return the slots of arguments that hold what masks fill in on one side alone: the other side adds its mask later."""
        found = []
        for slot, tensor in arrived:
            row = rows.get(slot, -1)
            if row >= 0 and not is_integer(self.recorded.dtype(row)):
                values = self.values(tensor)
                if values.size and (self.recorded.lowest(row) < _FILLED) is not bool(values.min() < _FILLED):
                    found.append(slot)
        return found

    def added_inside(self, arrived: Named, rows: Mapping[str, int]) -> str:
        """Return the slot of an argument that the module of B adds another one to, where A's was given the sum; or ``""``."""
        others = [slot for slot, tensor in arrived if slot not in rows and self.replaying.learns(tensor)]
        tensors = dict(arrived)
        for slot, row in rows.items() if others else ():
            mine = self.values(tensors[slot])
            whole = laid_as(self.recorded.values(row), mine.shape, mine)
            if is_integer(self.recorded.dtype(row)) or distance(whole, mine) < _FAR:
                continue
            for other in others:
                added = self.values(tensors[other])
                if added.shape == mine.shape and distance(whole, (mine.astype(np.float64) + added)) < _SUM:
                    return slot
        return ""
