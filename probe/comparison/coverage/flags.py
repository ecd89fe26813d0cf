"""Flags that were recorded beside the numbers and differ where every number agrees: they are said, and no findings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from probe.comparison.ledger.known import Judged
from probe.comparison.notes import Note, note
from probe.comparison.optimizer.settings import groups_of
from probe.comparison.steps.events import StepPairs
from probe.comparison.steps.step_half import Event, StepHalf
from probe.records import Phase, Role


def differing_flags(pairs: StepPairs, judged: Iterable[Judged]) -> Iterator[Note]:
    """Yield which weights learn, or are trained, on one side only, and which calls ran under another autocast.

    Parameters
    ----------
    pairs
        the step
    judged
        what was judged in it, and of which nothing is wrong
    """
    weights = [
        each.event for each in judged
        if each.event.role is Role.PARAM and each.event.phase is Phase.INIT and not each.event.is_one_sided
    ]  # fmt: skip
    learns = {"A": dict[str, None](), "B": dict[str, None]()}
    trained = {"A": dict[str, None](), "B": dict[str, None]()}
    given = None if all(map(_trains_all, pairs.halves)) else [groups_of(pairs, half.name) for half in pairs.halves]
    for event in weights:
        own = [half for half in pairs.halves if half.side.columns["requires_grad"][half.row(event)]]
        if len(own) == 1:
            learns[own[0].name][_name(own[0], event)] = None
        elif len(own) == 2 and given and all(given):
            key = event.pair, pairs.canonical(event)
            has = [half for half, groups in zip(own, given, strict=True) if key in groups]
            if len(has) == 1:
                trained[has[0].name][_name(has[0], event)] = None
    for alone, code in ((learns, "weights-learn-on-one-side"), (trained, "weights-trained-on-one-side")):
        if any(alone.values()):
            yield note(code, a=tuple(alone["A"]), b=tuple(alone["B"]))
    yield from _other_autocast(pairs)


def _trains_all(half: StepHalf) -> bool:
    """Tell whether a side's optimizers were given all parameters."""
    given = {number for group in half.side.reader.groups_of(half.side.step) for number in group.parameters}
    return len(given) == sum(not each.is_buffer for each in half.side.parameters)


def _name(half: StepHalf, event: Event) -> str:
    return f"{half.path(half.modules[event.pair])}.{half.slot(event)}".removeprefix(".")


def _other_autocast(pairs: StepPairs) -> Iterator[Note]:
    a, b = pairs.halves
    if len({call.autocast for half in (a, b) for call in half.calls}) == 1:
        return
    casts = [{call.key: call.autocast for call in half.calls} for half in (a, b)]
    nodes = [node for node in pairs.nodes.values() if casts[0][a.key(node)] != casts[1][b.key(node)]]
    if nodes:
        first = min(nodes, key=lambda node: node.begin)
        in_a, in_b = (cast[half.key(first)] for cast, half in zip(casts, (a, b), strict=True))
        yield note("other-autocast", count=len(nodes), path=a.path(a.modules[first.pair]), a=in_a, b=in_b)
