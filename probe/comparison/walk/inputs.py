"""What both runs were given: the model's inputs, and what the program logged beside the model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from probe.comparison.distance.masks import INVERTED
from probe.comparison.distance.metrics import Status, kind_of
from probe.comparison.ledger.known import Judged
from probe.comparison.notes import Note, note
from probe.comparison.result import Inputs
from probe.comparison.steps.events import StepPairs
from probe.comparison.steps.step_half import Event, Node, StepHalf
from probe.records import Phase, Role

_EQUAL, _CLOSE, _UNKNOWN, _DIFFERENT = range(4)


def is_given(pairs: StepPairs, node: Node, event: Event) -> bool:
    """Tell whether a tensor is part of the batch though the model is not called with it, or is so on one side only.

    That is what was logged outside of all modules before the model ran, and integers behind it: labels.
    """
    if node.parent is not None or event.role not in (Role.INPUT, Role.VALUE):
        return False
    roles = [half.side.columns["role"][half.row(event)] for half in pairs.halves]
    if event.role is Role.INPUT:
        return Role.VALUE in roles
    if not _is_outside(pairs, event):
        return False
    return ran_before(pairs, node, event) or all(
        kind_of(half.side.dtypes[half.row(event)]) == "integer" for half in pairs.halves
    )


def ran_before(pairs: StepPairs, node: Node, event: Event) -> bool:
    """Tell whether a tensor was there on both sides before a call began."""
    return pairs.a.columns["seq"][event.row_a] < node.begin and pairs.b.columns["seq"][event.row_b] < node.begin_b


def maker_of(half: StepHalf, node: Node, event: Event) -> str | None:
    """Return the path of the module that returned, earlier in the micro-batch, what a call is given on one side; None if none did.

    So it is handed from one to the next where the program calls several models, or the stages of one, in turn.
    """
    digest, (begin, _) = half.side.digest(half.row(event)), half.span(node)
    ended = (call for call in half.calls if call.micro == node.micro and call.end < begin)
    made = [call for call in ended if digest is not None and digest in half.hashes(call.key, Role.OUTPUT)]
    return half.path(max(made, key=lambda call: call.end).module) if made else None


def lone_caller(pairs: StepPairs, node: Node) -> str:
    """Return who called a paired call whose caller has no partner, by its path in A or else in B; ``""`` where nobody did."""
    for half in pairs.halves if node.parent is None else ():
        by_row = {call.row: call for call in half.calls}
        own = next((call for call in half.calls if call.key == half.key(node)), None)
        caller = None if own is None else by_row.get(own.caller)
        if caller is not None:
            return half.path(caller.module)
    return ""


def is_handed(pairs: StepPairs, node: Node, event: Event) -> bool:
    """Tell whether what a call without a known caller is given is no batch: it learns, or another one returned it, on either side."""
    if node.parent is not None or event.role is not Role.INPUT or event.is_one_sided:
        return False
    learns = all(half.side.columns["requires_grad"][half.row(event)] for half in pairs.halves)
    return learns or any(maker_of(half, node, event) is not None for half in pairs.halves)


def _is_outside(pairs: StepPairs, event: Event) -> bool:
    phases = (pairs.a.columns["phase"][event.row_a], pairs.b.columns["phase"][event.row_b])
    return phases == (Phase.LOSS, Phase.LOSS)


def given_otherwise(pairs: StepPairs, micro: int) -> Iterator[tuple[Node, Event]]:
    """Yield what one side hands to the model under the name under which the other side logs it."""
    for node in pairs.nodes.values():
        if node.micro != micro or node.parent is not None:
            continue
        key_a, key_b = (half.key(node) for half in pairs.halves)
        for role_a, role_b in ((Role.INPUT, Role.VALUE), (Role.VALUE, Role.INPUT)):
            rows_a, rows_b = pairs.rows_a.get(key_a, role_a), pairs.rows_b.get(key_b, role_b)
            other_a, other_b = pairs.rows_a.get(key_a, role_b), pairs.rows_b.get(key_b, role_a)
            for slot in rows_a.keys() & rows_b.keys() - other_a.keys() - other_b.keys():
                event = Event(pairs.step, micro, Phase.FORWARD, Role.INPUT, node.pair, node.call, slot, slot,
                              rows_a[slot][0], rows_b[slot][0])  # fmt: skip
                event.metrics = pairs.measured(event, 1.0)
                yield node, event


def logged_apart(pairs: StepPairs, micro: int) -> Iterator[tuple[Node, Event]]:
    """Yield what was logged outside of all modules where no call of both roots stands for it.

    That is so where no pass had gradients, and where a wrapper is the root of one side alone.
    """
    root = pairs.nodes.get((0, 0, 0))
    tops = [node for node in pairs.nodes.values() if node.parent is None]
    if not tops or (root is not None and pairs.matching.pairs[root.pair].b == 0):
        return
    node = min(tops, key=lambda top: top.begin)
    if node.micro != micro:
        return
    rows_a, rows_b = pairs.rows_a.get((0, 0, 0), Role.VALUE), pairs.rows_b.get((0, 0, 0), Role.VALUE)
    for slot in [slot for slot in rows_a if slot in rows_b]:
        for i, j in zip(rows_a[slot], rows_b[slot], strict=False):
            event = Event(pairs.step, micro, Phase.FORWARD, Role.VALUE, node.pair, node.call, slot, slot, i, j)
            event.metrics = pairs.measured(event, 1.0)
            if _is_outside(pairs, event):
                yield node, event


class GivenTally:
    """How the inputs of all steps compare, by name."""

    def __init__(self) -> None:
        self._found: dict[str, int] = {}
        self._alone: dict[str, str] = {}

    def add(self, pairs: StepPairs, judged: Iterable[Judged], lacking: Iterable[tuple[str, str]]) -> None:
        """Take in a step: its verdicts, and (slot, side) of the model's inputs that one side alone has."""
        for each in judged:
            event = each.event
            if event.phase is not Phase.FORWARD or event.role not in (Role.INPUT, Role.VALUE):
                continue
            node = pairs.nodes.get((event.micro, pairs.matching.pairs[event.pair].a, event.call))
            if node is None or node.parent is not None:
                continue
            if event.role is Role.INPUT or is_given(pairs, node, event):
                same = event.slot_a == event.slot_b
                name = event.slot_a if same else f"{event.slot_a} (in B {event.slot_b})"
                level = _level(each)
                if level is not _DIFFERENT or not is_handed(pairs, node, event):
                    self._found[name] = max(self._found.get(name, _EQUAL), level)
        for slot, side in lacking:
            self._alone[slot] = side

    @property
    def inputs(self) -> Inputs:
        """What was found."""
        by_level = [tuple(name for name, level in self._found.items() if level == wanted) for wanted in range(4)]
        alone = [(slot, side) for slot, side in self._alone.items() if slot not in self._found]
        only = [tuple(slot for slot, side in alone if side == wanted) for wanted in ("A", "B")]
        return Inputs(by_level[_EQUAL], by_level[_CLOSE], by_level[_DIFFERENT], by_level[_UNKNOWN], *only)


def _level(judged: Judged) -> int:
    metrics = judged.event.metrics
    if metrics is None or not metrics.is_known:
        return _UNKNOWN
    if metrics.status is Status.EQUAL or (metrics.of_integers and not metrics.rel_l2):
        return _EQUAL
    is_left = judged.verdict == "not judged" and metrics.of_integers
    return _DIFFERENT if is_left or judged.verdict in ("introduced", "inherited") else _CLOSE


def inverted_masks(judged: Iterable[Judged]) -> list[Note]:
    """Say, of a step that was judged, which masks are True on one side where they are False on the other."""
    events = [each.event for each in judged if each.event.metrics is not None and each.event.metrics.why == INVERTED]
    slots = tuple(dict.fromkeys(event.slot_a for event in events))
    return [note("masks-inverted", slots=slots)] if slots else []


def differing_batches(pairs: StepPairs) -> str:
    """Compare the root's inputs of all micro-batches together; return the name of one that differs, or nothing."""
    totals = []
    for half in pairs.halves:
        side, found = half.side, dict[str, list[float]]()
        for call in half.calls:
            if call.caller < 0 and call.micro >= 0:
                for slot, taken in half.rows.get(call.key, Role.INPUT).items():
                    count = math.prod(side.shapes[taken[0]])
                    mean, norm = (side.columns["mean"][taken[0]], side.columns["norm"][taken[0]])
                    sums = found.setdefault(slot, [0.0, 0.0, 0.0])
                    for k, value in enumerate((count, count * mean, norm**2)):
                        sums[k] += value
        totals.append(found)
    for slot in totals[0].keys() & totals[1].keys():
        if not all(math.isclose(x, y, rel_tol=1e-6) for x, y in zip(totals[0][slot], totals[1][slot], strict=True)):
            return slot
    return ""
