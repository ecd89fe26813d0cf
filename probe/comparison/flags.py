"""Flags that were recorded beside the numbers and differ where every number agrees: they are said, and no findings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from probe.comparison.events import StepPairs
from probe.comparison.guards import grouped
from probe.comparison.ledger import Judged
from probe.records import Phase, Role

_MOST_NAMED = 4


def differing_flags(pairs: StepPairs, judged: Iterable[Judged]) -> Iterator[str]:
    """Yield which weights need a gradient on one side only, and which calls ran under another autocast.

    Parameters
    ----------
    pairs
        the step
    judged
        what was judged in it, and of which nothing is wrong
    """
    alone: dict[str, dict[str, None]] = {"A": {}, "B": {}}
    for event in (each.event for each in judged):
        if (event.phase, event.role) == (Phase.INIT, Role.PARAM) and not event.is_one_sided:
            learns = [half.side.columns["requires_grad"][half.row(event)] for half in pairs.halves]
            if learns[0] != learns[1]:
                half = pairs.half("A" if learns[0] else "B")
                path = half.path(half.modules[event.pair])
                alone[half.name][f"{path}.{half.slot(event)}" if path else half.slot(event)] = None
    texts = [f"{grouped(names, _MOST_NAMED)} in {side}" for side, names in alone.items() if names]
    if texts:
        yield f"weights that need a gradient (requires_grad) on one side only: {'; '.join(texts)}"
    yield from _other_autocast(pairs)


def _other_autocast(pairs: StepPairs) -> Iterator[str]:
    a, b = pairs.halves
    casts = [{call.key: call.autocast for call in half.calls} for half in (a, b)]
    nodes = [node for node in pairs.nodes.values() if casts[0][a.key(node)] != casts[1][b.key(node)]]
    if nodes:
        first = min(nodes, key=lambda node: node.begin)
        dtypes = [cast[half.key(first)] or "none" for cast, half in zip(casts, (a, b), strict=True)]
        count = f"{len(nodes)} calls run" if len(nodes) > 1 else "1 call runs"
        where = a.path(a.modules[first.pair]) or "the root"
        yield f"{count} under another autocast, first {where}: {dtypes[0]} in A, {dtypes[1]} in B"
