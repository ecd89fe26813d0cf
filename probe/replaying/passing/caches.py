"""Calls that go on behind earlier ones, whose keys and values lie in a cache: no recording holds that."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from probe.adapters.base import Adapter
from probe.numbers.slots import flatten, holds_tensor
from probe.records import Role
from probe.replaying.recorded import Recorded
from probe.verdict.side import Call

_CACHE, _PLACE, _ATTENTION = (
    re.compile(each, re.IGNORECASE) for each in ("cache|past|kv", "cache|past|kv|start|offset|pos", "attn|attention")
)


class Caches:
    """Tells which calls of A may have read a cache, and hands on the one that B's model returned."""

    def __init__(self, adapter: Adapter, recorded: Recorded) -> None:
        self._adapter, self._recorded = adapter, recorded
        self._begins: dict[int, float] = {}
        """the first position that a pass was given"""
        self._left: dict[int, dict[str, Any]] = {}
        for call in recorded.calls:
            for slot, mine in recorded.slots(call, Role.INPUT).items():
                if "pos" in slot and mine.kind == "integer":
                    self._begins[call.micro] = min(mine.low, self._begins.get(call.micro, mine.low))
        self._first = max((call.micro for call in recorded.calls if call.micro < 0), default=0)

    def is_behind(self, call: Call) -> bool:
        """Return True if a pass goes on behind tokens that it was not given; without positions, if it is not the first."""
        is_later = call.micro != self._first or self._recorded.side.goes_on
        return call.micro < 0 and self._begins.get(call.micro, is_later) > 0

    def may_read(self, call: Call, module: Any, names: Iterable[str]) -> bool:
        """Return True if a module is called with a cache or a place, as its parameters are named, keeps a cache, or is an attention."""
        given = {slot.partition(".")[0] for slot in self._recorded.slots(call, Role.INPUT)}
        own = {each.names[0].rpartition(".")[2]: each.tensor for each in self._adapter.parameters(module)}
        return self.is_behind(call) and (
            any(_PLACE.search(name) for at, name in enumerate(names) if not {name, str(at)} & given)
            or any(_CACHE.search(name) and self._holds(value) for name, value in {**own, **vars(module)}.items())
            or any(map(_ATTENTION.search, (call.class_name, type(module).__name__)))
        )

    def _holds(self, value: Any) -> bool:
        return self._adapter.is_tensor(value) or holds_tensor(value, self._adapter.is_tensor)

    def given(self, index: int, call: Call) -> dict[str, Any]:
        """Return the cache that the call of a model before this one returned, by the parameter that takes it."""
        return self._left.get(index, {}) if self.is_behind(call) else {}

    def keep(self, index: int, output: Any, names: Iterable[str]) -> None:
        """Keep what a call of a model returned that holds tensors and is no container of them."""
        items = output.values() if isinstance(output, Mapping) else output if isinstance(output, tuple) else ()
        found = [each for each in items if not flatten(each, self._adapter.is_tensor) and self._holds(each)]
        self._left[index] = dict(zip(filter(_CACHE.search, names), found[:1], strict=False))
