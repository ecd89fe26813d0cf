"""One step of both sides, paired; nothing behind it knows that parts were fused or micro-batches joined."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace

from probe.matching import Bundle, Matching, Reason
from probe.numbers.fused import Fusion, problem_of, whole_shape
from probe.ranks.parts import side_with_parts
from probe.records import Phase, Role
from probe.verdict.distance.error import Error
from probe.verdict.distance.measure import measure
from probe.verdict.distance.views import padded_error
from probe.verdict.side import GRADIENTS, Call, Side
from probe.verdict.steps.batches import batches_of, join_batch, length_before_batch, of_group
from probe.verdict.steps.calls import Group, PairCalls, pair_calls
from probe.verdict.steps.events import Event, Node
from probe.verdict.steps.parameters import ParameterPairs
from probe.verdict.steps.slots import pair_slots, with_terms_added
from probe.verdict.tensors import Tensor, added, joined


class Step:
    """The calls, tensors and parameters of a step that both sides have.

    Attributes
    ----------
    nodes
        the calls that both sides made, in the order of A
    of_a, of_b
        by call: its node
    """

    def __init__(self, a: Side, b: Side, matching: Matching, paired: PairCalls = pair_calls) -> None:
        self.a, self.b, self.matching = a, b, matching
        self.pair_of = {pair.a: pair for pair in matching.pairs}
        self.a_of = {pair.b: pair.a for pair in matching.pairs}
        self.calls_of_a = frozenset(a.calls)
        self.parameters = ParameterPairs(a, b, matching)
        self.batches = batches_of(a, b)
        self._bundles: dict[tuple[str, int], Bundle] = {(each.side, each.parts[0]): each for each in matching.bundles}
        self.hidden = {(each.side, part) for each in matching.bundles for part in each.parts[1:]}
        """modules whose calls are parts of another one"""
        self._tensors: dict[tuple[Node, str, Role], dict[str, Tensor]] = {}
        self._errors: dict[tuple[Event, float], Error | None] = {}
        self._known: dict[tuple[Tensor, Tensor], Error] = {}
        self._summed: set[tuple[Role, str, str]] = set()
        self.nodes: list[Node] = []
        self.of_a: dict[Call, Node] = {}
        self.of_b: dict[Call, Node] = {}
        for group_a, group_b in paired(a, b, matching, self.batches):
            self._add_node(group_a, group_b)
        if self.batches.of_a or self.batches.of_b:
            side = 0 if self.batches.of_a else 1
            several = (node.calls if side == 0 else node.calls[::-1] for node in self.nodes)
            length = length_before_batch((mine, theirs[0]) for mine, theirs in several if len(mine) > 1)
            self.batches = replace(self.batches, order=replace(self.batches.order, length=length))
            self._join_beside(*((a, b) if side == 0 else (b, a)))
        for node in self.nodes:
            self._pair_tensors(node)

    def _join_beside(self, many: Side, few: Side) -> None:
        """Join what was logged beside the model for each micro-batch, such as labels."""
        for slot in many.beside.keys() & few.beside.keys():
            parts, wholes, count = many.values[0, slot], few.values[0, slot], self.batches.joined
            if len(parts) == count * len(wholes):
                whole = join_batch(parts[:count], wholes[:1], Role.VALUE, self.batches.order)
                many.beside[slot] = many.beside[slot][0], whole

    @property
    def is_across_frameworks(self) -> bool:
        """Whether the sides were run by different frameworks."""
        return self.a.framework != self.b.framework

    @functools.cached_property
    def padding(self) -> set[tuple[int, int]]:
        """Numbers of rows of A's and B's weights that integers choose from, where they differ: a vocabulary."""
        found: set[tuple[int, int]] = set()
        for node in self.nodes:
            if any(each.a is not None and each.a.kind == "integer" for each in node.inputs):
                modules = (self.a, node.a.module), (self.b, node.b.module)
                shapes = [[half.zeros(place).laid for place in half.weights_of(module)] for half, module in modules]
                found |= {(x[0], y[0]) for x, y in zip(*shapes, strict=False) if len(x) > 1 and x[1:] == y[1:]}
        return {sizes for sizes in found if sizes[0] != sizes[1]}

    def is_other_code(self, module: int) -> bool:
        """Return True unless both sides run one class: the same code has one layout and one representation."""
        pair = self.pair_of[module]
        classes = self.a.reader.modules[pair.a].class_name, self.b.reader.modules[pair.b].class_name
        return pair.reason is Reason.MAPPED or classes[0].casefold() != classes[1].casefold()

    def is_in_parts(self, node: Node) -> bool:
        """Return True if one side hands over at once what the other does call by call."""
        if all(each.a is None or each.b is None or each.a.size == each.b.size for each in node.inputs):
            return False
        sides = (node.a, self.a), (node.b, self.b)
        return len({sum(each.module == one.module for each in half.calls) for one, half in sides}) > 1

    def is_part(self, event: Event) -> bool:
        """Return True if a rank of one side may hold a part of what the other side has."""
        a, b, is_weight = event.a, event.b, event.node is None
        if a is None or b is None or a.size == b.size:
            return False
        return bool(side_with_parts(self.a.reader, self.b.reader, a.shape, b.shape, of_weight=is_weight))

    def path(self, module: int) -> str:
        """Return the path of a module of A."""
        return self.a.reader.modules[module].path

    def places(self, event: Event) -> list[list[tuple[str, str]]]:
        """Return paths and slots of A and of B where several modules, or parameters, are one on the other side."""
        own = self.parameters.parts(event) if event.node is None else ([], [])
        found = []
        for side, half, parts, module in zip("AB", (self.a, self.b), own, self.modules_of(event), strict=True):
            slot = event.slot_a if side == "A" else event.slot_b
            modules = [(part, slot) for part in self.parts_of(side, module)]
            parts = parts or (modules if len(modules) > 1 else [])
            found.append([(half.reader.modules[at].path, name) for at, name in parts])
        return found

    def modules_of(self, event: Event) -> tuple[int, int]:
        """Return the modules of A and of B that a tensor belongs to."""
        if event.node is not None:
            return event.node.a.module, event.node.b.module
        assert event.place is not None
        module = event.place[0]
        return module, self.pair_of[module].b if module in self.pair_of else module

    def error(self, event: Event, factor: float = 1.0) -> Error | None:
        """Return the error of B against ``factor`` times A; None if there is none to be had."""
        if event.a is None or event.b is None:
            return None
        key = event, factor
        if key not in self._errors:
            known = self._known.get((event.a, event.b)) if factor == 1 else None
            how = {"may_permute": self.may_permute(event), "is_given": event.role is Role.INPUT}
            found = known or measure(event.a, event.b, factor=factor, **how)
            is_padded = event.a.size != event.b.size and bool(self.padding) and factor == 1
            self._errors[key] = padded_error(event.a, event.b, self.padding) if is_padded else found
        return self._errors[key]

    def take(self, event: Event, error: Error) -> None:
        """Take an error that was found elsewhere."""
        assert event.a is not None and event.b is not None
        self._known[event.a, event.b] = error

    def may_permute(self, event: Event) -> bool:
        """Return True if axes of one size may stand in another order, as those of a parameter in another form do."""
        if event.node is None:
            return event.a is not None and event.b is not None and event.a.form != event.b.form
        is_given = event.role is Role.INPUT and event.node.parent is None
        return not is_given and self.is_other_code(event.node.a.module)

    def is_equal(self, event: Event) -> bool:
        """Return True if both sides have the same values."""
        error = self.error(event)
        return error is not None and error.size == 0 and not error.is_bound

    def is_lacking(self, event: Event) -> bool:
        """Return True if one side alone has a tensor that the other one was to record."""
        module = self.modules_of(event)[0]
        if event.is_paired or module not in self.pair_of:
            return not event.is_paired
        half, there = (self.a, module) if event.a is None else (self.b, self.pair_of[module].b)
        return half.wants(event.phase, there)

    def lacks(self, event: Event) -> bool:
        """Return True if one side alone has what is not zero, of a parameter of both; none is a zero one."""
        one = event.a if event.a is not None else event.b
        return self.is_lacking(event) and self.parameters.both_have(event) and one is not None and one.norm > 0

    def tensors(self, node: Node, side: str, role: Role) -> dict[str, Tensor]:
        """Return the tensors of a paired call by slot; of several calls that are one, what they are together."""
        key = node, side, role
        if key not in self._tensors:
            self._tensors[key] = self._whole(node, side, role)
        return self._tensors[key]

    def gradients_of(self, event: Event) -> tuple[Tensor, Tensor] | None:
        """Return the gradients of a tensor of the forward pass, of A and of B; None unless both were recorded."""
        node = event.node
        assert node is not None
        roles = (Role.GRAD_OUTPUT,) if event.role is Role.OUTPUT else (Role.GRAD_TOTAL, Role.GRAD_INPUT)
        for role in roles:
            a, b = self.tensors(node, "A", role).get(event.slot_a), self.tensors(node, "B", role).get(event.slot_b)
            if a is not None and b is not None:
                return a, b
        return None

    def gradients(self, node: Node) -> Iterator[Event]:
        """Yield the gradients of what a call was given and returned."""
        names_in = {each.slot_a: each.slot_b for each in node.inputs if each.is_paired}
        names_out = {each.slot_a: each.slot_b for each in node.outputs}
        given = [(each.slot_a, tensor) for each in node.inputs for tensor in (each.a, each.b) if tensor is not None]
        summed = {slot for slot, tensor in given if tensor.parts and tensor.fusion is None}  # it may return the sum too
        for role in GRADIENTS:
            mine, theirs = self.tensors(node, "A", role), self.tensors(node, "B", role)
            names = names_out if role is Role.GRAD_OUTPUT else names_in
            for slot, other in (names or {each: each for each in mine if each in theirs}).items():
                is_whole = role is Role.GRAD_OUTPUT or slot not in summed
                if is_whole and (slot in mine or other in theirs):
                    at = node.a.end if role is Role.GRAD_OUTPUT else node.a.begin
                    yield Event(Phase.BACKWARD, role, node, None, slot, other, mine.get(slot), theirs.get(other), at)

    def parts_of(self, side: str, module: int) -> tuple[int, ...]:
        """Return the modules of a side that are one of the other's, or a module alone."""
        bundle = self._bundles.get((side, module))
        return bundle.parts if bundle is not None else (module,)

    def unpaired(self, scope: Node | None, after: tuple[int, int], before: tuple[int, int]) -> list[Call]:
        """Return the calls of either side alone that a paired call made itself between two moments of (A, B)."""
        sides = ((self.a, self.of_a, "A", 0), (self.b, self.of_b, "B", 1))
        found = []
        for half, nodes, name, at in sides:
            for call in half.calls:
                is_between = after[at] <= call.begin and call.end <= before[at]
                if not is_between or call in nodes or (name, call.module) in self.hidden:
                    continue
                outer = call.caller
                while outer is not None and outer not in nodes and outer.end > before[at]:
                    outer = outer.caller  # it runs on, and has no partner
                around = nodes.get(outer) if outer is not None else None
                if around is scope and (outer is not None or scope is None):
                    found.append(call)
        return found

    # Pairing

    def _add_node(self, group_a: Group, group_b: Group) -> None:
        first_a, first_b = group_a[0], group_b[0]
        parent = next((self.of_a[each] for each in first_a.callers() if each in self.of_a), None)
        calls = self._with_parts("A", self.a, group_a), self._with_parts("B", self.b, group_b)
        node = Node(first_a, first_b, parent, calls)
        self.of_a.update(dict.fromkeys(group_a, node))
        self.of_b.update(dict.fromkeys(group_b, node))
        self.nodes.append(node)
        if parent is not None:
            parent.inner.append(node)

    def _with_parts(self, side: str, half: Side, group: Group) -> Group:
        """Return the calls of all modules that are one module of the other side."""
        bundle = self._bundles.get((side, group[0].module))
        if bundle is None or len(group) > 1:
            return group
        first = group[0]
        found = [
            [each for each in half.calls if (each.module, each.micro, each.number) == (part, first.micro, first.number)]
            for part in bundle.parts
        ]
        return tuple(each[0] for each in found) if all(found) else group

    def _whole(self, node: Node, side: str, role: Role) -> dict[str, Tensor]:
        here, there = node.calls if side == "A" else node.calls[::-1]
        bundle = self._bundles.get((side, here[0].module))
        reorders = bundle is not None and len(bundle.parts) == 1 and bool(bundle.order or bundle.rotary)
        if len(here) == 1 and not (reorders and role in (Role.OUTPUT, Role.GRAD_OUTPUT)):
            return here[0].of(role)
        if len(here) > 1 and here[0].module == here[1].module:  # micro-batches
            return of_group(here, role, list(there[0].of(role).values()), self.batches.order)
        assert bundle is not None
        return of_parts(bundle, here, role)

    def _pair_tensors(self, node: Node) -> None:
        for role, into in ((Role.INPUT, node.inputs), (Role.OUTPUT, node.outputs)):
            mine, theirs = self.tensors(node, "A", role), self.tensors(node, "B", role)
            if len(mine) != len(theirs):
                kind, slots = (role, node.a.class_name, node.b.class_name), (len(mine), len(theirs))
                mine = with_terms_added(self.a, node.a, mine, theirs, kind in self._summed)
                theirs = with_terms_added(self.b, node.b, theirs, mine, kind in self._summed)
                self._tensors[node, "A", role], self._tensors[node, "B", role] = mine, theirs
                self._summed |= {kind} if (len(mine), len(theirs)) != slots else set()
            at = node.a.begin if role is Role.INPUT else node.a.end
            pairs = pair_slots(mine, theirs)
            known = {x for x, _ in pairs}, {y for _, y in pairs}
            pairs += [*((x, "") for x in mine if x not in known[0]), *(("", y) for y in theirs if y not in known[1])]
            into += [Event(Phase.FORWARD, role, node, None, x, y, mine.get(x), theirs.get(y), at) for x, y in pairs]
        mine, logged = (self.tensors(node, side, Role.VALUE) for side in "AB")
        for slot in (each for each in mine if each in logged):
            values = mine[slot], logged[slot], node.a.when[slot]
            node.values.append(Event(Phase.FORWARD, Role.VALUE, node, None, slot, slot, *values))


def of_parts(bundle: Bundle, calls: Group, role: Role) -> dict[str, Tensor]:
    """Return what the calls of modules that are one were given or returned together."""
    if role in (Role.INPUT, Role.GRAD_TOTAL):
        return calls[0].of(role)
    found = [part.of(role) for part in calls]
    rows = {slot: [each[slot] for each in found] for slot in found[0] if all(slot in each for each in found)}
    if role is Role.GRAD_INPUT:
        return {slot: added(parts) if len(parts) > 1 else parts[0] for slot, parts in rows.items()}
    fusion = Fusion(-1, max(bundle.groups, 1), rotary=max(bundle.rotary, 0), order=bundle.order)
    made = {}
    for slot, parts in rows.items():
        shapes = [[part.laid for part in parts]]
        if not problem_of(shapes, fusion):
            made[slot] = joined([parts], fusion, whole_shape(shapes, fusion))
    return made
