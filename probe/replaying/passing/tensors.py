"""A's tensors for B: which is meant, in B's framework, laid as B has it, and with its dtype."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from probe.numbers.slots import flatten
from probe.numbers.statistics import is_integer
from probe.records import Role
from probe.replaying.partners import Partner
from probe.replaying.passing.containers import replaced
from probe.replaying.passing.segments import Made
from probe.replaying.passing.slots import Form, distance, laid_as, paired
from probe.replaying.prepared import Prepared
from probe.verdict.side import Call
from probe.verdict.tensors import Tensor

Named = list[tuple[str, Any]]
_FILLED = -1e4
"""what masks put at the least in the place of a score that does not count"""
_FAR = 0.05
"""relative difference from which on an argument may be one of two terms of what A's module was given"""
_SUM = 0.02
"""up to which their sum is that"""


class Tensors:
    """Turns what A recorded into tensors of B."""

    def __init__(self, plan: Prepared) -> None:
        self.plan, self.recorded = plan, plan.recorded
        self.replaying, self.adapter = plan.replaying, plan.replaying.adapter

    def named(self, value: Any) -> Named:
        """Return the tensors in nested containers, by slot."""
        return flatten(value, self.adapter.is_tensor)

    def put(self, value: Any, by: Mapping[str, Any]) -> Any:
        """Return nested containers with other tensors in some slots."""
        return replaced(value, by, self.adapter.is_tensor)

    def ran(self, made: Made, given: Mapping[str, Any]) -> Any:
        """Run the call of a module with other tensors in some slots of its arguments."""
        return made.run(*self.put(made.args, given), **self.put(made.kwargs, given))

    def values(self, tensor: Any) -> np.ndarray:
        """Return the values of a tensor of B."""
        with self.adapter.quiet():
            return self.adapter.values(tensor)

    def of(
        self, mine: Tensor, like: Any, autocast: str = "", partner: Partner | None = None, forward: Tensor | None = None
    ) -> Any:
        """Return the values of a tensor of A as one of B, laid as another one is, and with its dtype.

        Parameters
        ----------
        like
            of B; None for A's form and dtype
        autocast
            dtype that operations are cast to
        partner
            of which A's is cut
        forward
            of a gradient: that of which it is one
        """
        values = self._read(mine, partner)
        if self.plan.changed is not None:
            values = self.plan.changed(values, autocast)
        if like is not None:
            before = None if forward is None else (lambda: self._read(forward, partner))
            values = laid_as(values, self.adapter.facts(like).shape, lambda: self.values(like), before)
        return self.replaying.tensor(values, like, self.plan.model)

    def _read(self, mine: Tensor, partner: Partner | None) -> np.ndarray:
        values = self.recorded.values(mine)
        return values if partner is None or partner.cut is None else partner.cut.of(values)

    def learns(self, tensor: Any, mine: Tensor | None) -> bool:
        """Return True if a gradient is wanted of what stands for a tensor: where A's had one, if it is A's."""
        if mine is None:
            return self.replaying.learns(tensor)
        return mine.learns and not is_integer(self.adapter.facts(tensor).dtype)

    # Which is which

    def counterparts(
        self, call: Call, role: Role, tensors: Named, names: Sequence[str] = (), partner: Partner | None = None
    ) -> dict[str, Tensor]:
        """Return, for what a call of B is given or returns, what A's was, by B's slots; only what has values.

        Parameters
        ----------
        call
            of A
        names
            of the parameters of B's function, in their order
        partner
            where A's tensor is cut into parts
        """
        found = {slot: mine for slot, mine in self.recorded.slots(call, role).items() if mine.has_values}
        by_slot = dict(tensors)
        if partner is not None and partner.cut is not None:
            return {slot: found[slot] for slot in by_slot if slot in found}
        facts = {slot: self.adapter.facts(tensor) for slot, tensor in tensors}
        forms = {slot: Form(each.dtype, each.shape) for slot, each in facts.items()}
        forms_a = {slot: Form(mine.dtype, mine.shape) for slot, mine in found.items()}
        read = (lambda slot: self.recorded.values(found[slot])), (lambda slot: self.values(by_slot[slot]))
        return {slot: found[mine] for slot, mine in paired(forms_a, forms, names, *read).items()}

    def with_other_masks(self, arrived: Named, counterparts: Mapping[str, Tensor]) -> list[str]:
        """Return the slots of arguments that hold what masks fill in on one side alone: the other side adds its mask later."""
        found = []
        for slot, tensor in arrived:
            mine = counterparts.get(slot)
            if mine is not None and not is_integer(mine.dtype):
                values = self.values(tensor)
                if values.size and (mine.low < _FILLED) is not bool(values.min() < _FILLED):
                    found.append(slot)
        return found

    def added_inside(self, arrived: Named, counterparts: Mapping[str, Tensor]) -> str:
        """Return the slot of an argument that the module of B adds another one to, where A's was given the sum; or ``""``."""
        others = [slot for slot, tensor in arrived if slot not in counterparts and self.replaying.learns(tensor)]
        tensors = dict(arrived)
        for slot, mine in counterparts.items() if others else ():
            values = self.values(tensors[slot])
            whole = laid_as(self.recorded.values(mine), values.shape, lambda values=values: values)
            if is_integer(mine.dtype) or distance(whole, values) < _FAR:
                continue
            for other in others:
                added = self.values(tensors[other])
                if added.shape == values.shape and distance(whole, (values.astype(np.float64) + added)) < _SUM:
                    return slot
        return ""
