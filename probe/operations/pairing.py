"""Operations of both sides become pairs as modules are: what follows judges them as it judges calls of modules."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Mapping, Set
from dataclasses import replace

from probe.matching import Matching, Pair, Reason
from probe.operations.aligning import Item, aligned
from probe.operations.names import canonical
from probe.store.reading.reader import Reader
from probe.verdict.side import Call, Side


def with_operations(matching: Matching, a: Side, b: Side) -> Matching:
    """Return a matching with the operations of a step that are one; calls of the others are taken out of their sides.

    Inside each pair of calls, what both sides call is laid side by side. The code of a module that has no partner stands where it
    is called.
    """
    if not any(_has_operations(side.reader) for side in (a, b)):
        return matching
    partners = {pair.a: pair.b for pair in matching.pairs if pair.has_calls}
    turned = {there: here for here, there in partners.items()}
    calls: dict[tuple[int, int, int], Call] = {(each.module, each.micro, each.number): each for each in b.calls}
    found: dict[int, int] = {}
    taken: set[int] = set()
    for call in a.calls:
        other = calls.get((partners.get(call.module, -1), call.micro, call.number))
        if other is not None:
            for x, y in aligned(_items(call, partners, _called(other)), _items(other, turned, _called(call))):
                if x.module not in found and y.module not in taken:
                    found[x.module] = y.module
                    taken.add(y.module)
    _keep(a, found)
    _keep(b, taken)
    return replace(matching, pairs=(*matching.pairs, *(Pair(*both, Reason.SAME_VALUES) for both in found.items())))


def _has_operations(reader: Reader) -> bool:
    return bool(reader.modules) and reader.modules[-1].is_operation


def _called(call: Call) -> set[int]:
    """Return the modules that run inside a call."""
    return {module for inner in call.inner for module in (inner.module, *_called(inner))}


def _items(call: Call, partners: Mapping[int, int], there: Set[int]) -> list[Item]:
    """Return what a call calls, in order; ``there`` are the modules that the other side calls."""
    found: list[Item] = []
    for inner in call.inner:
        partner = partners.get(inner.module, -1)
        if inner.is_operation:
            found.append(Item(inner, canonical(inner.class_name), -1))
        elif partner in there:
            found.append(Item(inner, "", partner))
        else:
            found += _items(inner, partners, there)
    return found


def _keep(side: Side, operations: Container[int]) -> None:
    """Take the calls of all other operations out of a side."""
    side.alone = [call for call in side.calls if call.is_operation and call.module not in operations]
    around: dict[Call | None, list[Call]] = defaultdict(list)
    side.calls = [call for call in side.calls if not call.is_operation or call.module in operations]
    for call in side.calls:
        around[call.caller].append(call)
    for call in side.calls:
        call.inner[:] = around.get(call, [])
