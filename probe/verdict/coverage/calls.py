"""Calls that one side makes more often than the other, in another order, or again in backward."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

from probe.matching.changes import Change, ChangeKind
from probe.notes import Note, note
from probe.structure.tree import Tree
from probe.verdict.coverage.tally import loose_calls, micro_in, passes
from probe.verdict.side import Call, Side
from probe.verdict.steps.step import Step


def changes_in(step: Step, trees: Sequence[Tree]) -> Iterator[Change]:
    """Yield which modules one side called more often, which in another order, and which it ran again in backward."""
    for name in "AB":
        yield from _more_often(step, name)
    began: dict[int, list[int]] = defaultdict(list)
    for node in step.nodes:
        began[node.a.module].append(node.b.begin)
    moved = [module for module, times in began.items() if any(x > y for x, y in pairwise(times))]
    if moved:
        mine = tuple(step.path(module) for module in moved)
        theirs = tuple(step.b.reader.modules[step.pair_of[module].b].path for module in moved)
        said = note("calls-in-another-order", step=step.a.step, paths=mine)
        yield Change(ChangeKind.CALLED_OTHERWISE, mine, theirs, said)
    yield from _recomputed(step, trees)


def _more_often(step: Step, name: str) -> Iterator[Change]:
    """Yield which calls of a paired module the other side has none for, of one micro-batch."""
    half, nodes = (step.a, step.of_a) if name == "A" else (step.b, step.of_b)
    ran = {call.module for call in nodes}
    both = passes(step, "A") & passes(step, "B")
    found: dict[int, list[Call]] = defaultdict(list)
    for call in loose_calls(step, name):
        is_inside = (call.caller is None or call.caller in nodes) and micro_in(step, call, name) in both
        if call.module in ran and is_inside and all(other.micro == call.micro for other in found[call.module]):
            found[call.module].append(call)
    for module, calls in [each for each in found.items() if each[1]]:
        first, info = calls[0], half.reader.modules[module]
        there = module if name == "B" else step.pair_of[module].b
        path, numbers = step.b.reader.modules[there].path, tuple(call.number for call in calls)
        total = sum(call.module == module and call.micro == first.micro for call in half.calls)
        where = {"path": path, "class_name": info.class_name, "step": step.a.step, "place": _between(half, first)}
        said = note("other-number-of-calls", side=name, calls=numbers, total=total, **where)
        kind = ChangeKind.CALLED_LESS if name == "A" else ChangeKind.CALLED_MORE
        yield Change(kind, (info.path,) if name == "A" else (), () if name == "A" else (info.path,), said)


def _between(half: Side, call: Call) -> Note:
    """Say between which other calls of its caller a call is."""
    beside = [other for other in half.calls if other.caller is call.caller and other is not call]
    before = max((other for other in beside if other.end <= call.begin), key=lambda each: each.end, default=None)
    after = min((other for other in beside if other.begin >= call.end), key=lambda each: each.begin, default=None)

    def named(other: Call | None) -> Note | None:
        if other is None:
            return None
        several = sum(each.module == other.module and each.micro == other.micro for each in half.calls) > 1
        return note("call-of-module", path=other.path, call=other.number if several else None)

    return note("place-among-calls", before=named(before), after=named(after))


def _recomputed(step: Step, trees: Sequence[Tree]) -> Iterator[Change]:
    again = [_outermost(half, tree) for half, tree in zip((step.a, step.b), trees, strict=True)]
    b_of = {module: pair.b for module, pair in step.pair_of.items()}
    mine = {module for module in again[0] if b_of.get(module) not in again[1]}
    theirs = set(again[1]) - {b_of.get(module) for module in again[0]}
    for name, modules, tree in (("A", mine, trees[0]), ("B", theirs, trees[1])):
        if modules:
            paths = tuple(tree.path(module) for module in sorted(modules))
            said = note("recomputed-on-one-side", side=name, other="B" if name == "A" else "A", paths=paths)
            yield Change(ChangeKind.RECOMPUTED, paths if name == "A" else (), paths if name == "B" else (), said)


def _outermost(half: Side, tree: Tree) -> list[int]:
    """Return the modules that nothing that was run again itself ran again; if all in a module were, that one."""
    found, ran = half.recomputed, {call.module for call in half.calls}
    above = {
        parent: [child for child in tree.children[parent].values() if child in ran]
        for parent in {tree.modules[module].parent for module in found}
        if parent in ran
    }
    whole = {child: parent for parent, children in above.items() if set(children) <= set(found) for child in children}
    return list(dict.fromkeys(whole.get(module, module) for module in found))
