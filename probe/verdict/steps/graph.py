"""What was made of what, in one step.

A segment is the own code of one call: it is given tensors and makes tensors. Nobody but this module looks at hashes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from probe.records import Role
from probe.verdict.steps.events import Event, Node
from probe.verdict.steps.step import Step
from probe.verdict.tensors import Hash, Tensor


class Graph:
    """Producers, sources and uses of the tensors of a step, as A computed them."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self._made: dict[Hash, list[Event]] = defaultdict(list)
        self._given: dict[Hash, list[Event]] = defaultdict(list)
        self._producers: dict[Event, Event | None] = {}
        for node in step.nodes:
            for events, index in ((node.inputs, self._given), (node.outputs, self._made)):
                for event in events:
                    if (key := _key(event.a)) is not None:
                        index[key].append(event)
        made_in_b = (tensor.hash for call in step.b.calls for tensor in call.of(Role.OUTPUT).values())
        self._made_in_b = {each for each in made_in_b if each is not None}
        self._first_seen: dict[Hash, int] = {}
        for key, events in (*self._made.items(), *self._given.items()):
            self._first_seen[key] = min(self._first_seen.get(key, events[0].at), min(event.at for event in events))

    # Forward

    def forward(self) -> list[Event]:
        """Return what calls were given and returned, in the order in which A saw it."""
        found = [
            (event.at, number, event)
            for number, node in enumerate(self.step.nodes)
            for event in (*node.inputs, *node.values, *node.outputs)
        ]
        return [event for _, _, event in sorted(found, key=lambda each: each[:2])]

    def producer(self, event: Event) -> Event | None:
        """Return the latest output of another call that is this tensor."""
        if event not in self._producers:
            is_sum = event.role is Role.INPUT and event.a is not None and event.a.parts and event.a.fusion is None
            key = None if is_sum else _key(event.a)
            before = [each for each in self._made.get(key, ()) if each.at < event.at and each.node is not event.node]
            self._producers[event] = max(before, key=lambda each: each.at, default=None) if key else None
        return self._producers[event]

    def segment(self, event: Event) -> Node | None:
        """Return the call whose own code made a tensor of the forward pass; None for the program around the model."""
        node = event.node
        assert node is not None
        if event.role is not Role.INPUT:
            return node
        around, scope = [self.step.of_b.get(call) for call in node.b.callers()], node.parent
        while scope is not None and scope not in around:  # of both hands
            scope = scope.parent
        return scope

    def sources(self, event: Event) -> list[Event]:
        """Return what a tensor was made of: what its segment hands on, the output that it is, or all at hand."""
        segment, same = self.segment(event), self.producer(event)
        given = segment.inputs if segment is not None else []
        if found := [x for x in given if self.is_same_tensor(x.a, event.a) and self.is_same_tensor(x.b, event.b)]:
            return found
        if same is not None and self.step.error(same) is not None:
            return [same]
        if segment is None:
            before = (node for node in self.step.nodes if node.parent is None and node.a.end < event.at)
            return [out for node in before for out in node.outputs] if self.is_handed_on(event) else []
        found = [each for each in segment.inputs if each is not event]
        for inner in segment.inner:
            if inner is event.node or inner.a.begin >= event.at:
                continue
            if inner.a.end < event.at:
                found += inner.outputs
            found += [each for each in inner.inputs if self.producer(each) is None]
        while segment.parent is not None and Role.INPUT not in self.step.a.roles:  # a dump of outputs alone
            segment = segment.parent
            found += [out for inner in segment.inner if inner.a.end < event.at for out in inner.outputs]
        return found

    def is_handed_on(self, event: Event) -> bool:
        """Return True if calls of the model made what another is given: it is no part of the batch."""
        learns = any(each is not None and each.learns for each in (event.a, event.b))
        return learns or self.producer(event) is not None or _key(event.b) in self._made_in_b

    def uses(self, event: Event) -> list[Event]:
        """Return what was made directly of a tensor of the forward pass."""
        node = event.node
        assert node is not None
        if event.role is Role.INPUT:
            return list(node.outputs)
        if event.role is Role.VALUE:
            return self._made_by_code(node, event.at) + node.outputs
        scope, key = node.parent, _key(event.a)
        later = [use for use in self._given.get(key, ()) if use.at > event.at] if key else []
        if scope is None:
            return [use for use in later if use.node is not node]
        direct = [use for use in later if use.node is not None and use.node.parent is scope]
        returned = [out for out in scope.outputs if out.a is event.a or (key is not None and _key(out.a) == key)]
        if direct or returned:
            return direct + (returned or scope.outputs)
        return self._made_by_code(scope, event.at) + scope.outputs

    def _made_by_code(self, scope: Node, after: int) -> list[Event]:
        """Return the inputs that a call's own code made for calls inside it, after a moment."""
        return [
            each
            for inner in scope.inner
            if inner.a.begin >= after
            for each in inner.inputs
            if self.step.error(each) is not None and self.producer(each) is None
        ]

    # Backward

    def backward(self) -> list[Event]:
        """Return the gradients of calls in causal order: that of a tensor is complete where the tensor was made."""
        found = []
        for number, node in enumerate(self.step.nodes):
            for event in self.step.gradients(node):
                made = event.at
                if event.role is not Role.GRAD_INPUT:
                    made = self._begins(event) or self.first_seen(self.value(event), event.at)
                is_total = event.role is not Role.GRAD_INPUT
                found.append(((-node.a.micro, -made, is_total, node.depth, number), event))
        return [event for _, event in sorted(found, key=lambda each: each[0])]

    def _begins(self, gradient: Event) -> int:
        """Return when the call began that returns, beside another tensor, one that no call is given; else 0.

        Attention weights: what comes back to them comes from inside of the call.
        """
        node = gradient.node
        assert node is not None
        is_beside = gradient.role is Role.GRAD_OUTPUT and [out.slot_a for out in node.outputs[:1]] != [gradient.slot_a]
        if not is_beside or _key(self.value(gradient)) in self._given:
            return 0
        return min((each.node.a.begin for each in self.makers(gradient) if each.node is not None), default=0)

    def first_seen(self, tensor: Tensor | None, otherwise: int) -> int:
        """Return when a tensor of the forward pass was first seen."""
        key = _key(tensor)
        return self._first_seen.get(key, otherwise) if key is not None else otherwise

    def value(self, gradient: Event) -> Tensor | None:
        """Return the tensor, in A, that a gradient belongs to."""
        assert gradient.node is not None
        role = Role.OUTPUT if gradient.role is Role.GRAD_OUTPUT else Role.INPUT
        return self.step.tensors(gradient.node, "A", role).get(gradient.slot_a)

    def value_event(self, gradient: Event) -> Event | None:
        """Return the event of the tensor that a gradient belongs to."""
        assert gradient.node is not None
        events = gradient.node.outputs if gradient.role is Role.GRAD_OUTPUT else gradient.node.inputs
        return next((each for each in events if each.slot_a == gradient.slot_a), None)

    def is_over_same_uses(self, total: Event) -> bool:
        """Return False if only one side's own code makes the tensor: the totals are over other uses then."""
        value = self.value_event(total)
        if value is None or value.b is None or value.b.hash is None:
            return True
        return (self.producer(value) is not None) == (value.b.hash in self._made_in_b)

    def makers(self, gradient: Event) -> list[Event]:
        """Return the outputs that are the tensor of a gradient."""
        return _of_micro(self._made.get(_key(self.value(gradient)), ()), gradient)

    def consumers(self, gradient: Event) -> list[Node]:
        """Return the paired calls that were given the tensor of a gradient."""
        made = {each.node for each in self.makers(gradient)}
        given = _of_micro(self._given.get(_key(self.value(gradient)), ()), gradient)
        return [node for node in dict.fromkeys(each.node for each in given) if node is not None and node not in made]

    def users(self, gradient: Event) -> list[Node]:
        """Return the calls of all micro-batches that were given a gradient's tensor, but the one it came back to."""
        given = (each.node for each in self._given.get(_key(self.value(gradient)), ()))
        return [node for node in dict.fromkeys(given) if node is not None and node is not gradient.node]

    def is_same_tensor(self, a: Tensor | None, b: Tensor | None) -> bool:
        """Return True if two tensors of A are one."""
        return _key(a) is not None and _key(a) == _key(b)

    def is_made_in_b(self, event: Event, before: int) -> bool:
        """Return True if B saw a tensor before a moment in which it was given to a call."""
        key = _key(event.b)
        nodes = [node for node in self.step.nodes if key is not None and node.b.begin < before]
        return any(_key(each.b) == key for node in nodes for each in (*node.inputs, *node.outputs))


def home_of(nodes: Iterable[Node]) -> Node | None:
    """Return the innermost call around all of some."""
    first, *rest = outermost(list(nodes))
    common = list(first.callers())
    for each in rest:
        around = list(each.callers())
        common = [call for call in common if call in around]
    return common[0] if common else None


def outermost(nodes: list[Node]) -> list[Node]:
    """Return those of some calls that lie in none of the others."""
    return [each for each in nodes if not any(around in nodes for around in each.callers())]


def _of_micro(events: Iterable[Event], gradient: Event) -> list[Event]:
    assert gradient.node is not None
    return [each for each in events if each.node is not None and each.node.a.micro == gradient.node.a.micro]


def _key(tensor: Tensor | None) -> Hash | None:
    """Return what tells a tensor from others: its hash, or that of its first part."""
    if tensor is None:
        return None
    return tensor.hash if tensor.hash is not None or not tensor.parts else _key(tensor.parts[0][0])
