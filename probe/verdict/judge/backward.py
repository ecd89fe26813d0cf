"""From the loss back: the gradients of what calls were given and returned, the mirror image of the forward pass."""

from __future__ import annotations

import math
from collections import defaultdict

from probe.records import Phase, Role
from probe.verdict.distance.error import Error
from probe.verdict.distance.measure import measure
from probe.verdict.judge import blame
from probe.verdict.judge.judging import SEVERAL, Judging, bounded, is_off
from probe.verdict.judge.verdicts import State, Verdict
from probe.verdict.noise.model import ALONG_BACKWARD, BACKWARD, JUDGES_NOTHING, NORMS
from probe.verdict.noise.rung import Check
from probe.verdict.noise.terms import kink_limit, sibling_limit, softmax_gain, subnormal_limit
from probe.verdict.steps.events import Event, Node


def judge_backward(judging: Judging) -> float:
    """Judge gradients, the last tensor first; return the factor by which all of B's are larger than A's."""
    events = [event for event in judging.graph.backward() if _is_comparable(judging, event)]
    lowest = judging.lowest_precision()
    factor = _scale(judging, events[0], lowest) if events else 1.0
    _Backward(judging, lowest, factor).judge(events)
    return factor


def _scale(judging: Judging, event: Event, u: float) -> float:
    """Return the factor of the first gradient that comes back, if B's is a multiple of A's and no more."""
    error = judging.step.error(event)
    if event.role is not Role.GRAD_OUTPUT or error is None or not error.norm_a or not error.norm_b:
        return 1.0
    assert event.a is not None and event.b is not None
    factor = error.norm_b / error.norm_a
    left = measure(event.a, event.b, factor=factor)
    is_multiple = (
        left is not None and left.size <= max(BACKWARD.floor(u), 0.1 * error.size) and left.size < 0.1 * error.size
    )
    return factor if error.off > 1e-5 and is_multiple and math.isfinite(factor) else 1.0


class _Backward:
    """The walk back, with the errors that each call has seen so far."""

    def __init__(self, judging: Judging, lowest: float, factor: float) -> None:
        self.judging, self.lowest, self.factor = judging, lowest, factor
        self.so_far: dict[Node | None, float] = defaultdict(float)
        """by call: the largest error of a gradient in it"""
        self.beyond: dict[Node | None, float] = defaultdict(float)
        """by call: the largest of them that measured noise does not explain"""
        self.apart: dict[Node | None, float] = defaultdict(float)
        """by call: the largest absolute error, by element, of what its own code passed back"""
        self.is_wrong: set[Node | None] = set()
        """calls in which a gradient is wrong"""
        self.saved = _saved(judging)
        self.cut = None if judging.step.is_across_frameworks else blame.of_cut(judging)

    def judge(self, events: list[Event]) -> None:
        for event in events:
            self._judge(event)

    def _judge(self, event: Event) -> None:
        judging, node = self.judging, event.node
        assert node is not None
        error, u = judging.step.error(event, self.factor), max(event.u, self.lowest)
        sources = self._gain(event) * self._sources(event)
        if error is None:
            if event.is_paired or not self._is_missing(event):
                return
            error = Error(math.inf)
            check = Check(math.inf, 0.0, True)
        else:
            limit = self._limit(event, error, u)
            check = judging.check(
                event,
                error,
                limit,
                BACKWARD,
                u,
                self._excess(event),
                has_direction=self._is_multiple(event, error, u, sources),
                is_judged=limit < JUDGES_NOTHING,
            )
        is_behind = any(each in self.is_wrong for each in (node, *node.callers(), None)) or self._is_forward_wrong(
            event
        )
        own, limit = bounded(error.size), check.limit
        if check.code:
            verdict = Verdict(event, State.OPEN, sources, u, limit, is_behind=is_behind, code=check.code, check=check)
            judging.verdicts.add(verdict)
            return
        if not check.is_wrong:
            judging.explained(event, error, BACKWARD.floor(u), u, check, sources, is_behind)
        elif is_behind or check.is_consequence:
            judging.verdicts.add(Verdict(event, State.INHERITS, own, u, limit, is_behind=True, check=check))
        elif not event.is_paired and self.cut is not None and self.cut[1] == "frozen":
            return  # the gradients of parameters tell
        else:
            judging.verdicts.add(Verdict(event, State.INTRODUCED, own, u, limit, sources=sources, check=check))
            is_cut = self.cut is not None and not event.is_paired
            path, code = self.cut if self.cut is not None and is_cut else blame.of_gradient(judging, event)
            phase = Phase.LOSS if code == "loss-behind" else Phase.BACKWARD
            judging.finds(phase, (path,), event, limit, code, error=error, check=check)
            self.is_wrong.add(None)
        self._note(event, error, sources)

    def _limit(self, event: Event, error: Error, u: float) -> float:
        node = event.node
        assert node is not None
        limit = max(BACKWARD.limit(u, self._gain(event) * self._sources(event)), subnormal_limit(event))
        if event.role is Role.GRAD_OUTPUT:
            limit = max(limit, sibling_limit(event, self.apart[node.parent]))
        if abs(error.along) < ALONG_BACKWARD:
            limit = max(limit, kink_limit(self.judging.step, event, max(self._saved_error(node), 2**-24)))
        return limit

    def _gain(self, event: Event) -> float:
        assert event.node is not None
        return softmax_gain(self.judging.step, event.node.parent) if event.role is Role.GRAD_OUTPUT else 1.0

    def _sources(self, event: Event) -> float:
        node = event.node
        assert node is not None
        seen = max(self.so_far[each] for each in (node, *node.callers(), *self._users(event)))
        return max(seen, self._saved_error(node), self.judging.verdicts.error(self.judging.graph.value_event(event)))

    def _users(self, event: Event) -> list[Node]:
        return self.judging.graph.users(event) if event.role is not Role.GRAD_INPUT else []

    def _excess(self, event: Event) -> float:
        """Return what measured noise does not explain of the errors of the sources."""
        node, value = event.node, self.judging.graph.value_event(event)
        assert node is not None
        saved = self.saved.get(node.parent if node.parent is not None else node, (0.0, 0.0))[1]
        seen = self.judging.verdicts.by_event.get(value) if value is not None else None
        own = seen.beyond if seen is not None else 0.0
        return max(saved, own, *(self.beyond[each] for each in (node, *node.callers(), *self._users(event))))

    def _saved_error(self, node: Node) -> float:
        return self.saved.get(node.parent if node.parent is not None else node, (0.0, 0.0))[0]

    def _note(self, event: Event, error: Error, sources: float) -> None:
        node = event.node
        assert node is not None
        known = bounded(error.size) if not error.is_bound else max(bounded(error.size), sources)
        excess = self.judging.noise.excess(event, error)
        for each in (node, node.parent):
            self.so_far[each] = max(self.so_far[each], known)
            self.beyond[each] = max(self.beyond[each], known if excess is None else excess)
        if event.role is Role.GRAD_OUTPUT and event.is_paired and not error.is_bound:
            assert event.a is not None
            self.apart[node.parent] = max(self.apart[node.parent], error.apart / math.sqrt(max(event.a.size, 1)))

    def _is_multiple(self, event: Event, error: Error, u: float, sources: float) -> bool:
        """Return True if B's gradient is a multiple of A's by more than rounding leaves.

        A factor scales every element. What the loss itself passes back has the norm that its own sources leave.
        """
        if not event.is_paired or error.is_bound or not math.isfinite(error.size):
            return False
        assert event.a is not None and event.node is not None
        is_of_loss = event.role is Role.GRAD_OUTPUT and not self.judging.graph.users(event)
        if event.node.parent is None and is_of_loss and self.judging.is_first:
            value = self.judging.verdicts.by_event.get(self.judging.graph.value_event(event) or event)
            if is_off(event, error, u, value.off if value is not None else 0.0):
                return True
        is_along = event.a.size >= SEVERAL and abs(error.along) >= ALONG_BACKWARD
        rows = event.a.size / max(event.a.shape[-1] if event.a.shape else 1, 1)
        by_chance = error.size / math.sqrt(rows)  # each sample's gradient is one number times what the loss looks at
        return is_along and error.off > max(NORMS.floor(u), NORMS.gain * sources) + by_chance

    def _is_missing(self, event: Event) -> bool:
        """Return True if a gradient that one side lacks should be there: the tensor learns, nothing passed it on."""
        forward, node = self.judging.graph.value_event(event), event.node
        assert node is not None
        if forward is None or not forward.is_paired or event.role is Role.GRAD_TOTAL:
            return False
        assert forward.a is not None and forward.b is not None
        if not (forward.a.learns or forward.b.learns) or (node.parent is None and forward.role is Role.INPUT):
            return False
        lacking, half = (node.b, self.judging.step.b) if event.b is None else (node.a, self.judging.step.a)
        if event.role is Role.GRAD_OUTPUT:
            return not (lacking.of(Role.GRAD_INPUT) or half.has_gradient(lacking.module))
        if event.role is Role.GRAD_INPUT:
            same_framework = not self.judging.step.is_across_frameworks
            return (
                bool(lacking.of(Role.GRAD_OUTPUT))
                and not lacking.inner
                and same_framework
                and self._learns_before(forward)
            )
        return True

    def _learns_before(self, value: Event) -> bool:
        """Return True if something that learns lies before a tensor, so that its gradient is of use."""
        made = self.judging.graph.producer(value) or value
        assert made.a is not None
        if made is not value:
            return made.a.learns or (made.b is not None and made.b.learns)
        return made.b is not None and made.a.learns == made.b.learns

    def _is_forward_wrong(self, event: Event) -> bool:
        return any(
            finding.phase in (Phase.INIT, Phase.FORWARD, Phase.LOSS) for finding in self.judging.verdicts.findings
        )


def _is_comparable(judging: Judging, event: Event) -> bool:
    """Return False for gradients of a tensor with two representations, and totals over other uses."""
    if event.role is Role.GRAD_TOTAL and not judging.graph.is_over_same_uses(event):
        return False
    value = judging.graph.value_event(event)
    made_by = judging.graph.producer(value) if value is not None else None
    return all(judging.verdicts.state(each) is not State.HEALED for each in (value, made_by))


def _saved(judging: Judging) -> dict[Node, tuple[float, float]]:
    """Return, by call, the largest error and excess of what it and all calls inside it were given and returned."""
    found: dict[Node, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    for event, verdict in judging.verdicts.by_event.items():
        if event.node is not None and event.phase is Phase.FORWARD:
            for around in (event.node, *event.node.callers()):
                error, excess = found[around]
                found[around] = max(error, verdict.error), max(excess, verdict.beyond)
    return found
