"""From the loss back: the gradients of what calls were given and returned, the mirror image of the forward pass."""

from __future__ import annotations

import math
from collections import defaultdict

from probe.numbers import tokens
from probe.numbers.tokens import Near
from probe.records import Phase, Role
from probe.verdict.distance.error import Error
from probe.verdict.distance.measure import measure
from probe.verdict.distance.values import error_of
from probe.verdict.judge import blame
from probe.verdict.judge.judging import SEVERAL, Judging, bounded, is_off
from probe.verdict.judge.loss import noise_of_loss
from probe.verdict.judge.verdicts import State, Verdict
from probe.verdict.noise.limits import widened
from probe.verdict.noise.model import ALONG_BACKWARD, BACKWARD, JUDGES_NOTHING, NORMS
from probe.verdict.noise.rung import Check
from probe.verdict.noise.terms import kink_limit, sibling_limit, softmax_gain, subnormal_limit
from probe.verdict.steps.events import Event, Node


def judge_backward(judging: Judging) -> float:
    """Judge gradients, the last tensor first; return the factor by which all of B's are larger than A's."""
    events = [event for event in judging.graph.backward() if _is_comparable(judging, event)]
    lowest = judging.lowest_precision()
    factor = _scale(judging, events[0], lowest) if events else 1.0
    walk = _Backward(judging, lowest, factor)
    for event in events:
        walk.judge(event)
    return factor


def _scale(judging: Judging, event: Event, u: float) -> float:
    """Return the factor of the first gradient that comes back, if B's is a multiple of A's and no more."""
    error = judging.step.error(event)
    if event.role is not Role.GRAD_OUTPUT or error is None or not error.norm_a or not error.norm_b:
        return 1.0
    assert event.a is not None and event.b is not None
    factor = error.norm_b / error.norm_a
    left = measure(event.a, event.b, factor=factor)
    is_multiple = left is not None and left.size < 0.1 * error.size
    return factor if error.off > 1e-5 and is_multiple and math.isfinite(factor) else 1.0


class _Backward:
    """The walk back, with the errors that each call has seen so far."""

    def __init__(self, judging: Judging, lowest: float, factor: float) -> None:
        self.judging, self.lowest, self.factor = judging, lowest, factor
        self.so_far: dict[Node | None, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
        """by call: the largest error of a gradient in it, and the largest that measured noise does not explain"""
        self.apart: dict[Node | None, float] = defaultdict(float)
        """by call: the largest absolute error, by element, of what its own code passed back"""
        self.roots: list[tuple[int, float, float, float]] = []
        """of the models' own gradients: when their calls ended in A, and these three"""
        phases = Phase.INIT, Phase.FORWARD, Phase.LOSS
        self.is_behind = any(finding.phase in phases for finding in judging.verdicts.findings)
        """something that gradients are made of is wrong"""
        self.saved = _saved(judging)
        self.cut = None if judging.step.is_across_frameworks else blame.of_cut(judging)

    def judge(self, event: Event) -> None:
        judging, node = self.judging, event.node
        assert node is not None
        error, u = judging.step.error(event, self.factor), max(event.u, self.lowest)
        sources, excess = self._sources(event)
        sources *= softmax_gain(judging.step, node.parent) if event.role is Role.GRAD_OUTPUT else 1.0
        if error is None:
            if event.is_paired or not self._is_missing(event):
                return
            error = Error(math.inf)
            check = Check(math.inf, 0.0, True)
        else:
            whole, limit, told, passed = error, self._limit(event, error, u, sources), event, sources
            if limit >= JUDGES_NOTHING and (near := self._nearest(event, u)) is not None:
                told, passed, error = near.event, near.error, error_of(near.x, near.y)
                limit = BACKWARD.limit(u, passed)
            is_multiple = self._is_multiple(told, error, u, passed)
            known = {"has_direction": is_multiple, "is_judged": limit < JUDGES_NOTHING}
            check = judging.check(event, error, limit, BACKWARD, u, excess, **known)
            error = whole
        own, limit, is_behind = bounded(error.size), check.limit, self.is_behind
        if check.code:
            verdict = Verdict(event, State.OPEN, sources, u, limit, is_behind=is_behind, code=check.code, check=check)
            judging.verdicts.add(verdict)
            return
        if not check.is_wrong:
            judging.explained(event, error, BACKWARD.floor(u), u, check, sources, is_behind)
        elif check.is_consequence or (is_behind and not check.is_far):
            verdict = Verdict(event, State.INHERITS, own, u, limit, is_behind=True, sources=sources, check=check)
            judging.verdicts.add(verdict)
        elif not event.is_paired and self.cut is not None and self.cut[1] == "frozen":
            return  # the gradients of parameters tell
        else:
            judging.verdicts.add(Verdict(event, State.INTRODUCED, own, u, limit, sources=sources, check=check))
            is_cut = self.cut is not None and not event.is_paired
            path, code = self.cut if self.cut is not None and is_cut else blame.of_gradient(judging, event)
            phase = Phase.LOSS if code == "loss-behind" else Phase.BACKWARD
            judging.finds(phase, (path,), event, limit, code, error=error, check=check, is_behind=is_behind)
            self.is_behind = True
        self._note(event, error, sources)

    def _nearest(self, event: Event, u: float) -> Near | None:
        """Return what the tokens tell whose values, and gradients that came back so far, differ least."""
        verdicts, node, graph = self.judging.verdicts, event.node, self.judging.graph
        if not verdicts.tokens or self.factor != 1 or node is None or not event.is_paired:
            return None
        users = graph.users(event) if event.role is not Role.GRAD_INPUT else []
        scope = [each for each in (node, node.parent) if each is not None]
        seen = [each.event for at in (*scope, *users) for each in verdicts.of_node(at) if each.event is not event]
        return tokens.near(event, seen, verdicts.choices(node), verdicts.tokens, u, verdicts.rows, in_order=True)

    def _limit(self, event: Event, error: Error, u: float, sources: float) -> float:
        node = event.node
        assert node is not None
        limit = BACKWARD.limit(u, sources)
        limit = widened(limit, norm_behind=self._condition(event) * limit, subnormal=subnormal_limit(event))
        if event.role is Role.GRAD_OUTPUT:
            siblings, of_loss = sibling_limit(event, self._of_scope(node)[2]), self._noise_of_loss(event)[1]
            limit = widened(limit, larger_beside=siblings, small_loss=of_loss)
        if abs(error.along) < ALONG_BACKWARD:
            limit = widened(limit, kink=kink_limit(self.judging.step, event, max(self._of_saved(node)[0], 2**-24)))
        return limit

    def _noise_of_loss(self, event: Event) -> tuple[float, float, float]:
        value = self.judging.graph.value_event(event) if event.node is not None and event.node.parent is None else None
        return noise_of_loss(self.judging, value) if value is not None else (0.0, 0.0, 0.0)

    def _condition(self, event: Event) -> float:
        """Return how much larger terms are than the sum that a layer passes back: a norm takes most of some away."""
        node, step = event.node, self.judging.step
        larger = max(each.norm for each in (event.a, event.b) if each is not None)
        if event.role is not Role.GRAD_INPUT or node is None or node.inner or not larger:
            return 1.0
        roles = Role.INPUT, Role.OUTPUT, Role.GRAD_OUTPUT
        given, made, came = (next(iter(step.tensors(node, "A", role).values()), None) for role in roles)
        if given is None or made is None or came is None or given.size != made.size or given.rms <= abs(given.mean):
            return 1.0
        return max(1.0, came.norm * made.rms / math.sqrt(given.rms**2 - given.mean**2) / larger)

    def _sources(self, event: Event) -> tuple[float, float]:
        """Return the largest error of what a gradient is made of, and what measured noise does not explain of it."""
        node, graph = event.node, self.judging.graph
        assert node is not None
        users = graph.users(event) if event.role is not Role.GRAD_INPUT else []
        value = self.judging.verdicts.by_event.get(graph.value_event(event) or event)
        seen = [self.so_far[each] for each in (node, *node.callers(), *users)]
        own = (value.error, value.beyond) if value is not None else (0.0, 0.0)
        seen += [self._of_scope(node)[:2], self._of_saved(node), own]
        return max(error for error, _ in seen), max(excess for _, excess in seen)

    def _of_scope(self, node: Node) -> tuple[float, float, float]:
        """Return the largest errors of what came back inside of the same call.

        No model that is called behind an update of its weights is a source of gradients of its calls before that.
        """
        if node.parent is not None:
            return *self.so_far[node.parent], self.apart[node.parent]
        path, modules = f"{node.a.path}.", self.judging.step.a.reader.modules
        own = [
            each
            for at, found in self.judging.verdicts.written.items()
            for each in (found if at and (path == "." or f"{modules[at[0]].path}.".startswith(path)) else ())
        ]
        until = min((when for when, *_ in own if when > node.a.end), default=math.inf)
        known = [(0.0, 0.0, 0.0), *(each for end, *each in self.roots if end < until)]
        error, beyond, apart = map(max, zip(*known, strict=True))
        return error, beyond, apart

    def _of_saved(self, node: Node) -> tuple[float, float]:
        return self.saved.get(node.parent if node.parent is not None else node, (0.0, 0.0))

    def _note(self, event: Event, error: Error, sources: float) -> None:
        node = event.node
        assert node is not None
        known = bounded(error.size) if not error.is_bound else max(bounded(error.size), sources)
        excess, apart = self.judging.noise.excess(event, error), 0.0
        excess = known if excess is None else excess
        for each in (node, node.parent):
            so_far, beyond = self.so_far[each]
            self.so_far[each] = max(so_far, known), max(beyond, excess)
        if event.role is Role.GRAD_OUTPUT and event.is_paired and not error.is_bound:
            assert event.a is not None
            apart = error.apart / math.sqrt(max(event.a.size, 1))
        self.apart[node.parent] = max(self.apart[node.parent], apart)
        if node.parent is None:
            self.roots.append((node.a.end, known, excess, apart))

    def _is_multiple(self, event: Event, error: Error, u: float, sources: float) -> bool:
        """Return True if B's gradient is a multiple of A's by more than rounding leaves.

        A factor scales every element. What the loss itself passes back has the norm that its own sources leave.
        """
        if not event.is_paired or error.is_bound or not math.isfinite(error.size):
            return False
        assert event.a is not None and event.node is not None
        is_of_loss = event.role is Role.GRAD_OUTPUT and not self.judging.graph.users(event)
        if event.node.parent is None and is_of_loss and self.judging.is_first and not self.judging.verdicts.written:
            value = self.judging.verdicts.by_event.get(self.judging.graph.value_event(event) or event)
            sources_off = max(value.off if value is not None else 0.0, self._noise_of_loss(event)[2])
            if is_off(event, error, u, sources_off):
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
        if not (forward.a.is_known and forward.b.is_known):  # norms alone were asked for
            return False
        if not (forward.a.learns or forward.b.learns) or (node.parent is None and forward.role is Role.INPUT):
            return False
        lacking, half = (node.b, self.judging.step.b) if event.b is None else (node.a, self.judging.step.a)
        if not (half.wants(Phase.BACKWARD) and self.judging.step.is_lacking(event)):
            return False
        if event.role is Role.GRAD_OUTPUT:
            return not (lacking.of(Role.GRAD_INPUT) or half.has_gradient(lacking.module))
        same_framework = Role.GRAD_INPUT in half.roles and not self.judging.step.is_across_frameworks
        given, made = ({each.hash for each in lacking.of(role).values()} for role in (Role.INPUT, Role.OUTPUT))
        is_leaf = bool(lacking.of(Role.GRAD_OUTPUT)) and not (lacking.inner or (given & made) - {None})  # no identity
        return is_leaf and same_framework and self._learns_before(forward)

    def _learns_before(self, value: Event) -> bool:
        """Return True if something that learns lies before a tensor, so that its gradient is of use."""
        made = self.judging.graph.producer(value) or value
        assert made.a is not None
        if made is not value:
            return made.a.learns or (made.b is not None and made.b.learns)
        return made.b is not None and made.a.learns == made.b.learns


def _is_comparable(judging: Judging, event: Event) -> bool:
    """Return False for gradients of a tensor with two representations, and totals over other uses."""
    if event.role is Role.GRAD_TOTAL and not judging.graph.is_over_same_uses(event):
        return False
    if event.node is not None and any(map(judging.step.is_in_parts, event.node.callers())):
        return False
    made = event.node.outputs if event.role is Role.GRAD_INPUT and event.node is not None else []
    if any(map(judging.step.is_part, made)) or any(each.is_of_other_size for each in made):
        return False  # a part of what comes back gives a part of a sum
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
