"""Which modules are wrong by themselves, given what B's made of what A's were given."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from probe.notes import note
from probe.records import Phase, Role
from probe.replaying.limits import MADE_OUTSIDE, WEIGHTS, OtherPass, Rounding
from probe.replaying.passing.left import Passed, place_of
from probe.structure.tree import Tree
from probe.verdict.distance.error import Error
from probe.verdict.judge.judging import bounded
from probe.verdict.judge.verdicts import Finding, State, Verdict, Verdicts
from probe.verdict.noise.rung import Check
from probe.verdict.steps.events import Event, Node
from probe.verdict.steps.step import Step

_COUNTER, _VARIANCE = "num_batches_tracked", "running_var"


@dataclass
class Judge:
    """Judges a step.

    Parameters
    ----------
    step
        A, and the recording of a pass through B
    passed
        what the pass says of itself
    moved
        makes the passes that measure rounding, where there is something to ask
    """

    step: Step
    passed: Passed
    moved: Callable[[], Sequence[OtherPass]]
    verdicts: Verdicts = field(default_factory=Verdicts)
    _wrong: dict[int, Phase] = field(default_factory=dict)
    """modules of A that are wrong by themselves: the phase in which that is seen first"""
    _spoilt: set[Node] = field(default_factory=set)
    """calls of which what they pass back is not what it should be"""
    _known: set[tuple[Node, str]] = field(default_factory=set)
    """what calls return that could be compared, by A's slots"""
    _sure: set[tuple[int, str]] = field(default_factory=set)
    """passes, and classes of modules, that read the cache which A's did"""
    _after: dict[Node, int] = field(default_factory=dict)
    """calls in which one inside returned something of another size: when, which nothing of A's stands for behind that"""

    def __post_init__(self) -> None:
        self._unpulled = {node for call, node in self.step.of_a.items() if call in self.passed.unpulled}

    def judged(self) -> Verdicts:
        """Judge everything, in the order of cause."""
        rounding = Rounding(self.step)
        checks = [(event, rounding.check(event, ())) for event in self._events()]
        if any(check is not None and check.is_wrong for _, check in checks):
            moved = self.moved()
            checks = [
                (e, rounding.check(e, moved) if check is not None and check.is_wrong else check) for e, check in checks
            ]
        forward = [(it.node, it.role, check) for it, check in checks if it.node and it.phase is Phase.FORWARD and check]
        off = {node.parent if role is Role.INPUT else node for node, role, check in forward if check.is_wrong}
        fine = {node.a for node, role, _ in forward if role is Role.OUTPUT and node not in off} & self.passed.behind
        self._sure = {(call.micro, call.class_name) for call in fine if call.micro in self.passed.carried}
        for event, check in checks:
            self._judge(event, check)
        return self.verdicts

    def _lacks_cache(self, node: Node) -> bool:
        """Return True of a call that may be off for B's cache is not A's: no other call of its class agrees in that pass."""
        is_open = node.a in self.passed.behind and (node.a.micro, node.a.class_name) not in self._sure
        self.passed.uncached |= {node.a} if is_open else set()
        return is_open

    # What is held against A's

    def _events(self) -> Iterator[Event]:
        """Yield weights, what came out forwards, then backwards, then gradients of parameters, and buffers."""
        step, of_parameters = self.step, self.step.parameters.events
        forward = [event for node in step.nodes for event in (*node.inputs, *node.outputs)]
        backward = [event for node in step.nodes for event in step.gradients(node)]
        weights = [event for role in WEIGHTS for event in of_parameters(Phase.INIT, role)]
        self._both_have = {event.place for event in weights if event.is_paired}
        for event in (
            *weights,
            *sorted(forward, key=lambda each: each.at),
            *sorted(backward, key=lambda each: (_micro(each) < 0, abs(_micro(each)), -each.at)),
            *of_parameters(Phase.GRADIENT, Role.PARAM_GRAD),
            *of_parameters(Phase.UPDATE, Role.BUFFER),
        ):
            if self._counts(event) if event.node is not None else self._counts_of_parameter(event):
                yield event

    def _counts(self, event: Event) -> bool:
        """Return True if something is to be held against A's; of what one side alone has, only gradients that are missing are."""
        node, role = event.node, event.role
        assert node is not None
        if any((*place_of(node.b), role, slot) in self.passed.skipped for slot in (event.slot_a, event.slot_b, "")):
            return False
        if event.phase is Phase.FORWARD:
            return event.is_paired
        maker = node.parent if role in MADE_OUTSIDE else node
        is_unpulled = maker in self._unpulled or (role is Role.GRAD_TOTAL and node in self._unpulled)
        if is_unpulled or (maker is None and event.b is None):
            return False
        return event.is_paired or (event.a is not None and role is not Role.GRAD_TOTAL)

    def _counts_of_parameter(self, event: Event) -> bool:
        assert event.place is not None
        module, name = event.place
        if event.role is Role.PARAM_GRAD:
            is_incomplete = any(call.module == self._owner(module) for call in self.passed.unpulled)
            return event.a is not None and (event.is_paired or event.place in self._both_have) and not is_incomplete
        is_other = name == _COUNTER or (name == _VARIANCE and self.step.is_across_frameworks)
        return event.is_paired and not (event.phase is Phase.UPDATE and is_other)  # frameworks count in their own ways

    def _owner(self, module: int) -> int:
        """Return the module of A whose calls use a module's own parameters: itself, or the nearest around it that is called."""
        modules = Tree(self.step.a.reader.modules).modules
        called = {node.a.module for node in self.step.nodes} | {call.module for call in self.passed.unpulled}
        while module >= 0 and module not in called:
            module = modules[module].parent
        return module

    def _using(self, module: int) -> list[Node]:
        """Return the calls that use a module's own parameters."""
        owner = self._owner(module)
        return [node for node in self.step.nodes if node.a.module == owner]

    # Verdicts

    def _judge(self, event: Event, check: Check | None) -> None:
        if event.b is None:
            self._missing(event)
        elif check is None:
            self._add(event, State.OPEN)
            if event.role is Role.OUTPUT and event.a is not None and event.a.size != event.b.size:
                self._other_size(event)
        else:
            if event.role is Role.OUTPUT and event.node is not None:
                self._known.add((event.node, event.slot_a))
            if check.is_wrong:
                self._off(event, check)
            else:
                self._add(event, State.AGREES if check.error or check.measure else State.EQUAL, check)

    def _add(self, event: Event, state: State, check: Check | None = None) -> None:
        error, limit = (check.error, check.limit) if check is not None else (1.0, math.nan)
        self.verdicts.add(Verdict(event, state, bounded(error), event.u, limit, sources=0.0, check=check))

    def _off(self, event: Event, check: Check) -> None:
        """Take up what is off by more than rounding."""
        if event.node is None:
            maker, is_behind = None, self._is_of_wrong(event)
            is_cache = event.role is Role.BUFFER and bool(event.place) and event.phase is Phase.UPDATE
            if is_cache and event.place in {(call.module, event.slot_a) for call in self.passed.uncached}:
                self._add(event, State.OPEN, check)
                return
        elif event.phase is Phase.FORWARD:
            maker, is_behind = self._forwards(event, event.node)
            if maker is None or self._lacks_cache(maker):  # what the whole model was given is A's
                self._add(event, State.OPEN, check)
                return
        else:
            maker, is_behind = self._backwards(event, event.node)
            self._spoilt |= {maker} if maker is not None else set()
        self._add(event, State.INHERITS if is_behind else State.INTRODUCED, check)
        if not is_behind and (maker is None or maker.a.module not in self._wrong):
            self._find(event, maker, check)

    def _forwards(self, event: Event, node: Node) -> tuple[Node | None, bool]:
        """Return the call that made what is off, and whether it would be off anyway."""
        maker = node.parent if event.role is Role.INPUT else node
        is_spoilt = maker is not None and self._wrong.get(maker.a.module, Phase.UPDATE) < Phase.FORWARD
        return maker, is_spoilt or self._is_behind_other_size(node)

    def _backwards(self, event: Event, node: Node) -> tuple[Node | None, bool]:
        """Return the same of a gradient."""
        role, maker = event.role, node if event.role is Role.GRAD_INPUT else node.parent
        if role is Role.GRAD_TOTAL and self._is_only_user(event, node):
            maker = node
        if maker is None and role is Role.GRAD_OUTPUT:
            maker = node  # the model's own loss
        is_behind = maker is None or maker.a.module in self._wrong or any(map(self._passes_on, maker.inner))
        is_behind = is_behind or maker in self._after or (maker is not None and self._is_behind_other_size(maker))
        if role is Role.GRAD_OUTPUT and (*place_of(node.b), event.slot_b) in self.passed.with_inner:
            is_behind = is_behind or bool(self._wrong)
            maker = node if node.parent is not None else maker
        return maker, is_behind

    def _is_of_wrong(self, event: Event) -> bool:
        """Return True if what is off of a parameter is so because a module is wrong that uses it."""
        assert event.place is not None
        return event.phase is not Phase.INIT and (
            event.place[0] in self._wrong
            or any(
                node.a.module in self._wrong or any(map(self._passes_on, node.inner))
                for node in self._using(event.place[0])
            )
        )

    def _other_size(self, event: Event) -> None:
        """Take up that a module returns something of another size than the same class does in A."""
        node = event.node
        assert node is not None
        if node.a.class_name != node.b.class_name:
            return
        is_behind = self._is_behind_other_size(node) or any(inner.a.module in self._wrong for inner in node.inner)
        for around in node.callers():
            self._after.setdefault(around, node.a.end)
        if self._lacks_cache(node) or (node.a.micro < 0 and any(map(_is_longer, node.inputs))):
            return
        if node.a.module not in self._wrong and not is_behind:
            self._find(event, node, None)

    def _is_behind_other_size(self, node: Node) -> bool:
        """Return True if a call goes on with something of another size that a call before it returned."""
        return any(node.a.end > self._after.get(around, node.a.end) for around in (node, *node.callers()))

    def _is_only_user(self, event: Event, node: Node) -> bool:
        """Return True if a call is the only consumer of its argument, so that a wrong sum over all of them is due to it."""
        own = self.step.tensors(node, "B", Role.GRAD_INPUT).get(event.slot_b)
        return own is not None and event.b is not None and own.hash == event.b.hash

    def _passes_on(self, node: Node) -> bool:
        """Return True if B's own gradients of a call's arguments, and not A's, went on from it, and are wrong."""
        if self.step.tensors(node, "A", Role.GRAD_INPUT):
            return False
        is_wrong = node in self._spoilt or node.a.module in self._wrong or node in self._unpulled
        return is_wrong or any(map(self._passes_on, node.inner))

    def _missing(self, event: Event) -> None:
        """Take up a gradient that A has and B has not."""
        node = event.node
        if event.a is None or not event.a.norm > 0:
            return
        if node is None:
            assert event.place is not None
            if not {event.place[0], *(user.a.module for user in self._using(event.place[0]))} & self._wrong.keys():
                self._find(event, None, None)
            return
        maker = node.parent if event.role is Role.GRAD_OUTPUT else node
        is_known = event.role is not Role.GRAD_OUTPUT or (node, event.slot_a) in self._known
        if maker is not None and is_known and maker.a.module not in self._wrong and maker not in self._after:
            self._find(event, maker, None)

    def _find(self, event: Event, maker: Node | None, check: Check | None) -> None:
        """Take up what is wrong by itself: the code of a call, or without one a parameter."""
        facts = {"role": event.role.label, "slot": event.slot_a, "is_missing": event.b is None}
        if maker is not None:
            module, path = maker.a.module, maker.a.path
            self._spoilt.add(maker)
            inside = "" if maker is event.node or event.node is None else event.node.a.path
            said = note("replay-own-error", **facts, inside=inside)
        else:
            assert event.place is not None
            module, path = event.place[0], self.step.path(event.place[0])
            said = note("replay-weight", **facts, phase=event.phase.label)
        self._wrong.setdefault(module, event.phase)
        error = self.step.error(event) if event.b is not None else Error(math.inf)
        check = check or Check(math.nan, math.nan, True)
        check = replace(check, facts=(said, *check.facts))
        self.verdicts.findings.append(
            Finding(self.step.a.step, _micro(event), event.phase, (path,), event, error, check.limit, "", check=check)
        )


def _is_longer(event: Event) -> bool:
    """Return True if B's code went on with more than A's, which may have been called for the last tokens alone."""
    return event.a is not None and event.b is not None and event.a.size < event.b.size


def _micro(event: Event) -> int:
    return event.node.a.micro if event.node is not None else 0
