"""Blocks of which the parts are paired: a pair of modules whose paired children are children of the two is a pair."""

from __future__ import annotations

from dataclasses import replace

from probe.matching.result import Matching, Pair, Reason
from probe.structure.tree import Tree


def with_enclosing(matching: Matching, a: Tree, b: Tree) -> Matching:
    """Return a matching with the modules that hold paired ones, from the inside out; class names do not count.

    Both hold as many parameters, in one module or several, packed or not.
    """
    pairs = {pair.a: pair for pair in matching.pairs}
    taken = {pair.b for pair in matching.pairs}
    for module in sorted(matching.only_a, key=lambda index: -a.path(index).count(".")):
        inner = [pairs[child] for child in a.children[module].values() if child in pairs]
        holders = {b.modules[pair.b].parent for pair in inner}
        holder = holders.pop() if len(holders) == 1 else -1
        if holder < 0 or holder in taken or a.modules[module].n_params != b.modules[holder].n_params:
            continue
        pairs[module] = Pair(module, holder, Reason.SAME_STRUCTURE, min(pair.confidence for pair in inner))
        taken.add(holder)
    found = [pair.a for pair in pairs.values() if pair not in matching.pairs]
    if not found:
        return matching
    partners = {pairs[module].b for module in found}
    return replace(
        matching,
        pairs=tuple(sorted(pairs.values(), key=lambda pair: pair.a)),
        only_a=tuple(each for each in matching.only_a if each not in found),
        only_b=tuple(each for each in matching.only_b if each not in partners),
    )
