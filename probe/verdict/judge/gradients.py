"""The gradients of the parameters, on the scale of the gradients that they were computed from."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace

from probe.records import Phase, Role
from probe.verdict.distance.error import Error
from probe.verdict.distance.estimates import look_permuted
from probe.verdict.judge.healing import BEFORE_LOSS
from probe.verdict.judge.judging import MOST, SEVERAL, Judging, bounded, common_factor
from probe.verdict.judge.loss import loss_agrees, loss_error
from probe.verdict.judge.verdicts import Finding, State, Verdict
from probe.verdict.noise.model import ALONG_BACKWARD, GRADIENT, JUDGES_NOTHING, NORMS, OTHER, SIXTEEN_BITS, WORST
from probe.verdict.noise.rung import Check
from probe.verdict.noise.terms import subnormal_limit
from probe.verdict.side import Place
from probe.verdict.steps.events import Event

_CANCELLED = 0.1
"""share of what came back below which a sum over rows has cancelled out: the errors of rows may have one direction"""
_GONE = 0.02
"""what loss and gradients keep of a difference that they took back is at most this share of it"""


@dataclass
class _Scale:
    """What a module's parameter gradients are sums of."""

    squares: float = 0.0
    """of the norms of the gradients that came back to the module"""
    rows: int = 0
    terms: float = 0.0
    """norm of the products that a weight's gradient sums up"""
    error: float = 0.0
    excess: float = 0.0
    is_wrong: bool = False

    @property
    def came(self) -> float:
        """Norm of all that came back."""
        return math.sqrt(self.squares)


@dataclass(frozen=True)
class _Wrong:
    excess: float
    event: Event
    error: Error
    check: Check


def judge_gradients(judging: Judging, factor: float) -> dict[Place, float]:
    """Judge the gradients of parameters; return their relative errors by place."""
    step, verdicts = judging.step, judging.verdicts
    lowest, scales = judging.lowest_precision(), _scales(judging)
    wrong: list[_Wrong] = []
    shown, found = 0, {}
    events = list(step.parameters.events(Phase.GRADIENT, Role.PARAM_GRAD))
    worst = max((scale.error for scale in scales.values()), default=0.0)
    any_finding = bool(verdicts.findings)
    for event in events:
        assert event.place is not None
        error = step.error(event, factor)
        if error is None:
            if _is_without(judging, event) and any(each.is_paired for each in events):
                wrong.append(_Wrong(math.inf, event, Error(math.inf), Check(math.inf, 0.0, True)))
            continue
        assert event.a is not None and event.b is not None
        scale = scales.get(event.place[0], _Scale(error=worst, excess=worst))
        u, larger = max(event.u, lowest), max(error.norm_a, error.norm_b)
        size = max(larger, scale.came, scale.terms if len(event.a.form) > 1 else 0.0)
        if larger < _CANCELLED * size:
            size *= 2 * math.sqrt(max(scale.rows, 1))
        relative = error.apart / size if size and math.isfinite(error.size) else error.size
        limit = max(GRADIENT.limit(u, scale.error), subnormal_limit(event))
        if not step.batches.are_same or step.batches.of_a or step.batches.of_b:
            limit = max(limit, WORST * math.sqrt(u) if u > SIXTEEN_BITS else OTHER * u)
        found[event.place] = error.size
        is_multiple = larger >= size / 2 and _is_multiple(event, error, u, scale.error)
        check = judging.check(
            event,
            error,
            limit,
            GRADIENT,
            u,
            scale.excess,
            has_direction=is_multiple,
            is_judged=limit < JUDGES_NOTHING,
            relative=relative,
        )
        is_behind = scale.is_wrong or any_finding or check.is_consequence
        is_small = (relative <= GRADIENT.floor(u) or check.is_fixed) and not check.is_wrong
        state = State.AGREES if is_small else State.INHERITS
        state = State.EQUAL if step.is_equal(event) and factor == 1 else state
        state = State.INTRODUCED if check.is_wrong and not is_behind else State.OPEN if check.code else state
        verdict = Verdict(event, state, bounded(relative), u, check.limit, is_behind=is_behind, check=check)
        verdicts.add(replace(verdict, code=check.code))
        shown += bool(size and larger / size > 4 * limit)
        if check.is_wrong and not is_behind:
            wrong.append(_Wrong(max(check.share, 1.0), event, error, check))
    if wrong and not any_finding:
        _find(judging, wrong, shown)
    return found


def drop_unseen(judging: Judging) -> None:
    """Take back findings of the forward pass of which nothing is left in the loss and the parameters' gradients.

    These are the last uses: of rows that a mask hides, experts of other numbers, axes turned outside of a call.
    """
    verdicts = judging.verdicts
    found = loss_error(judging.step)
    judged = [each.error for event, each in verdicts.by_event.items() if event.phase is Phase.GRADIENT]
    if not verdicts.findings or not judged or found is None or not loss_agrees(judging):
        return
    left = max(found.size, *judged)
    if any(_is_without(judging, event) for event in judging.step.parameters.events(Phase.GRADIENT, Role.PARAM_GRAD)):
        return
    if all(_is_gone(judging, finding, left) for finding in verdicts.findings):
        verdicts.findings.clear()
        verdicts.notes.append("unseen")


def _is_gone(judging: Judging, finding: Finding, left: float) -> bool:
    error = finding.error
    if finding.phase is Phase.BACKWARD and finding.event is not None and not finding.event.is_paired:
        return left <= _GONE  # one side did not record it: views that are changed in place
    if finding.phase is not Phase.FORWARD or error is None or _is_of_one_layer(judging, finding):
        return False
    if _is_other_batch(finding.event):
        return False
    return error.size > BEFORE_LOSS and left <= _GONE * error.size


def _is_of_one_layer(judging: Judging, finding: Finding) -> bool:
    """Return True for a layer of one class on both sides: from equal rows it makes equal rows, seen or not.

    Integers may be names, which another side gives otherwise.
    """
    node = finding.event.node if finding.event is not None else None
    if node is None or any(each.a is not None and each.a.kind == "integer" for each in node.outputs):
        return False
    if finding.code != "module" or node.inner or judging.step.is_other_code(node.a.module):
        return False
    return bool(judging.step.a.weights_of(node.a.module))


def _is_other_batch(event: Event | None) -> bool:
    """Return True for what was logged of the batch, and the model's inputs in another order: no loss shows one."""
    if event is None or event.a is None or event.b is None:
        return False
    is_given = event.role is Role.INPUT and event.node is not None and event.node.parent is None
    return event.role is Role.VALUE or (is_given and event.a.form == event.b.form and look_permuted(event.a, event.b))


def _find(judging: Judging, wrong: list[_Wrong], shown: int) -> None:
    """Name the worst, or all gradients together."""
    worst = max(wrong, key=lambda each: each.excess)
    modules = {each.event.place[0] for each in wrong if each.event.place is not None}
    is_all = len(wrong) >= MOST * max(shown, 1) and len(modules) > 2
    assert worst.event.place is not None
    path, code = ("", "all-gradients") if is_all else (judging.step.path(worst.event.place[0]), "gradient")
    limit, facts = worst.check.limit, (len(wrong), max(shown, len(wrong)), common_factor([w.error for w in wrong]))
    judging.finds(Phase.GRADIENT, (path,), worst.event, limit, code, error=worst.error, facts=facts, check=worst.check)


def _is_without(judging: Judging, event: Event) -> bool:
    """Return True if one side alone has a gradient that is not zero: none and a zero one are the same."""
    one = event.a if event.a is not None else event.b
    return not event.is_paired and judging.step.parameters.both_have(event) and one is not None and one.norm > 0


def _is_multiple(event: Event, error: Error, u: float, sources: float) -> bool:
    assert event.a is not None
    is_along = event.a.size >= SEVERAL and abs(error.along) >= ALONG_BACKWARD and not error.is_bound
    return is_along and math.isfinite(error.size) and error.off > max(NORMS.floor(u), NORMS.gain * sources)


def _scales(judging: Judging) -> dict[int, _Scale]:
    """Return, by module of A, what its parameter gradients are sums of; those of tied parameters together."""
    step = judging.step
    found: dict[int, _Scale] = defaultdict(_Scale)
    for node in step.nodes:
        scale = found[node.a.module]
        came = list(step.tensors(node, "A", Role.GRAD_OUTPUT).values())
        scale.rows += sum(each.size // (each.shape[-1] if each.shape else 1) for each in came if each.size)
        scale.squares += sum(each.norm**2 for each in came if math.isfinite(each.norm))
        inputs = node.a.of(Role.INPUT).values()
        given = next((each for each in inputs if each.kind == "float" and len(each.shape) > 1), None)
        for each in came if given is not None else ():
            assert given is not None
            count = max(each.size // max(each.shape[-1:] or (1,)), 1)
            scale.terms = math.hypot(scale.terms, each.norm * given.norm / math.sqrt(count))
        if came or node.parent is None:
            for verdict in judging.verdicts.of_node(node):
                scale.error, scale.excess = max(scale.error, verdict.error), max(scale.excess, verdict.beyond)
                scale.is_wrong |= verdict.is_behind or verdict.state is State.INTRODUCED
        for verdict in (each for inner in node.inner for each in judging.verdicts.of_node(inner)):
            if verdict.event.phase is Phase.BACKWARD:
                scale.error, scale.excess = max(scale.error, verdict.error), max(scale.excess, verdict.beyond)
    modules = step.a.reader.modules
    for module in {place[0] for place in step.a.places}:  # weights that other code uses: what came back to that
        around = module
        while around >= 0 and not (found[around].rows or found[around].squares):
            around = modules[around].parent
        if around not in (-1, module):
            own, other = found[module], found[around]
            own.squares, own.rows, own.error = other.squares, other.rows, max(own.error, other.error)
            own.excess = max(own.excess, other.excess)
            own.is_wrong |= other.is_wrong
    for owners in step.parameters.owners():
        together = [found[each] for each in owners]
        squares, error = sum(each.squares for each in together), max(each.error for each in together)
        excess = max(each.excess for each in together)
        for each in together:
            each.squares, each.error, each.excess = squares, error, excess
    return dict(found)
