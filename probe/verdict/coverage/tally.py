"""What was compared over the steps: calls, rows, what the models were given."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from probe.answer.result import Coverage, Divergence, Inputs, SlotResult
from probe.matching import Matching
from probe.matching.changes import Change, changes_of
from probe.records import OptimizerGroup, Phase, Role
from probe.store.reading.reader import Reader
from probe.structure.tree import Tree
from probe.verdict.coverage.left import Left
from probe.verdict.judge.verdicts import State, Verdicts
from probe.verdict.noise.model import FORWARD
from probe.verdict.rows import rows_of
from probe.verdict.side import Call
from probe.verdict.steps.events import Event
from probe.verdict.steps.step import Step

_ORDER = (State.EQUAL, State.AGREES, State.HEALED, State.OPEN, None, State.INHERITS, State.INTRODUCED)
"""what an input is over all steps: the worst"""


class Tally:
    """Counts, over all steps, what both sides have in common and what one alone has.

    By side, ``only`` are paths of modules that were called and have no counterpart that was; ``unneeded`` need none.
    """

    def __init__(self, readers: tuple[Reader, Reader], matching: Matching) -> None:
        self.readers, self.matching = readers, matching
        self.trees = Tree(readers[0].modules), Tree(readers[1].modules)
        self.changes: list[Change] = list(changes_of(matching, *self.trees))
        self.unneeded = self._unneeded()
        self.rows: list[SlotResult] = []
        self.left = Left()
        self.paired = 0
        self.loose = [0, 0]
        self.only: tuple[dict[str, None], dict[str, None]] = {}, {}
        self.ran_unneeded: tuple[dict[str, None], dict[str, None]] = {}, {}
        self.roots: set[str] = set()
        self.has_updates = False
        """on each side some weight is changed by an optimizer, judged or not"""
        self.groups: list[OptimizerGroup] = []
        self._inputs: dict[str, State | None] = {}
        self._given_alone: tuple[dict[str, None], dict[str, None]] = {}, {}

    def _unneeded(self) -> tuple[frozenset[int], frozenset[int]]:
        if not (self.matching.only_a or self.matching.only_b):
            return frozenset(), frozenset()
        from probe.matching.automatic.outline import outline_of
        from probe.matching.unneeded import needing_no_partner

        outlines = [outline_of(*each) for each in zip(self.readers, self.trees, strict=True)]
        return needing_no_partner(self.matching, outlines[0], outlines[1], self.changes)

    def add(self, step: Step, verdicts: Verdicts) -> None:
        """Take in a step."""
        self.rows += rows_of(step, verdicts)
        self.left.add(step)
        self.roots |= {node.a.path for node in step.nodes if node.parent is None}
        deltas = [half.params.get((Phase.UPDATE, Role.DELTA), {}).values() for half in (step.a, step.b)]
        self.has_updates |= all(any(tensor.norm > 0 for tensor in each) for each in deltas)
        self.groups += (*step.a.groups, *step.b.groups)
        if step.batches.are_same:
            self._count_calls(step)
        for event in given(step, verdicts):
            self._add_input(step, event, verdicts)

    def _count_calls(self, step: Step) -> None:
        """Count the calls that are paired, and those that are not, in passes that both sides made; wrappers pass on."""
        self.paired += sum(self.trees[0].wrapped(node.a.module) is None for node in step.nodes)
        both = passes(step, "A") & passes(step, "B")
        for side, name in enumerate("AB"):
            paired = {call.module for call in (step.of_a, step.of_b)[side]}
            for call in loose_calls(step, name):
                if self.trees[side].wrapped(call.module) is not None or micro_in(step, call, name) not in both:
                    continue
                if call.module in self.unneeded[side]:
                    self.ran_unneeded[side][call.path] = None
                    continue
                self.loose[side] += 1
                if call.module not in paired:
                    self.only[side][call.path] = None

    def _add_input(self, step: Step, event: Event, verdicts: Verdicts) -> None:
        if event.a is None or event.b is None:
            self._given_alone[event.a is None][event.slot_a or event.slot_b] = None
            return
        is_same = event.slot_a == event.slot_b
        name = event.slot_a if is_same else f"{event.slot_a} (in B {event.slot_b})"
        state = verdicts.state(event)
        is_found = any(each.event is event and each.code != "model-input" for each in verdicts.findings)
        if event.role is Role.INPUT and (state is State.INHERITS or is_found):  # handed from one model to the next
            return
        error = step.error(event)
        if state in (State.HEALED, State.OPEN) and error is not None and error.size > FORWARD.floor(event.u):
            state = State.INTRODUCED  # it differs, whatever becomes of it
        known = self._inputs.get(name, State.EQUAL)
        self._inputs[name] = max(known, state, key=_ORDER.index)

    def coverage(self) -> Coverage:
        """Return how much was compared."""
        known = sum(row.metrics.is_known for row in self.rows)
        return Coverage(self.paired, *self.loose, len(self.rows) - known, known)

    def inputs(self) -> Inputs:
        """Return how what the models were given compares."""

        def names(*states: State | None) -> tuple[str, ...]:
            return tuple(name for name, each in self._inputs.items() if each in states)

        only = [tuple(name for name in alone if name not in self._inputs) for alone in self._given_alone]
        differ = names(State.INTRODUCED, State.INHERITS)
        return Inputs(names(State.EQUAL), names(State.AGREES, State.HEALED), differ, names(State.OPEN, None), *only)

    def alone(self, findings: Iterable[Divergence]) -> Iterator[tuple[str, ...]]:
        """Yield the modules only in A, only in B, and those that need no partner; what is to blame needs one."""
        found = list(findings)
        blamed = [{ref.path for each in found for ref in (each.a, each.b)[side]} for side in (0, 1)]
        for side in (0, 1):
            yield (*self.only[side], *(path for path in self.ran_unneeded[side] if path in blamed[side]))
        for side in (0, 1):
            yield tuple(path for path in self.ran_unneeded[side] if path not in blamed[side])


def given(step: Step, verdicts: Verdicts) -> Iterator[Event]:
    """Yield what the program gave to the models, and what of the batch it logged beside them."""
    found = [event for node in step.nodes if node.parent is None for event in node.inputs]
    logged = [event for event in verdicts.by_event if event.role is Role.VALUE and event.node is not None]
    found += [event for event in logged if event.node is not None and event not in event.node.values]
    yield from sorted(found, key=lambda event: event.at)


def passes(step: Step, name: str) -> set[int]:
    """Return the passes of a side, by the numbers that both sides have."""
    return {micro_in(step, call, name) for call in (step.a if name == "A" else step.b).calls}


def micro_in(step: Step, call: Call, name: str) -> int:
    """Return the pass of a call, by the number that both sides have."""
    return (step.batches.of_a if name == "A" else step.batches.of_b).get(call.micro, call.micro)


def loose_calls(step: Step, name: str) -> Iterator[Call]:
    """Yield the calls of a side without a counterpart, but for those that the mapping leaves out."""
    half, nodes = (step.a, step.of_a) if name == "A" else (step.b, step.of_b)
    matching = step.matching
    left_out = {*matching.ignored_a, *matching.stepped_a} if name == "A" else {*matching.ignored_b, *matching.stepped_b}
    for call in half.calls:
        if call not in nodes and call.module not in left_out and (name, call.module) not in step.hidden:
            yield call
