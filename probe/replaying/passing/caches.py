"""Calls that go on behind earlier ones, whose keys and values lie in a cache: no recording holds that."""

from __future__ import annotations

import contextlib
import copy
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from probe.adapters.base import Adapter
from probe.numbers.slots import flatten, holds_tensor
from probe.records import Role
from probe.replaying.recorded import Recorded
from probe.verdict.side import Call
from probe.verdict.tensors import Tensor

_CACHE = re.compile("cache|past|kv", re.IGNORECASE)
_OFFSET = re.compile("cache|past|kv|start|offset|pos", re.IGNORECASE)
_ATTENTION = re.compile("attn|attention", re.IGNORECASE)


class Caches:
    """Tells which calls of A read a cache, and keeps what B's model returned, for its next call.

    Parameters
    ----------
    adapter
        of B
    recorded
        what A recorded
    inputs
        what the program gives the model beside tensors: a cache among it is a new one in each pass
    """

    def __init__(self, adapter: Adapter, recorded: Recorded, inputs: Mapping[str, Any]) -> None:
        self._adapter, self._recorded = adapter, recorded
        self._inputs = {name: self._copied(value) for name, value in inputs.items()}
        self._begins = _positions(recorded)
        self._left: dict[int, tuple[str, Any]] = {}
        """by module of B: the cache that its last call returned, and its name"""

    def _copied(self, value: Any) -> Any:
        if not self._adapter.is_tensor(value):
            with contextlib.suppress(Exception):  # some objects cannot be copied
                return copy.deepcopy(value)
        return value

    def is_behind(self, micro: int) -> bool:
        """Return True if a pass goes on behind tokens that it was not given; without positions, as any pass behind the first."""
        if micro not in self._begins:
            return False
        begin = self._begins[micro]
        is_later = micro != max(self._begins) or self._recorded.side.goes_on
        return is_later if begin is None else begin > 0

    def reads(self, call: Call, module: Any, names: Iterable[str]) -> bool:
        """Return True if a module may read what earlier calls wrote: by its arguments that A has no tensors of, or what it keeps.

        Parameters
        ----------
        names
            of the parameters of its function
        """
        if not self.is_behind(call.micro):
            return False
        given = {slot.partition(".")[0] for slot in self._recorded.slots(call, Role.INPUT)}
        lacking = (name for at, name in enumerate(names) if not {name, str(at)} & given)
        own = {named.names[0].rpartition(".")[2]: named.tensor for named in self._adapter.parameters(module)}
        kept = (name for name, value in {**own, **vars(module)}.items() if _CACHE.search(name) and self._holds(value))
        classes = call.class_name, type(module).__name__
        return any(map(_OFFSET.search, lacking)) or any(kept) or any(map(_ATTENTION.search, classes))

    def _holds(self, value: Any) -> bool:
        return self._adapter.is_tensor(value) or holds_tensor(value, self._adapter.is_tensor)

    def given(self, index: int, call: Call) -> dict[str, Any]:
        """Return what a call of the model is given beside A's tensors."""
        left = self._left.get(index)
        return dict([left] if left is not None and self.is_behind(call.micro) else []) | self._inputs

    def keep(self, index: int, output: Any, names: Iterable[str]) -> None:
        """Keep the cache that a call of the model returned, under the name of the parameter that takes it."""
        items = output.items() if isinstance(output, Mapping) else enumerate(output) if isinstance(output, tuple) else ()
        taking = [name for name in names if _CACHE.search(name)]
        for name, value in items:
            if taking and not flatten(value, self._adapter.is_tensor) and self._holds(value):
                self._left[index] = (name if name in taking else taking[0]), value
                return
        self._left.pop(index, None)


def _positions(recorded: Recorded) -> dict[int, int | None]:
    """Return, by pass without gradients, the first position that it was given; None where none is known."""
    given = [
        ((call.module, slot), call.micro, mine, re.search("pos(?!t)", f"{call.path.rpartition('.')[2]}.{slot}"))
        for call in recorded.calls
        for slot, mine in recorded.slots(call, Role.INPUT).items()
        if call.micro < 0 and mine.kind == "integer" and mine.dtype != "bool"
    ]
    named = {place for place, _, _, is_named in given if is_named}
    counting = named or {place for place, _, mine, _ in given if _counts(recorded, mine)}
    found: dict[int, int | None] = {call.micro: None for call in recorded.calls if call.micro < 0}
    for place, micro, mine, _ in given:
        if place in counting:
            before = found[micro]
            found[micro] = int(mine.low) if before is None else min(int(mine.low), before)
    return found


def _counts(recorded: Recorded, mine: Tensor) -> bool:
    """Return True of the numbers from 0 on, as positions are without a name."""
    if not mine.has_values or mine.low != 0 or mine.high < 1:
        return False
    rows = np.atleast_2d(recorded.values(mine))
    return bool((rows == np.arange(rows.shape[-1])).all())
