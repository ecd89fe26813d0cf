"""What was recorded at places that both sides have and took part in no comparison: it is said, whatever the verdict rests on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from probe.comparison.distance.metrics import NO_STATISTICS, Status
from probe.comparison.ledger.known import Judged
from probe.comparison.notes import Note, note
from probe.comparison.optimizer.counters import is_counter
from probe.comparison.steps.events import StepPairs
from probe.comparison.steps.step_half import Event, StepHalf
from probe.records import Phase, Role

_OF_CALLS = (Role.INPUT, Role.OUTPUT, Role.VALUE)
_COUNTER = "num_batches_tracked"
"""a counter of PyTorch's BatchNorm that other frameworks do not have"""
_BUFFER = f"{Role.BUFFER.label} "


class Uncompared:
    """Names, over all steps, of tensors that one side alone has, or that were of no use for a comparison.

    Not of weights, of what the model as a whole is given, and of calls without a counterpart: these are said elsewhere. Nor of a tensor
    that, by its hash, is one that was compared or is told so, or what such a call returned: it is handed on, and named once.
    """

    def __init__(self) -> None:
        self._alone: dict[str, dict[str, None]] = {"A": {}, "B": {}}
        self._unlike: dict[str, Note | None] = {}
        """why, by name"""

    def add(self, pairs: StepPairs, judged: Iterable[Judged]) -> None:
        """Take in a step, and what was judged in it."""
        events = [each.event for each in judged]
        left = (each.event for each in judged if each.verdict == "not comparable" and _is_unlike(each.event))
        self._add_unlike(pairs, left)
        for half, taken in zip(pairs.halves, _taken(pairs, events), strict=True):
            if pairs.same_micros:
                self._add_calls(pairs, half, taken)
            self._add_states(pairs, half, taken)
        self._add_buffers(pairs)

    @property
    def buffers(self) -> dict[str, list[str]]:
        """By side, the buffers that have no counterpart; under ``""`` those that have another form there."""
        named = {**self._alone, "": self._unlike}
        return {
            side: [name.removeprefix(_BUFFER) for name in names if name.startswith(_BUFFER)]
            for side, names in named.items()
        }

    def notes(self) -> Iterator[Note]:
        """Say what was not compared."""
        a, b = (tuple(self._alone[side]) for side in "AB")
        if a or b:
            have_buffers = all(any(name.startswith(_BUFFER) for name in names) for names in (a, b))
            yield note("recorded-without-counterpart", a=a, b=b, have_buffers=have_buffers)
        if self._unlike:
            yield note("tensors-not-comparable", names=tuple(self._unlike), why=next(iter(self._unlike.values())))

    def _add_unlike(self, pairs: StepPairs, events: Iterable[Event]) -> None:
        """Keep pairs of tensors that have no form in common."""
        tops = {node.pair for node in pairs.nodes.values() if node.parent is None}
        for event in events:
            is_of_call = event.role in _OF_CALLS and not (event.role is Role.INPUT and event.pair in tops)
            is_state = event.role is Role.STATE and not _are_counters(pairs, event)
            if event.metrics is not None and (is_of_call or is_state):
                self._unlike.setdefault(_named(pairs.half("A"), event), event.metrics.why)

    def _add_calls(self, pairs: StepPairs, half: StepHalf, taken: set[int]) -> None:
        """Keep what paired calls were given, returned and logged on this side, and nothing was compared with."""
        keys = {
            key
            for role in _OF_CALLS
            for key, slots in half.rows.by_role[role].items()
            if not all(map(taken.issuperset, slots.values()))
        }
        nodes = [node for node in pairs.nodes.values() if half.key(node) in keys]
        other, known = pairs.half(half.other), _known(pairs, half, taken) if nodes else set()
        for node in nodes:
            if not other.side.watches(Phase.FORWARD, other.modules[node.pair]):
                continue
            for role in _OF_CALLS if node.parent is not None else _OF_CALLS[1:]:
                for slot, rows in half.rows.get(half.key(node), role).items():
                    new = [row for row in rows if row not in taken and _is_new(half, row, known)]
                    known.update(half.side.digest(row) for row in new)
                    if new:
                        name = f"{role.label} {slot} of {half.path(half.modules[node.pair]) or 'the root'}"
                        self._alone[half.name][name] = None

    def _add_states(self, pairs: StepPairs, half: StepHalf, taken: set[int]) -> None:
        """Keep the optimizer's states of parameters of which it has others on the other side."""
        other = pairs.half(half.other)
        left = {
            module
            for (_, module, _), slots in half.rows.by_role[Role.STATE].items()
            if not all(map(taken.issuperset, slots.values()))
        }
        for pair, module in enumerate(half.modules) if left else ():
            slots = half.rows.get((0, module, 0), Role.STATE) if module in left else {}
            for slot, found in slots.items() if other.side.watches(Phase.UPDATE, other.modules[pair]) else ():
                name = slot.partition(":")[2]
                if is_counter(half.side, found[-1], name.partition(".")[2]):
                    continue  # as a number of steps, it is compared with what another optimizer counts by
                if not taken.intersection(found) and math.prod(half.side.shapes[found[-1]]):
                    self._alone[half.name][f"state {name} of {half.path(module) or 'the root'}"] = None

    def _add_buffers(self, pairs: StepPairs) -> None:
        """Keep the buffers with which one side alone begins, and those that have no form in common."""
        frameworks = {half.side.reader.info.framework for half in pairs.halves}
        for event in pairs.parameter_events(Phase.INIT, Role.BUFFER):
            half = pairs.half("A" if event.row_a >= 0 else "B")
            if event.is_one_sided:
                is_counter = len(frameworks) > 1 and pairs.canonical(event) == _COUNTER
                if not is_counter and not pairs.is_unwatched(event) and math.prod(half.side.shapes[half.row(event)]):
                    self._alone[half.name][_named(half, event)] = None
            elif event.metrics is not None and _is_unlike(event):
                self._unlike.setdefault(_named(half, event), event.metrics.why)


def _are_counters(pairs: StepPairs, event: Event) -> bool:
    """Tell whether states count steps on both sides: they are held against each other as numbers, whatever they are kept in."""
    return all(is_counter(half.side, half.row(event), half.slot(event).partition(".")[2]) for half in pairs.halves)


def _is_unlike(event: Event) -> bool:
    """Tell whether two tensors have no form in common, though both were measured."""
    metrics = event.metrics
    return metrics is not None and metrics.status is Status.NOT_COMPARABLE and metrics.why != NO_STATISTICS


def _taken(pairs: StepPairs, events: Iterable[Event]) -> tuple[set[int], set[int]]:
    both = [event for event in events if not event.is_one_sided]
    return {event.row_a for event in both}, {event.row_b for event in both}


def _known(pairs: StepPairs, half: StepHalf, taken: set[int]) -> set[object]:
    """Return the hashes of what was compared, of what the model was given, and of what calls without a counterpart returned."""
    tops = [half.key(node) for node in pairs.nodes.values() if node.parent is None]
    paired = {half.key(node) for node in pairs.nodes.values()}
    loose = [call.key for call in half.calls if call.key not in paired]
    known: set[object] = {*half.side.digests_of(taken)}
    for keys, role in ((tops, Role.INPUT), (loose, Role.OUTPUT)):
        known.update(digest for key in keys for digest in half.hashes(key, role))
    known.discard(None)
    return known


def _is_new(half: StepHalf, row: int, known: set[object]) -> bool:
    """Tell whether a tensor has elements, and is, by its hash, nothing else that was compared or given."""
    return math.prod(half.side.shapes[row]) > 0 and half.side.digest(row) not in known


def _named(half: StepHalf, event: Event) -> str:
    return f"{event.role.label} {half.slot(event)} of {half.path(half.modules[event.pair]) or 'the root'}"
