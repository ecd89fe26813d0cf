"""The observations of two recordings, paired: events in causal order, calls with their nearest paired caller."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Container, Iterator, Sequence

from probe.comparison.distance.metrics import Metrics, Side, measure_pair, worst_share
from probe.comparison.fusion.sharded import share_of_batch
from probe.comparison.fusion.vocabulary import Vocabulary
from probe.comparison.notes import Note
from probe.comparison.steps.alignment import Alignment, Made
from probe.comparison.steps.rows import Key, Rows
from probe.comparison.steps.side import PARAMETER_ROLES, begins
from probe.comparison.steps.slot_pairs import pair_slots
from probe.comparison.steps.step_half import ONE_SIDED, Call, Event, Loose, Node, StepHalf
from probe.matching import Matching, Reason
from probe.matching.changes import Change
from probe.records import Phase, Role

_INPUT_ROLES = (Role.INPUT, Role.GRAD_INPUT, Role.GRAD_TOTAL)
_OUTPUT_ROLES = (Role.OUTPUT, Role.GRAD_OUTPUT)
_AXES_OF_IMAGES = 4
Place = tuple[int, str]
"""(module, canonical slot) of a parameter or of what belongs to it"""


class StepPairs:
    """One step of both recordings: paired calls and paired observations."""

    def __init__(self, a: Side, b: Side, matching: Matching, changes: Sequence[Change] = ()) -> None:
        self.a, self.b, self.step, self.step_b = a, b, a.step, b.step
        self.matching, self.changes = matching, changes
        self.halves = StepHalf.of("A", a, matching), StepHalf.of("B", b, matching)
        self.rows_a, self.rows_b = (half.rows for half in self.halves)
        self.pair_of_a, self.pair_of_b = (half.pair_of for half in self.halves)
        self.calls_a, self.calls_b = (half.calls for half in self.halves)
        self.micros_a = sorted({call.micro for call in self.calls_a if call.micro >= 0})
        self.micros_b = sorted({call.micro for call in self.calls_b if call.micro >= 0})
        self.nodes: dict[Key, Node] = {}
        self.reordered: list[int] = []
        """pairs that both sides called as often, in another order"""
        self._names_a, self._names_b = _names(a), _names(b)
        self.vocabulary = Vocabulary(a, b, matching)
        self._pair_calls()
        self.joined = 0
        """how many micro-batches of one side were taken as one of the other, which was given them together"""
        self.joined_evaluations = 0
        """how many passes without gradients of one side were taken as one of the other"""
        self.ran = len(self.micros_a), len(self.micros_b)
        """how many micro-batches each side ran, before they were joined"""
        self.summed: list[Node] = []
        """calls whose gradients came in more backward passes on one side: their sums are compared"""

    def half(self, name: str) -> StepHalf:
        """Return a side, ``A`` or ``B``."""
        return self.halves["AB".index(name)]

    @property
    def same_micros(self) -> bool:
        """Tell whether both sides ran the same number of micro-batches, each on the same share of the batch."""
        return self.micros_a == self.micros_b and not self.share

    @functools.cached_property
    def share(self) -> Note | None:
        """Return what says that a rank of one side was given a part of the batch which the other side has whole; None where none was."""
        return share_of_batch(self.halves)

    def _pair_calls(self) -> None:
        theirs = self._partners()
        nodes_a: dict[int, Node] = {}
        callers = {call.row: call.caller for call in self.calls_a}
        for call in self.calls_a:
            parent = _nearest(nodes_a, callers, call.caller)
            pair = self.pair_of_a.get(call.module)
            partner = theirs.get(call.row)
            if pair is None or partner is None:
                if parent is not None and nodes_a.get(call.caller) is parent:
                    parent.loose_a.append(Loose(call.micro, call.module, call.number, call.begin, call.end))
                continue
            node = Node(call.micro, pair, call.number, parent, call.begin, call.end, partner.begin, partner.end,
                        call.autocast or partner.autocast, (call.training, partner.training),
                        call.grad_enabled and partner.grad_enabled, partner.number)  # fmt: skip
            nodes_a[call.row] = self.nodes[call.key] = node
        self._note_callers_of_b()

    def _partners(self) -> dict[int, Call]:
        """Return the call of B that each call of A, by its row, is."""
        calls: tuple[dict[tuple[int, int], list[Call]], ...] = (defaultdict(list), defaultdict(list))
        for half, by_pair in zip(self.halves, calls, strict=True):
            for call in half.calls:
                pair = half.pair_of.get(call.module)
                if pair is not None and self.matching.pairs[pair].has_calls:
                    by_pair[call.micro, pair].append(call)
        alignment = Alignment(self.a, self.b)
        chosen: dict[int, Call] = {}
        taken: dict[int, int] = {}

        def are_pair(caller_a: int, caller_b: int) -> bool | None:
            partner = chosen.get(caller_a)
            return None if partner is None or caller_b not in taken else partner.row == caller_b

        for (micro, pair), mine in calls[0].items():  # callers come first: their calls begin first
            theirs = calls[1].get((micro, pair), [])
            if len(mine) == len(theirs) == 1:
                found = [(0, 0)]
            else:
                made = [self._made(half.rows, each) for half, each in zip(self.halves, (mine, theirs), strict=True)]
                found = alignment.aligned(*made, are_pair)
            if len(mine) == len(theirs) and any(i != j for i, j in found):
                self.reordered.append(pair)
            for i, j in found:
                chosen[mine[i].row] = theirs[j]
                taken[theirs[j].row] = mine[i].row
        return chosen

    @staticmethod
    def _made(rows: Rows, calls: list[Call]) -> list[Made]:
        return [
            Made(call.number, call.caller, *(
                [found[0] for found in rows.get(call.key, role).values()]
                for role in (Role.INPUT, Role.OUTPUT)
            ))
            for call in calls
        ]  # fmt: skip

    def _note_callers_of_b(self) -> None:
        nodes = {self.half("B").key(node): node for node in self.nodes.values()}
        by_row = {call.row: nodes.get(call.key) for call in self.calls_b}
        callers = {call.row: call.caller for call in self.calls_b}
        paired = {row: node for row, node in by_row.items() if node is not None}
        for call in self.calls_b:
            parent, node = by_row.get(call.caller), by_row[call.row]
            if node is not None:
                there = _nearest(paired, callers, call.caller)
                around = [] if there is None else [there, *there.ancestors()]
                node.shared = next((caller for caller in node.ancestors() if caller in around), None)
            elif parent is not None:
                parent.loose_b.append(Loose(call.micro, call.module, call.number, call.begin, call.end))

    # Events

    def node_events(self, micro: int, *, backward: bool) -> Iterator[tuple[Node, Event]]:
        """Yield the forward or the backward events of all paired calls of a micro-batch, measured, in no order."""
        for key_a, node in self.nodes.items():
            if node.micro == micro:
                key_b = self.half("B").key(node)
                for roles in (_INPUT_ROLES, _OUTPUT_ROLES, (Role.VALUE,)):
                    for event in self._slot_events(node, key_a, key_b, roles, backward):
                        yield node, event

    def forward_events(self, node: Node) -> Iterator[Event]:
        """Yield what a paired call was given and what it returned, measured."""
        key_b = self.half("B").key(node)
        key_a = self.half("A").key(node)
        for roles in (_INPUT_ROLES, _OUTPUT_ROLES):
            yield from self._slot_events(node, key_a, key_b, roles, False)

    def _slot_events(
        self, node: Node, key_a: Key, key_b: Key, roles: tuple[Role, ...], backward: bool
    ) -> Iterator[Event]:
        first_a, first_b = (self.rows_a.get(key_a, roles[0]), self.rows_b.get(key_b, roles[0]))
        pairs = pair_slots(self.a, first_a, self.b, first_b)
        names_b = dict(pairs)
        for role in roles:
            phase = Phase.FORWARD if role in (Role.INPUT, Role.OUTPUT, Role.VALUE) else Phase.BACKWARD
            if backward is not (phase is Phase.BACKWARD):
                continue
            if role is Role.GRAD_INPUT and self.matching.pairs[node.pair].a in self.matching.part_of_other:
                continue  # of a whole it is the sum of what its parts pass back
            rows_a, rows_b = self.rows_a.get(key_a, role), self.rows_b.get(key_b, role)
            for slot_a, found_a in rows_a.items():
                slot_b = names_b.get(slot_a, slot_a if slot_a not in first_a else "")
                found_b = rows_b.get(slot_b, [])
                for i, j in zip(found_a, found_b, strict=False):
                    yield self._event(node.micro, phase, role, node.pair, node.call, slot_a, slot_b, i, j)
                if not found_b and (slot_b or role in roles[:1]):
                    yield self._event(
                        node.micro, phase, role, node.pair, node.call, slot_a, slot_b, found_a[0], ONE_SIDED
                    )
            taken = set(names_b.values())
            for slot_b, found_b in rows_b.items():
                mine = next((a for a, b in pairs if b == slot_b), "")
                if (slot_b not in taken and role in roles[:1]) or (mine and mine not in rows_a):
                    yield self._event(
                        node.micro, phase, role, node.pair, node.call, mine, slot_b, ONE_SIDED, found_b[0]
                    )

    def parameter_events(self, phase: Phase, role: Role, factor: float = 1.0) -> Iterator[Event]:
        """Yield the events of parameters in the order of A's modules, the last occurrence of each.

        A's are multiplied by ``factor`` before they are compared.
        """
        left = self._by_canonical_slot(phase, role)
        prefix = f"{phase.label}:"
        for index, pair in enumerate(self.matching.pairs):
            for slot, rows in self.rows_a.get((0, pair.a, 0), role).items():
                if slot.startswith(prefix):
                    name = slot[len(prefix) :]
                    other, row = left.pop(self._counterpart(pair.a, name, left), ("", ONE_SIDED))
                    yield self._event(0, phase, role, index, 0, name, other, rows[-1], row, factor)
        for (module, _), (slot, row) in left.items():
            yield self._event(0, phase, role, self.pair_of_b[module], 0, "", slot, ONE_SIDED, row)

    @functools.cached_property
    def initial_weights(self) -> list[Event]:
        """The events of the weights that the step begins with."""
        return list(self.parameter_events(Phase.INIT, Role.PARAM))

    def _by_canonical_slot(self, phase: Phase, role: Role) -> dict[Place | None, tuple[str, int]]:
        """Return B's slots and rows of a phase and role, by module and canonical slot."""
        prefix = f"{phase.label}:"
        names = [
            (pair.b, slot[len(prefix) :], rows[-1])
            for pair in self.matching.pairs
            for slot, rows in self.rows_b.get((0, pair.b, 0), role).items()
            if slot.startswith(prefix)
        ]
        return {(module, self.b.canonical(module, slot)): (slot, row) for module, slot, row in names}

    def _counterpart(self, module: int, slot: str, left: Container[Place | None]) -> Place | None:
        """Return where B recorded a parameter of A; a tied one may stand there under another of its names."""
        parameter, _, rest = self.a.canonical(module, slot).partition(".")
        suffix = f".{rest}" if rest else ""
        for owner, name in self._names_a.get((module, parameter), [(module, parameter)]):
            if owner not in self.pair_of_a:
                continue
            place = (self.matching.pairs[self.pair_of_a[owner]].b, name)
            for other, name_b in (place, *self._names_b.get(place, ())):
                if (other, f"{name_b}{suffix}") in left:
                    return other, f"{name_b}{suffix}"
        return None

    @property
    def begins(self) -> bool:
        """Tell whether both sides recorded with what buffers the step begins, and not what the step before left."""
        return all(begins(side.reader, side.step) for side in (self.a, self.b))

    @property
    def lacks_initial(self) -> str:
        """Return the side, ``A`` or ``B``, that alone did not record with what weights the step began, or ``""``.

        It recorded the step before, or nothing of that phase.
        """
        lacking = [half.name for half in self.halves if not half.rows.has(Phase.INIT, Role.PARAM)]
        return lacking[0] if len(lacking) == 1 else ""

    def canonical(self, event: Event) -> str:
        """Return the canonical name of the parameter that an event is about."""
        half = self.half("A" if event.slot_a else "B")
        return half.side.canonical(half.modules[event.pair], half.slot(event).partition(".")[0])

    def is_initial_on_both(self, event: Event) -> bool:
        """Tell whether both sides had the parameter of an event as the step began; recordings say it before their first step."""
        name = self.canonical(event)
        return all(name in self._initial(half, half.modules[event.pair]) for half in self.halves)

    def _initial(self, half: StepHalf, module: int) -> set[str]:
        """Return the parameters that a module began a step with."""
        side = half.side
        if Phase.INIT in side.columns["phase"]:
            prefix, rows = f"{Phase.INIT.label}:", half.rows.get((0, module, 0), Role.PARAM)
            return {side.canonical(module, slot[len(prefix) :]) for slot in rows if slot.startswith(prefix)}
        return {side.canonical(module, each.slot) for each in side.parameters if each.module == module}

    def _event(
        self, micro: int, phase: Phase, role: Role, pair: int, call: int, slot_a: str, slot_b: str, i: int, j: int,
        factor: float = 1.0,
    ) -> Event:  # fmt: skip
        event = Event(self.step, micro, phase, role, pair, call, slot_a, slot_b, i, j)
        if not event.is_one_sided:
            event.metrics = self.measured(event, factor)
        return event

    def measured(self, event: Event, factor: float) -> Metrics:
        """Compare the tensors of a two-sided event, A's multiplied by a factor."""
        event.factor = factor
        return self.measured_from(self.a, event.row_a, event)

    def measured_from(self, side: Side, row: int, event: Event) -> Metrics:
        """Compare what another recording has in the place of A's tensor with B's."""
        free = self.has_free_axes(event.role, event.pair, event.row_a)
        i, j = self.vocabulary.without(side, row, self.b, event.row_b)
        return measure_pair(side, i, self.b, j, free_axes=free, factor=event.factor)

    def worst_share(self, event: Event, atol: float, rtol: float) -> float:
        """Return the largest |a − b| / (atol + rtol·|a|) over the elements of an event whose values are stored."""
        free = self.has_free_axes(event.role, event.pair, event.row_a)
        i, j = self.vocabulary.without(self.a, event.row_a, self.b, event.row_b)
        return worst_share(self.a, i, self.b, j, free_axes=free, factor=event.factor, atol=atol, rtol=rtol)

    def is_padded(self, event: Event) -> bool:
        """Tell whether the two tensors of an event are alike but for a vocabulary that one side has padded."""
        return not event.is_one_sided and self.vocabulary.is_padded(self.a, event.row_a, self.b, event.row_b)

    def has_free_axes(self, role: Role, pair: int, row: int) -> bool:
        """Tell whether axes of one size may stand in another order: not where both sides run the same class under the same name.

        Nor the sides of images that a whole model is given, wherever their channels stand: to exchange them is a fault.
        """
        if role in PARAMETER_ROLES:
            return False
        modules = self.matching.pairs[pair]
        a, b = self.a.reader.modules[modules.a], self.b.reader.modules[modules.b]
        if role is Role.INPUT and len(self.a.shapes[row]) == _AXES_OF_IMAGES and max(a.parent, b.parent) < 0:
            return False
        return modules.reason is Reason.MAPPED or a.class_name != b.class_name

    def is_unwatched(self, event: Event) -> bool:
        """Tell whether the side that lacks an event's tensor was not to record it, or broke off."""
        half = self.half("B" if event.row_b == ONE_SIDED else "A")
        return not half.side.watches(event.phase, half.modules[event.pair])

    def lacks_parameter(self, event: Event) -> bool:
        """Tell whether the side that lacks an event's weight has no such parameter: if it was not to record it, by what it lists."""
        half, name = self.half("B" if event.row_b == ONE_SIDED else "A"), self.canonical(event)
        side, module, tied = half.side, half.modules[event.pair], self._names_b if half.name == "B" else self._names_a
        listed = {side.canonical(module, each.slot) for each in side.parameters if each.module == module}
        return not self.is_unwatched(event) or (name not in listed and (module, name) not in tied)


def _names(side: Side) -> dict[Place, list[Place]]:
    """Return, for every place of a tied parameter, all of its places, that of its records first."""
    by_path = {module.path: index for index, module in enumerate(side.reader.modules)}
    found = {}
    for parameter in side.parameters:
        if len(parameter.names) > 1:
            parts = [name.rpartition(".") for name in parameter.names]
            owners = [(by_path[owner], slot) for owner, _, slot in parts if owner in by_path]
            places = [(owner, side.canonical(owner, slot)) for owner, slot in owners]
            found.update(dict.fromkeys(places, places))
    return found


def _nearest(by_row: dict[int, Node], callers: dict[int, int], caller: int) -> Node | None:
    while caller >= 0:
        if caller in by_row:
            return by_row[caller]
        caller = callers.get(caller, -1)
    return None
