"""Pairs for what a mapping and equal paths leave: by structure, by order, and by recorded values.

Nothing here is certain, so every pair says how sure it is. Large blocks meet by the sizes of all weights in them, which
neither names nor nesting nor fusing changes (`regions`); single modules inside by shapes and the order in which they run
(`line`), layers that are one layer on the other side among them (`fused`); modules that hold others when most of what
they hold is paired (`inner`). Where both models have the same weights, their numbers decide (`values`).
Here is what tells whether there is anything to do; what does it is in `completing`, imported where there is.
"""

from __future__ import annotations

from dataclasses import replace

from probe.matching.automatic import likeness
from probe.matching.result import Matching, Reason
from probe.structure.tree import Tree


def leaves_something(matching: Matching, a: Tree, b: Tree) -> bool:
    """Return True if `complete` has anything to do: something left on both sides, or pairs of doubtful paths."""
    return bool(matching.only_a and matching.only_b) or any(
        pair.reason is Reason.SAME_PATH and _may_be_doubtful(a, pair.a, b, pair.b) for pair in matching.pairs
    )


def may_be_partial(matching: Matching, a: Tree, b: Tree) -> bool:
    """Return True if a line of the mapping pairs a layer that has siblings without a partner."""
    lonely = [
        {tree.modules[i].parent for i in only if not tree.children[i]}
        for only, tree in ((matching.only_a, a), (matching.only_b, b))
    ]
    return any(
        a.modules[pair.a].parent in lonely[0] or b.modules[pair.b].parent in lonely[1]
        for pair in matching.pairs
        if pair.reason is Reason.MAPPED
    )


def _may_be_doubtful(a: Tree, i: int, b: Tree, j: int) -> bool:
    """Return True if the classes of two modules leave open that they are a pair."""
    classes = a.class_name(i), b.class_name(j)
    are_leaves = not a.children[i] and not b.children[j]
    return likeness.of_classes(*classes) < 0 or (are_leaves and classes[0] != classes[1])


def without_guesses(matching: Matching, least: float) -> Matching:
    """Return a matching without the pairs that are less sure than ``least``; what they were is left on both sides."""
    lost = [pair for pair in matching.pairs if pair.confidence < least]
    if not lost:
        return matching
    gone_a, gone_b = {pair.a for pair in lost}, {pair.b for pair in lost}
    bundles = [
        bundle for bundle in matching.bundles
        if bundle.parts[0] not in (gone_a if bundle.side == "A" else gone_b)
    ]  # fmt: skip
    for bundle in set(matching.bundles).difference(bundles):
        (gone_a if bundle.side == "A" else gone_b).update(bundle.parts)
    weights = [
        each for each in matching.weight_bundles if each.whole[0] not in (gone_b if each.side == "A" else gone_a)
    ]
    return replace(
        matching,
        pairs=tuple(pair for pair in matching.pairs if pair.confidence >= least),
        only_a=tuple(sorted({*matching.only_a, *gone_a})),
        only_b=tuple(sorted({*matching.only_b, *gone_b})),
        bundles=tuple(bundles),
        weight_bundles=tuple(weights),
    )
