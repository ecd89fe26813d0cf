"""Which modules are wrong by themselves, given what B's made of what A's were given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from probe.comparison.distance.metrics import Status
from probe.comparison.ledger.known import Judged
from probe.comparison.notes import Note, note
from probe.comparison.result import Divergence, Kind, NodeRef
from probe.comparison.steps.events import StepPairs
from probe.comparison.steps.step_half import Event, Node
from probe.records import JudgementName, Phase, Role
from probe.replaying.judgement.checks import Calls, Check, Checks, Passed
from probe.replaying.judgement.limits import Moved
from probe.structure.tree import Tree

_BACK = (Role.GRAD_INPUT, Role.GRAD_TOTAL)
_NEAR = 2.0
"""times the limit, up to which a finding is less sure"""
_SURE, _LESS_SURE = 0.97, 0.75
_SHAPES = "shapes-differ"


@dataclass
class Judgement:
    """All that was judged."""

    events: list[Judged] = field(default_factory=list)
    findings: list[Divergence] = field(default_factory=list)


class Judge:
    """Judges a step.

    Parameters
    ----------
    pairs
        A, and the recording of a pass through B
    passed
        what the pass says of itself
    moved
        makes the passes that measure rounding, where there is something to ask
    """

    def __init__(self, pairs: StepPairs, passed: Passed, moved: Callable[[], Moved]) -> None:
        self.pairs, self.passed, self._moved = pairs, passed, moved
        self.calls = Calls(pairs, passed)
        self.found = Judgement()
        self.wrong: dict[int, Phase] = {}
        """pairs of modules that are wrong by themselves: the phase in which that is seen first"""
        self.spoilt: set[Node] = set()
        """calls of which what they pass back is not what it should be"""
        self._known: set[tuple[Node, str]] = set()
        """what calls return that could be compared, by A's slots"""
        self._after: dict[Node, int] = {}
        """calls in which one inside returned something of another size: when, which nothing of A's stands for behind that"""

    def judged(self) -> Judgement:
        """Judge everything, in the order of cause."""
        found = Checks(self.calls)
        checks = list(found.all())
        if any(check.is_suspect for check in checks):
            moved = self._moved()
            for check in checks:
                if check.is_suspect:
                    check.moved = moved.error(self.pairs.b, check.event, found.key(check))
        for check in checks:
            self._judge(check)
        return self.found

    def _judge(self, check: Check) -> None:
        event, metrics = check.event, check.event.metrics
        if metrics is None:
            self._missing(check)
            return
        if event.role is Role.OUTPUT and check.node is not None and metrics.is_known:
            self._known.add((check.node, event.slot_a))
        if not metrics.is_known:
            self._note(check, "not comparable")
            if (
                event.role is Role.OUTPUT
                and metrics.why is not None
                and metrics.why.code == _SHAPES
                and self._is_of_one_class(event.pair)
            ):
                self._other_shape(check)
            return
        if not check.held.is_wrong:
            self._note(check, "equal" if metrics.status is Status.EQUAL else "noise")
            return
        if event.role in (Role.PARAM, Role.BUFFER, Role.PARAM_GRAD):
            self._of_weight(check)
        elif event.role in (Role.INPUT, Role.OUTPUT):
            self._forwards(check)
        else:
            self._backwards(check)

    def _note(self, check: Check, verdict: JudgementName) -> None:
        held = check.held
        self.found.events.append(
            Judged(check.event, held.limit, verdict, held.error, 0.0, held if held.measure else None)
        )

    def _forwards(self, check: Check) -> None:
        node = check.node
        assert node is not None
        maker = node.parent if check.event.role is Role.INPUT else node
        if maker is None:  # what the whole model was given is A's
            self._note(check, "not judged")
            return
        is_behind = self.wrong.get(maker.pair, Phase.UPDATE) < Phase.FORWARD or self._is_behind_other_size(node)
        self._note(check, "inherited" if is_behind else "introduced")
        if maker.pair not in self.wrong and not is_behind:
            self.spoilt.add(maker)
            self._find(check, Phase.FORWARD, maker, _handed(check.event, node, maker, self.calls.tree_a, self.pairs))

    def _is_of_one_class(self, pair: int) -> bool:
        modules = self.pairs.matching.pairs[pair]
        infos = self.pairs.a.reader.modules[modules.a], self.pairs.b.reader.modules[modules.b]
        return infos[0].class_name == infos[1].class_name

    def _other_shape(self, check: Check) -> None:
        """Take up that a module returns something of another size than the same class does in A."""
        node = check.node
        assert node is not None
        is_behind = self._is_behind_other_size(node) or any(
            each.pair in self.wrong for each in self.calls.children.get(node, ())
        )
        for around in node.ancestors():
            self._after.setdefault(around, node.end)
        if node.pair not in self.wrong and not is_behind:
            self.spoilt.add(node)
            self._find(
                check, Phase.FORWARD, node, _handed(check.event, node, node, self.calls.tree_a, self.pairs), Kind.SHAPE
            )

    def _is_behind_other_size(self, node: Node) -> bool:
        """Tell whether a call goes on with something of another size that a call before it returned."""
        return any(node.end > self._after.get(around, node.end) for around in (node, *node.ancestors()))

    def _backwards(self, check: Check) -> None:
        node, role = check.node, check.event.role
        assert node is not None
        maker: Node | None = node
        if role is Role.GRAD_OUTPUT:
            maker = node.parent
        elif role is Role.GRAD_TOTAL:
            maker = self._passing_back(check, node)
        if maker is None and role is Role.GRAD_OUTPUT:
            maker = node  # the model's own loss
        is_behind = maker is None or maker.pair in self.wrong or self._is_spoilt(maker, role)
        is_behind = is_behind or maker in self._after or (maker is not None and self._is_behind_other_size(maker))
        if role is Role.GRAD_OUTPUT and (*self.pairs.half("B").key(node), check.event.slot_b) in self.passed.with_inner:
            is_behind = is_behind or bool(self.wrong)
            maker = node if node.parent is not None else maker
        if maker is not None:
            self.spoilt.add(maker)
        self._note(check, "inherited" if is_behind else "introduced")
        if not is_behind:
            assert maker is not None
            self._find(check, Phase.BACKWARD, maker, _handed(check.event, node, maker, self.calls.tree_a, self.pairs))

    def _passing_back(self, check: Check, node: Node) -> Node | None:
        """Return the call whose code a wrong sum over all consumers of a call's argument is due to.

        It is the call itself where it is the only consumer of it; else it may be any, and the code around answers.
        """
        key = self.pairs.half("B").key(node)
        own = self.pairs.rows_b.get(key, Role.GRAD_INPUT).get(check.event.slot_b)
        b = self.pairs.b
        is_alone = bool(own) and b.digest(own[0]) == b.digest(check.event.row_b)
        return node if is_alone else node.parent

    def _is_spoilt(self, maker: Node, role: Role) -> bool:
        """Tell whether what a call was handed by those inside of it, in backward, is wrong already."""
        if role is Role.GRAD_INPUT and not self.calls.children.get(maker):
            return False
        return any(self._passes_on(each) for each in self.calls.children.get(maker, ()))

    def _passes_on(self, node: Node) -> bool:
        """Tell whether B's own gradients of a call's arguments, and not A's, went on from it, and are wrong."""
        if self.pairs.rows_a.get(self.pairs.half("A").key(node), Role.GRAD_INPUT):
            return False
        return (
            node in self.spoilt
            or node.pair in self.wrong
            or self.calls.is_unpulled(node)
            or any(map(self._passes_on, self.calls.children.get(node, ())))
        )

    def _of_weight(self, check: Check) -> None:
        event = check.event
        calls = self.calls.using(event.pair)
        pair = calls[0].pair if calls else event.pair
        is_behind = (
            event.pair in self.wrong
            or pair in self.wrong
            or any(self._is_spoilt(node, Role.GRAD_INPUT) for node in calls)
        )
        self._note(check, "inherited" if is_behind and event.phase is not Phase.INIT else "introduced")
        if event.phase is Phase.INIT or not is_behind:
            self._find_weight(check)

    def _missing(self, check: Check) -> None:
        """Take up a gradient that A has and B has not."""
        event, node = check.event, check.node
        norm = self.pairs.a.columns["norm"][event.row_a]
        if not norm > 0:
            return
        if event.role is Role.PARAM_GRAD:
            if event.pair not in self.wrong and not any(
                node.pair in self.wrong for node in self.calls.using(event.pair)
            ):
                self._find_weight(check, Kind.MISSING)
            return
        assert node is not None
        maker = node.parent if event.role is Role.GRAD_OUTPUT else node
        if maker is None or maker.pair in self.wrong or maker in self._after:
            return
        if event.role is Role.GRAD_OUTPUT and (node, event.slot_a) not in self._known:
            return
        self.spoilt.add(maker)
        self._find(
            check, Phase.BACKWARD, maker, _handed(event, node, maker, self.calls.tree_a, self.pairs), Kind.MISSING
        )

    # Findings

    def _find(self, check: Check, phase: Phase, maker: Node, said: Note, kind: Kind = Kind.INTRODUCED) -> None:
        self.wrong[maker.pair] = phase
        is_own = maker is check.node
        slots = (check.event.slot_a, check.event.slot_b) if is_own else ("", "")
        refs = _refs(self.pairs, maker.pair, maker, *slots)
        self._append(check, phase, kind, refs, said)

    def _find_weight(self, check: Check, kind: Kind | None = None) -> None:
        event = check.event
        self.wrong.setdefault(event.pair, event.phase)
        kinds = {Phase.INIT: Kind.INIT, Phase.UPDATE: Kind.UPDATE}
        said = note(
            "replay-weight",
            role=event.role.label,
            slot=event.slot_a,
            phase=event.phase.label,
            is_missing=kind is Kind.MISSING,
        )
        refs = _refs(self.pairs, event.pair, None, event.slot_a, event.slot_b)
        self._append(check, event.phase, kind or kinds.get(event.phase, Kind.INTRODUCED), refs, said)

    def _append(
        self, check: Check, phase: Phase, kind: Kind, refs: tuple[tuple[NodeRef, ...], tuple[NodeRef, ...]], said: Note
    ) -> None:  # fmt: skip
        event, metrics = check.event, check.event.metrics
        if metrics is not None and metrics.status is Status.NONFINITE:
            kind = Kind.NONFINITE
        held = check.held
        sure = _SURE if kind in (Kind.MISSING, Kind.SHAPE) or held.error > _NEAR * held.limit else _LESS_SURE
        sure *= self.pairs.matching.pairs[event.pair].confidence
        self.found.findings.append(Divergence(
            phase, event.role, kind, sure, *refs, metrics, held.limit, (said, *held.facts), None, held.error,
            measure=held.measure, event=event,
        ))  # fmt: skip


def _handed(event: Event, node: Node, maker: Node, tree: Tree, pairs: StepPairs) -> Note:
    """Say what a call did otherwise, given the same."""
    inside = "" if maker is node else tree.path(pairs.matching.pairs[node.pair].a)
    return note("replay-own-error", role=event.role.label, slot=event.slot_a, inside=inside, is_missing=event.row_b < 0)


def _refs(
    pairs: StepPairs, pair: int, node: Node | None, slot_a: str, slot_b: str
) -> tuple[tuple[NodeRef, ...], tuple[NodeRef, ...]]:
    """Return a place in A and in B: several where one side has several modules, or parameters, for one."""
    modules = pairs.matching.pairs[pair]
    micro, call, call_b = (node.micro, node.call, node.call_b) if node is not None else (0, 0, 0)
    found = []
    for side, module, number, slot in ((pairs.a, modules.a, call, slot_a), (pairs.b, modules.b, call_b, slot_b)):
        infos = [(side.reader.modules[at], name) for at, name in side.places_of(module, slot)]
        found.append(tuple(NodeRef.of(side.step, micro, info, number, name) for info, name in infos))
    return found[0], found[1]
