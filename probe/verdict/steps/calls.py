"""Which call of a module is which call of its partner."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from probe.matching import Matching
from probe.records import Role
from probe.verdict.distance.estimates import from_statistics
from probe.verdict.distance.values import FITS
from probe.verdict.side import Call, Side
from probe.verdict.steps.batches import Batches

Group = tuple[Call, ...]
"""calls of one side that are one of the other: of several micro-batches"""
PairCalls = Callable[[Side, Side, Matching, Batches], list[tuple[Group, Group]]]


def pair_calls(a: Side, b: Side, matching: Matching, batches: Batches) -> list[tuple[Group, Group]]:
    """Return the groups of calls that both sides made, in the order of A."""
    partner_of = {pair.a: pair.b for pair in matching.pairs if pair.has_calls}
    mine = _groups(a.calls, batches.of_a)
    theirs: dict[tuple[int, int], list[Group]] = defaultdict(list)
    for group in _groups(b.calls, batches.of_b):
        theirs[batches.of_b.get(group[0].micro, group[0].micro), group[0].module].append(group)
    by_module: dict[tuple[int, int], list[Group]] = defaultdict(list)
    for group in mine:
        if group[0].module in partner_of:
            by_module[batches.of_a.get(group[0].micro, group[0].micro), partner_of[group[0].module]].append(group)
    found: dict[Group, Group] = {}
    known: dict[Call, Call] = {}
    for key, groups in by_module.items():
        for one, other in _aligned(groups, theirs.get(key, []), known, partner_of):
            found[one] = other
            known[one[0]] = other[0]
    taken: set[Group] = set()
    pairs = []
    for group in mine:
        other = found.get(group)
        if other is not None and other not in taken:
            taken.add(other)
            pairs.append((group, other))
    return pairs


def _groups(calls: Iterable[Call], targets: Mapping[int, int]) -> list[Group]:
    """Return calls that are the same one in several micro-batches together, in the order of the first."""
    found: dict[tuple[int, int, int], list[Call]] = defaultdict(list)
    for call in calls:
        found[targets.get(call.micro, call.micro), call.module, call.number].append(call)
    return [tuple(group) for group in found.values()]


def _aligned(
    mine: Sequence[Group], theirs: Sequence[Group], known: Mapping[Call, Call], partner_of: Mapping[int, int]
) -> Iterable[tuple[Group, Group]]:
    """Pair the calls of two modules: in order, or by equal inputs; if one side made more, by callers and place."""
    if len(mine) == len(theirs):
        return [(group, theirs[at]) for group, at in zip(mine, _by_inputs(mine, theirs), strict=True)]
    has_more = len(mine) > len(theirs)
    found, left = [], list(mine if has_more else theirs)
    for group in theirs if has_more else mine:
        pairs = [(each, group) if has_more else (group, each) for each in left]
        fits = [(x, y) for x, y in pairs if x[0].caller not in known or known[x[0].caller] is y[0].caller]
        same = [(x, y) for x, y in fits if _given(x) & _given(y)] or [pair for pair in fits if _are_given_alike(*pair)]
        at_place = [(x, y) for x, y in fits if partner_of.get(_before(x[0]), -1) == _before(y[0])]
        for pair in (same or at_place or fits)[:1]:
            found.append(pair)
            left = left[left.index(pair[0 if has_more else 1]) + 1 :]
    return found


def _before(call: Call) -> int:
    """Return the module that the caller of a call called before it; -1 without."""
    ended = [each for each in call.caller.inner if each.end < call.begin] if call.caller is not None else []
    return ended[-1].module if ended else -1


def _by_inputs(mine: Sequence[Group], theirs: Sequence[Group]) -> list[int]:
    """Return the order of B's calls in which they were given what A's were; as they are if that tells nothing."""
    plain = list(range(len(mine)))
    given = [_given(group) for group in mine], [_given(group) for group in theirs]
    if len({frozenset(each) for side in given for each in side}) == 1:  # what they return tells them apart
        given = [_given(group, Role.OUTPUT) for group in mine], [_given(group, Role.OUTPUT) for group in theirs]
    if len(mine) < 2 or all(not x or not y or x & y for x, y in zip(*given, strict=True)):
        return plain
    order: dict[int, int] = {}
    for i, hashes in enumerate(given[0]):
        fits = [j for j, others in enumerate(given[1]) if hashes & others]
        if len(fits) == 1 and sum(bool(each & given[1][fits[0]]) for each in given[0]) == 1:
            order[i] = fits[0]
    rest = [j for j in plain if j not in order.values()]
    return [order[i] if i in order else rest.pop(0) for i in plain]


def _given(group: Group, role: Role = Role.INPUT) -> set[object]:
    return {tensor.hash for tensor in group[0].of(role).values() if tensor.hash is not None}


def _are_given_alike(mine: Group, theirs: Group) -> bool:
    """Return True if by their statistics two calls may have been given the same."""
    tensors = [list(group[0].of(Role.INPUT).values()) for group in (mine, theirs)]
    pairs = list(zip(*tensors, strict=False))
    return bool(pairs) and all(x.size == y.size and from_statistics(x, y).size < FITS for x, y in pairs)
