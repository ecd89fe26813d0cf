"""Which modules made and used a tensor: who answers for its gradient.

The gradient of a tensor is the sum over all that used it, and is complete when the last of them (in backward)
has passed its part back: at the mirror image of the moment at which the tensor was made. Tensors are recognised by
their hash in A's recording.
"""

from __future__ import annotations

import bisect
import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from probe.comparison.steps.events import StepPairs
from probe.comparison.steps.rows import Key
from probe.comparison.steps.step_half import Event, Node, StepHalf
from probe.records import Role

_PASSED_BACK = (Role.GRAD_OUTPUT, Role.GRAD_INPUT)
_ALIKE = 1e-2
"""the share of a difference that may be no multiple of the gradient that it is one of: both sides have been rounded"""
_LAST = 1 << 30
"""a depth behind all others"""


@dataclass(slots=True)
class Use:
    """A tensor of one micro-batch: when it was first seen, who returned it and who was given it."""

    first: int
    producers: list[Node] = field(default_factory=list)
    consumers: list[tuple[Node, str]] = field(default_factory=list)
    """with the slot"""


class Flow:
    """The tensors of one micro-batch of A."""

    def __init__(self, pairs: StepPairs, micro: int) -> None:
        self._pairs = pairs
        self._uses: dict[object, Use] = {}
        self._use_at: dict[tuple[Node, Role, str], Use] = {}
        self._depths: dict[Node, int] = {}
        self._inner: dict[Node, list[Node]] = {}
        seqs = pairs.a.columns["order"]
        for (at, module, call), node in pairs.nodes.items():
            if at != micro:
                continue
            callers = list(node.ancestors())
            self._depths[node] = len(callers)
            for around in callers:
                self._inner.setdefault(around, []).append(node)
            for role in (Role.INPUT, Role.OUTPUT):
                for slot, rows in pairs.rows_a.get((at, module, call), role).items():
                    digest = pairs.a.digest(rows[0])
                    use = self._uses.get(digest)
                    if use is None:
                        use = self._uses[digest] = Use(seqs[rows[0]])
                    use.first = min(use.first, seqs[rows[0]])
                    if digest is not None:
                        self._use_at[node, role, slot] = use
                    if role is Role.OUTPUT:
                        use.producers.append(node)
                    else:
                        use.consumers.append((node, slot))

    def order(self, node: Node, event: Event) -> tuple[int, int]:
        """Return the key by which backward events come in the order of cause, outer modules first."""
        if event.row_a < 0:
            return 0, 0
        recorded = self._pairs.a.columns["order"][event.row_a]
        use = self.use_of(node, event) if event.role is not Role.GRAD_INPUT else None
        made = recorded if use is None else max(recorded, -use.first)
        inside = self._passed_back_inside(event, use)
        return (made, self._depth(node)) if inside is None or inside <= made else (inside, _LAST)

    def _passed_back_inside(self, event: Event, use: Use | None) -> int | None:
        """Return the place in the order of cause of the last that came back inside a call before the gradient of its output.

        An output of the call's own code that nobody was given: attention weights, with which it weighs values before it
        ends. None for others, for what the model returns, and for those whose gradient came first.
        """
        if use is None or use.consumers or event.role is not Role.GRAD_OUTPUT:
            return None
        if not all(producer.parent for producer in use.producers):
            return None
        node = max(use.producers, key=self._depth)
        seqs, orders = (self._pairs.a.columns[name] for name in ("seq", "order"))
        rows = (
            row for inner in self._inner.get(node, ()) for role in _PASSED_BACK for row in self._rows(inner, role)[0]
        )
        return max((orders[row] for row in rows if seqs[row] < seqs[event.row_a]), default=None)

    def digest_of(self, node: Node, event: Event) -> object:
        """Return the hash of the tensor that a gradient belongs to, None where it was not recorded."""
        role = Role.OUTPUT if event.role is Role.GRAD_OUTPUT else Role.INPUT
        key = (node.micro, self._pairs.matching.pairs[node.pair].a, node.call)
        rows = self._pairs.rows_a.get(key, role).get(event.slot_a)
        return self._pairs.a.digest(rows[0]) if rows else None

    def use_of(self, node: Node, event: Event) -> Use | None:
        """Return the tensor that a gradient belongs to, where its values were recorded."""
        role = Role.OUTPUT if event.role is Role.GRAD_OUTPUT else Role.INPUT
        return self._use_at.get((node, role, event.slot_a))

    def culprit(self, node: Node, event: Event) -> Node | None:
        """Return who answers for a tensor's gradient when all known parts of it agree; None for the loss.

        The only module that was given the tensor, as deep as it goes: a leaf if its own part is not known, else the
        container whose own code uses the tensor too: the one that adds it to another tensor where that is known.
        If several or none were given it: their caller, or the only call behind it there that passes nothing back on
        one side. A call that returned the tensor as it was given it has no part.
        """
        use = self.use_of(node, event)
        if use is None:
            return node.parent
        around = [producer for producer in use.producers if node in use.producers and producer in node.ancestors()]
        if around:  # it returned the tensor that this module made, and its own gradient agrees
            inmost = max(around, key=self._depth)
            return node.parent if self._is_one_of_many(node, use, inmost, event) else inmost
        consumers = self._users_of(use)
        if not consumers:
            handler = self._handler(use)
            if handler is not None:
                return handler
            outermost = min(use.producers, key=self._depth, default=node)
            if self._passed_back_inside(event, use) is not None:
                return max(use.producers, key=self._depth)
            inmost = max(use.producers, key=self._depth, default=node)
            if self._is_one_of_many(inmost, use, outermost, event):
                return inmost.parent
            return self._swallower_behind(outermost) or outermost.parent
        unknown = self._unknown_leaves(use, consumers)
        ends = {end for leaf in unknown for end in self._where_it_ends(leaf)}
        if len(ends) == 1:
            return ends.pop()
        level = _outermost(consumers)
        place = level[0].parent
        around = [] if place is None else [place]
        while len(level) == 1 and self._is_container(level[0]):
            inner = level[0]
            around.append(inner)
            place = place if self._only_passes_on(inner) else inner
            level = _outermost([other for other in consumers if inner in other.ancestors()])
        return self._adder(event, around) or place

    def _handler(self, use: Use) -> Node | None:
        """Return the call in which another one was given a tensor and returned it as it was, and that returns it beside its first output.

        Attention weights behind a dropout that drops nothing: whoever hands on a tensor within its code makes something of it. None of
        what the model itself returns: the loss may be made of that.
        """
        if not all(producer.parent for producer in use.producers):
            return None
        for node, _ in use.consumers:
            caller = node.parent
            if caller is None or node not in use.producers or caller not in use.producers:
                continue
            outputs = self._pairs.rows_a.get(
                (caller.micro, self._pairs.matching.pairs[caller.pair].a, caller.call), Role.OUTPUT
            )
            if self._use_at.get((caller, Role.OUTPUT, next(iter(outputs)))) is not use:
                return caller
        return None

    def _is_one_of_many(self, node: Node, use: Use, around: Node, event: Event) -> bool:
        """Tell whether a call far above returns what a module made, as it does of like modules behind it: logits of routers.

        What it does to them comes back to those behind first: where theirs agree, it is who called this one, and used it too. Not
        where all of a gradient has a factor, one that leaves something of it: then nothing shows that anybody else used it.
        """
        if node.parent is None or node.parent in (around, *use.producers):
            return False
        mine, theirs = self._pairs.a.sketch(event.row_a), self._pairs.b.sketch(event.row_b)
        if mine is None or theirs is None:
            return False
        low, high = sorted(float(np.linalg.norm(each)) for each in (mine, theirs))
        if low > _ALIKE * high and _is_multiple(theirs - mine, mine):
            return False
        return any(
            other.first > use.first and around in other.producers
            and any(each.parent is not around and self._class(each) == self._class(node) for each in other.producers)
            for other in self._uses.values()
        )  # fmt: skip

    def _class(self, node: Node) -> str:
        return self._pairs.a.reader.modules[self._pairs.matching.pairs[node.pair].a].class_name

    def _adder(self, event: Event, around: list[Node]) -> Node | None:
        """Return the first of some calls whose code adds a tensor to another one with a wrong gradient; None if none is known to.

        What it passes back for that is the gradient of the sum. So is the difference of the two sides, or a multiple of it.
        """
        a, b = self._pairs.a, self._pairs.b
        mine, theirs = a.sketch(event.row_a), b.sketch(event.row_b)
        if mine is None or theirs is None or a.shapes[event.row_a] != b.shapes[event.row_b]:
            return None
        difference, shape = theirs - mine, a.shapes[event.row_a]
        for node in around:
            sums = [a.sketch(row) for row in self._sums(node) if a.shapes[row] == shape]
            if any(of_sum is not None and _is_multiple(difference, of_sum) for of_sum in sums):
                return node
        return None

    def _sums(self, node: Node) -> Iterator[int]:
        """Yield A's gradients of what a call returned, and of what its own code made and gave to a call inside."""
        yield from self._rows(node, Role.GRAD_OUTPUT)[0]
        for inner in self._inner.get(node, ()):
            key = node.micro, self._pairs.matching.pairs[inner.pair].a, inner.call
            given = self._pairs.rows_a.get(key, Role.INPUT) if inner.parent is node else {}
            for slot, rows in given.items():
                use = self._uses.get(self._pairs.a.digest(rows[0]))
                if use is not None and not use.producers:
                    for role in (Role.GRAD_INPUT, Role.GRAD_TOTAL):
                        yield from self._pairs.rows_a.get(key, role).get(slot, ())[:1]

    def _where_it_ends(self, node: Node) -> set[Node]:
        """Return the modules, from a leaf on towards the loss, at which a gradient of the output arrived on both sides.

        One that nothing came back to on one side passes nothing back either.
        """
        ends: set[Node] = set()
        waiting, seen = [node], {node}
        while waiting:
            at = waiting.pop()
            users = self._users(at) - seen if self._lacks(at, Role.GRAD_OUTPUT) else set()
            if not users:
                ends.add(at)
            waiting += users
            seen |= users
        return ends

    def _users(self, node: Node) -> set[Node]:
        """Return the leaves that used what a leaf returned.

        Where it was handed on in another form (transposed, split, combined), no input has its hash. Then it is the leaf
        behind it, in the same caller, that got a gradient and passed none back to an input that learns: only one such, or
        none.
        """
        uses = [self._uses[digest] for digest in digests(self._pairs, node, Role.OUTPUT)]
        found = {other for use in uses for other, _ in use.consumers if not self._is_container(other)}
        behind = None if found else self._swallower_behind(node)
        return found if behind is None else {behind}

    def _swallower_behind(self, node: Node) -> Node | None:
        """Return the only leaf behind a call, in the same caller, that got a gradient and passed none back on one side."""
        inner = self._inner.get(node.parent, ()) if node.parent is not None else ()
        behind = [other for other in inner if other.begin > node.end and self.swallowing_side(other)]
        return behind[0] if len(behind) == 1 else None

    def swallowing_side(self, node: Node) -> str:
        """Return the side on which a leaf passes nothing back to an input that learns, though it got a gradient; or ``""``.

        Not of a side that does not know it: what one side cannot see is no evidence. Where what made the input got a gradient, and
        nobody else was given it, something was passed back.
        """
        if self._is_container(node) or self._lacks(node, Role.GRAD_OUTPUT) or not self._lacks(node, Role.GRAD_INPUT):
            return ""
        learns = all(
            any(side.columns["requires_grad"][row] for row in rows)
            for side, rows in zip((self._pairs.a, self._pairs.b), self._rows(node, Role.INPUT), strict=True)
        )
        name = "B" if self._rows(node, Role.GRAD_INPUT)[0] else "A"
        is_known = self._tells_what_is_passed_back[name] and not self._reaches_what_made_it(
            node, self._pairs.half(name)
        )
        return name if learns and is_known else ""

    def _reaches_what_made_it(self, node: Node, half: StepHalf) -> bool:
        """Tell whether a gradient came to a call that returned, on a side, what one call alone is given."""
        key, found = half.key(node), self._calls_with[half.name]
        given = set(half.hashes(key, Role.INPUT)) - {None}
        alone = [digest for digest in given if found[Role.INPUT].get(digest) == [key]]
        makers = (maker for digest in alone for maker in found[Role.OUTPUT].get(digest, ()))
        return any(half.rows.get(maker, Role.GRAD_OUTPUT) for maker in makers)

    @functools.cached_property
    def _calls_with(self) -> dict[str, dict[Role, dict[object, list[Key]]]]:
        """For each side, the calls that were given a tensor, and those that returned it, by its hash."""
        found: dict[str, dict[Role, dict[object, list[Key]]]] = {}
        for half in self._pairs.halves:
            by_role = found.setdefault(half.name, {Role.INPUT: {}, Role.OUTPUT: {}})
            for call in half.calls:
                for role, by_digest in by_role.items():
                    for digest in half.hashes(call.key, role):
                        by_digest.setdefault(digest, []).append(call.key)
        return found

    @functools.cached_property
    def _tells_what_is_passed_back(self) -> dict[str, bool]:
        """For each side, whether it knows what a call passes back: not where all that it has are totals, as PaddlePaddle."""
        found = {}
        for half in self._pairs.halves:
            roles = {role for role in (Role.GRAD_INPUT, Role.GRAD_TOTAL) if half.rows.by_role[role]}
            found[half.name] = roles != {Role.GRAD_TOTAL}
        return found

    def _lacks(self, node: Node, role: Role) -> bool:
        """Tell whether one side alone has gradients of a call in a role."""
        a, b = self._rows(node, role)
        return bool(a) != bool(b)

    def _rows(self, node: Node, role: Role) -> tuple[list[int], list[int]]:
        """Return the records of both sides of a call in a role."""
        a, b = ([rows[0] for rows in half.rows.get(half.key(node), role).values()] for half in self._pairs.halves)
        return a, b

    def _only_passes_on(self, node: Node) -> bool:
        """Tell whether a container has no code of its own: its children get and return all that it gets and returns."""
        children = [other for other in self._pairs.nodes.values() if other.parent is node]
        if node.loose_a or not children:
            return False
        made = {digest for child in children for digest in digests(self._pairs, child, Role.OUTPUT)}
        given = digests(self._pairs, node, Role.INPUT)
        taken = {digest for child in children for digest in digests(self._pairs, child, Role.INPUT)}
        return digests(self._pairs, node, Role.OUTPUT) <= made and taken <= made | given

    def _users_of(self, use: Use) -> list[Node]:
        """Return the calls that were given a tensor and did something with it: not those that returned it as it was."""
        given = list(
            dict.fromkeys(consumer for consumer, _ in use.consumers)
        )  # self-attention is given one three times
        returned = {node for node in given if node in use.producers and not any(self._rows(node, Role.GRAD_INPUT))}
        used = [node for node in given if node not in returned]
        around = {outer for node in used for outer in node.ancestors()}
        return [node for node in given if node not in returned or node in around]

    def _unknown_leaves(self, use: Use, users: list[Node]) -> list[Node]:
        """Return the leaves that use a tensor and of which it is not known what they passed back, on either side."""
        found = []
        for consumer, slot in use.consumers:
            if consumer not in users:
                continue
            pair = self._pairs.matching.pairs[consumer.pair]
            rows_a = self._pairs.rows_a.get((consumer.micro, pair.a, consumer.call), Role.GRAD_INPUT)
            rows_b = self._pairs.rows_b.get((consumer.micro, pair.b, consumer.call_b), Role.GRAD_INPUT)
            if not self._is_container(consumer) and (slot not in rows_a or not rows_b):
                found.append(consumer)
        return found

    def _is_container(self, node: Node) -> bool:
        module = self._pairs.matching.pairs[node.pair].a
        return any(other.parent == module for other in self._pairs.a.reader.modules)

    def _depth(self, node: Node) -> int:
        return self._depths[node]


def passes(pairs: StepPairs) -> Iterator[tuple[int, bool]]:
    """Yield the micro-batches forward (False) and backward (True), in the order of cause.

    What one model returned may be given to another one, in a later micro-batch: its gradient comes from there.
    """
    waiting: list[int] = []
    fed_by = _feeding(pairs)
    for micro in pairs.micros_a:
        yield micro, False
        waiting.append(micro)
        while waiting and not any(waiting[-1] in sources for later, sources in fed_by.items() if later > micro):
            yield waiting.pop(), True
    yield from ((micro, True) for micro in reversed(waiting))


def turns(
    pairs: StepPairs, micro: int, events: Iterable[tuple[Node, Event]]
) -> Iterator[tuple[list[Node | None], list[tuple[Node, Event]]]]:
    """Split a micro-batch's gradients where a whole model is called anew behind some of them, on both sides: a GAN's second turn.

    Yields
    ------
    the whole models' calls (None: all together) that were made before a turn's gradients, and are in no turn before; these gradients, in order
    """
    tops = [node for node in pairs.nodes.values() if node.parent is None]
    if len(tops) == 1:
        yield [None, *tops], list(events)
        return
    gradients: dict[int, list[tuple[Node, Event]]] = {}
    calls: dict[int, list[Node | None]] = {}
    starts = []
    for half, begins in zip(
        pairs.halves, ([node.begin for node in tops], [node.begin_b for node in tops]), strict=True
    ):
        seqs = half.side.columns["seq"]
        starts.append(_starts(begins, sorted(seqs[half.row(e)] for _, e in events)))
    for node in (node for node in tops if node.micro == micro):
        calls.setdefault(min(map(bisect.bisect_right, starts, (node.begin, node.begin_b))), []).append(node)
    for node, event in events:
        times = (half.side.columns["seq"][half.row(event)] for half in pairs.halves)
        gradients.setdefault(max(map(bisect.bisect_right, starts, times)), []).append((node, event))
    calls.setdefault(max((*calls, *gradients), default=0), []).append(None)  # what all of them returned
    for turn in sorted({*calls, *gradients}):
        yield calls.get(turn, []), gradients.get(turn, [])


def _starts(begins: list[int], gradients: list[int]) -> list[int]:
    """Return when calls began behind gradients that no call before them was behind."""
    found: list[int] = []
    before = 0
    for begin in sorted(begins):
        passed = bisect.bisect_left(gradients, begin)
        if passed > before:
            found.append(begin)
            before = passed
    return found


def _feeding(pairs: StepPairs) -> dict[int, set[int]]:
    """Return for a micro-batch the earlier ones of which it was given, as an input of a whole model, what they returned."""
    tops = [node for node in pairs.nodes.values() if node.parent is None and node.micro >= 0]
    made: dict[object, int] = {}
    for node in tops:
        made.update(dict.fromkeys(digests(pairs, node, Role.OUTPUT), node.micro))
    found = {node.micro: set[int]() for node in tops}
    for node in tops:
        given = digests(pairs, node, Role.INPUT)
        found[node.micro] |= {micro for digest, micro in made.items() if micro < node.micro and digest in given}
    return found


def digests(pairs: StepPairs, node: Node, role: Role) -> set[object]:
    """Return the hashes of what a call of A was given, or returned."""
    key = (node.micro, pairs.matching.pairs[node.pair].a, node.call)
    return {pairs.a.digest(rows[0]) for rows in pairs.rows_a.get(key, role).values()}


def _is_multiple(difference: np.ndarray, of_sum: np.ndarray) -> bool:
    """Tell by their sketches whether a difference of two gradients is a multiple of another gradient."""
    if not of_sum.any():
        return False
    rest = difference - np.dot(difference, of_sum) / np.dot(of_sum, of_sum) * of_sum
    return bool(np.linalg.norm(rest) <= _ALIKE * np.linalg.norm(difference))


def _outermost(nodes: list[Node]) -> list[Node]:
    return [node for node in nodes if not any(outer in nodes for outer in node.ancestors())]
