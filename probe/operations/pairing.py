"""Operations of both sides become pairs as modules are: what follows judges them as it judges calls of modules."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Mapping, Set
from dataclasses import replace

from probe.matching import Matching, Pair, Reason
from probe.operations.aligning import Item, aligned, is_like
from probe.operations.names import canonical
from probe.records import Role
from probe.store.reading.reader import Reader
from probe.verdict.side import Call, Side
from probe.verdict.tensors import Tensor

_UNLIKE = 3
"""rank of two inputs that are none"""


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
                if found.get(x.module) == y.module:
                    _put_like_beside_like(x, y)
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


def _put_like_beside_like(a: Call, b: Call) -> None:
    """Let B's inputs stand in the slots of the inputs of A that they are like: a sum has its terms in any order.

    What is like none stands beside what is left of A's if both call one function; otherwise it has no partner.
    """
    mine, theirs = a.of(Role.INPUT), b.of(Role.INPUT)
    is_one = canonical(a.class_name) == canonical(b.class_name)
    ranked = [(_rank(mine[x], theirs[y], is_one), x != y, x, y) for x in mine for y in theirs]
    found: dict[str, str] = {}
    for rank, _, x, y in sorted(ranked, key=lambda each: each[:2]):
        if rank < _UNLIKE and y not in found and x not in found.values():
            found[y] = x
    rest = {slot: f"{slot}′" if slot in mine else slot for slot in theirs if slot not in found}
    if theirs:
        b.seen[Role.INPUT] = {(found | rest)[slot]: tensor for slot, tensor in theirs.items()}


def _rank(a: Tensor, b: Tensor, is_one: bool) -> int:
    """Return how sure it is that two inputs are one, 0 if their hashes are the same."""
    return 0 if a.hash is not None and a.hash == b.hash else 1 if is_like(a, b) else 2 if is_one else _UNLIKE


def _keep(side: Side, operations: Container[int]) -> None:
    """Take the calls of all other operations out of a side."""
    side.alone = [call for call in side.calls if call.is_operation and call.module not in operations]
    around: dict[Call | None, list[Call]] = defaultdict(list)
    side.calls = [call for call in side.calls if not call.is_operation or call.module in operations]
    for call in side.calls:
        around[call.caller].append(call)
    for call in side.calls:
        call.inner[:] = around.get(call, [])
