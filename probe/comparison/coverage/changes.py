"""What one side does otherwise than the other: calls that it makes more often, in another order, or again in backward."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from probe.comparison.notes import Note, note
from probe.comparison.steps.events import StepPairs
from probe.comparison.steps.side import Side
from probe.comparison.steps.step_half import Call, Node, StepHalf
from probe.matching.changes import Change, ChangeKind
from probe.structure.tree import Tree

_MOST_NAMED = 4
OF_ORDER = (ChangeKind.SWAPPED, ChangeKind.REORDERED)
OF_NUMBER = (ChangeKind.INSERTED, ChangeKind.REMOVED)


def change_at(changes: Iterable[Change], kinds: Sequence[ChangeKind], side: str, paths: Iterable[str]) -> Change | None:
    """Return the first change of some kinds that is about all of some modules of a side."""
    wanted = set(paths)
    found = (change for change in changes if change.kind in kinds)
    return next((change for change in found if wanted <= set(change.a if side == "A" else change.b)), None)


def changed_calls(pairs: StepPairs, tree_a: Tree, tree_b: Tree) -> Iterator[Change]:
    """Say which modules one side called more often, which in another order, and which it ran again in backward."""
    for half in pairs.halves:
        for module, numbers in list(_more_often(pairs, half).items())[:_MOST_NAMED]:
            yield more_calls(pairs, half, module, numbers)
    both = [pairs.matching.pairs[pair] for pair in dict.fromkeys(pairs.reordered)]
    if both:
        mine, theirs = [tree_a.path(pair.a) for pair in both], [tree_b.path(pair.b) for pair in both]
        said = note("calls-in-another-order", step=pairs.step, paths=tuple(mine))
        yield Change(ChangeKind.CALLED_OTHERWISE, tuple(mine), tuple(theirs), said)
    yield from _recomputed(pairs, tree_a, tree_b)


def more_calls(pairs: StepPairs, half: StepHalf, module: int, numbers: Sequence[int]) -> Change:
    """Say which calls of a module the other side has none for, and between which others the first of them is."""
    is_a, info = half.name == "A", half.side.reader.modules[module]
    first = next(call for call in half.calls if call.module == module and call.number == numbers[0])
    total = sum(call.module == module and call.micro == first.micro for call in half.calls)
    b = pairs.half("B")
    said = note(
        "other-number-of-calls", side=half.name, path=b.path(b.modules[half.pair_of[module]]), class_name=info.class_name,
        step=pairs.step, calls=tuple(numbers), total=total, place=neighbours(half, first),
    )  # fmt: skip
    kind = ChangeKind.CALLED_LESS if is_a else ChangeKind.CALLED_MORE
    return Change(kind, (info.path,) if is_a else (), () if is_a else (info.path,), said)


def _more_often(pairs: StepPairs, half: StepHalf) -> dict[int, list[int]]:
    """Return the numbers of calls without a counterpart, by module, of modules that have one; in one micro-batch."""
    ran_on_both = {node.pair for node in pairs.nodes.values()}  # a list of layers on one side is never called
    found: dict[int, tuple[int, list[int]]] = {}
    for node in pairs.nodes.values():
        for loose in half.loose(node):
            if half.pair_of.get(loose.module) in ran_on_both:
                micro, numbers = found.setdefault(loose.module, (loose.micro, []))
                if micro == loose.micro:
                    numbers.append(loose.call)
    return {module: numbers for module, (_, numbers) in found.items()}


def neighbours(half: StepHalf, call: Call) -> Note:
    """Say between which other calls of its caller a call is."""
    beside = [other for other in half.calls if other.caller == call.caller and other.row != call.row]
    before = max((other for other in beside if other.end <= call.begin), key=lambda each: each.end, default=None)
    after = min((other for other in beside if other.begin >= call.end), key=lambda each: each.begin, default=None)

    def named(other: Call | None) -> Note | None:
        if other is None:
            return None
        several = sum(each.module == other.module and each.micro == other.micro for each in half.calls) > 1
        return note("call-of-module", path=half.path(other.module), call=other.number if several else None)

    return note("place-among-calls", before=named(before), after=named(after))


def _recomputed(pairs: StepPairs, tree_a: Tree, tree_b: Tree) -> Iterator[Change]:
    again = [_outermost_again(side, tree) for side, tree in ((pairs.a, tree_a), (pairs.b, tree_b))]
    partner = {pair.a: pair.b for pair in pairs.matching.pairs}
    theirs = {module for module in again[1] if module not in {partner.get(mine) for mine in again[0]}}
    mine = {module for module in again[0] if partner.get(module) not in set(again[1])}
    for name, modules, tree in (("A", mine, tree_a), ("B", theirs, tree_b)):
        if modules:
            paths = tuple(tree.path(module) for module in sorted(modules))
            said = note("recomputed-on-one-side", side=name, other="B" if name == "A" else "A", paths=paths)
            yield Change(ChangeKind.RECOMPUTED, paths if name == "A" else (), paths if name == "B" else (), said)


def _outermost_again(side: Side, tree: Tree) -> list[int]:
    """Return the modules that were run again by nothing that was run again itself; where all in a module were, that one."""
    again = side.calls["recomputed"] == 1
    if not again.any():
        return []
    first = side.first_call
    rows = {first + row for row in again.nonzero()[0].tolist()}
    found = side.calls[again]
    callers = zip(found["module"].tolist(), found["caller"].tolist(), strict=True)
    outermost = dict.fromkeys(module for module, caller in callers if caller not in rows)
    ran = set(side.calls["module"].tolist())
    whole = {
        parent: [child for child in tree.children[parent].values() if child in ran]
        for parent in dict.fromkeys(tree.modules[module].parent for module in outermost)
        if parent in ran
    }
    inside = {
        child: parent for parent, children in whole.items() if outermost.keys() >= set(children) for child in children
    }
    return list(dict.fromkeys(inside.get(module, module) for module in outermost))


def exchanged(node: Node, siblings: Sequence[Node]) -> tuple[Node, Node] | None:
    """Return the call that A, and the one that B, makes first where the two sides call different modules.

    None unless ``node`` is one of those that run at another place.
    """
    moved = _moved(siblings)
    return moved[0] if any(node is mine for mine, _ in moved) else None


def is_exchanged(mine: Node, theirs: Node, siblings: Sequence[Node]) -> bool:
    """Tell whether two calls run in each other's place, and no others do."""
    moved = _moved(siblings)
    return len(moved) == 2 and any(a is theirs and b is mine for a, b in moved)


def _moved(siblings: Sequence[Node]) -> list[tuple[Node, Node]]:
    mine = sorted(siblings, key=lambda each: each.begin)
    theirs = sorted(siblings, key=lambda each: each.begin_b)
    return [(a, b) for a, b in zip(mine, theirs, strict=True) if a is not b]
