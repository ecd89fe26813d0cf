"""The gradients of the parameters, on the scale of the gradients that they were computed from."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

from probe.records import Phase, Role
from probe.verdict.distance.error import Error
from probe.verdict.distance.estimates import look_permuted
from probe.verdict.judge.healing import BEFORE_LOSS, FADES
from probe.verdict.judge.judging import MOST, SEVERAL, Judging, Wrong, bounded
from probe.verdict.judge.loss import loss_agrees, loss_error
from probe.verdict.judge.verdicts import Finding, State, Verdict
from probe.verdict.noise.limits import widened
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
    is_unknown: bool = False
    """a gradient that came back was not compared"""

    def take(self, verdicts: Iterable[Verdict]) -> None:
        """Take in the errors of what a gradient is made of."""
        for each in verdicts:
            self.error, self.excess = max(self.error, each.error), max(self.excess, each.beyond)

    def size(self, event: Event, larger: float) -> float:
        """Return what the error of a gradient is held against: where it has cancelled out, what it is the rest of."""
        assert event.a is not None
        size = max(larger, math.sqrt(self.squares), self.terms if len(event.a.form) > 1 else 0.0)
        if not self.rows:  # the largest of its module is no term of it: what is left is to be rounding
            size = size if larger < (_CANCELLED if event.u <= SIXTEEN_BITS else 2 * event.u) * size else larger
        return size * 2 * math.sqrt(max(self.rows, 1)) if larger < _CANCELLED * size else size


def judge_gradients(judging: Judging, factor: float) -> dict[Place, float]:
    """Judge the gradients of parameters; return their relative errors by place."""
    step, verdicts = judging.step, judging.verdicts
    lowest, scales = judging.lowest_precision(), _scales(judging)
    wrong, shown, found = list[Wrong](), 0, dict[Place, float]()
    events = list(step.parameters.events(Phase.GRADIENT, Role.PARAM_GRAD))
    worst = max((scale.error for scale in scales.values()), default=0.0)
    if not any(scale.squares for scale in scales.values()):  # what came back was not recorded: by the module's largest
        norms = [(e.place[0], e.a.norm) for e in events if e.place and e.a and math.isfinite(e.a.norm)]
        scales = {module: _Scale(norm**2, error=worst, excess=worst) for module, norm in sorted(norms)}
    any_finding, is_over = bool(verdicts.findings), verdicts.is_over
    used = {each.place: step.error(each) for each in step.parameters.events(Phase.UPDATE, Role.PARAM_GRAD)}
    weights = step.parameters.events(Phase.INIT, Role.PARAM)
    frozen = {each.place for each in weights if each.a and each.b and each.a.learns != each.b.learns}
    is_split = not step.batches.are_same or step.batches.of_a or step.batches.of_b
    for event in events:
        assert event.place is not None
        error = step.error(event, factor)
        if error is None:
            is_cause = not any_finding or event.place in frozen
            if step.lacks(event) and any(each.is_paired for each in events) and not is_over and is_cause:
                wrong.append(Wrong(math.inf, event, Error(math.inf), 0.0, "gradient", Check(math.inf, 0.0, True)))
            continue
        scale = scales.get(event.place[0], _Scale(error=worst, excess=worst))
        scale = replace(scale, error=worst, excess=max(worst, scale.excess)) if scale.is_unknown else scale
        u, larger = max(event.u, lowest), max(error.norm_a, error.norm_b)
        size = scale.size(event, larger)
        relative = error.apart / size if size and math.isfinite(error.size) else error.size
        of_other_rows = (WORST * math.sqrt(u) if u > SIXTEEN_BITS else OTHER * u) if is_split else 0.0
        limit = widened(GRADIENT.limit(u, scale.error), subnormal=subnormal_limit(event), other_split=of_other_rows)
        found[event.place] = error.size
        apart = max(NORMS.floor(u), NORMS.gain * scale.error) * size
        how = {"has_direction": not scale.is_unknown and _is_multiple(event, error, apart)}
        how |= {"is_judged": limit < JUDGES_NOTHING, "relative": relative}
        check = judging.check(event, error, limit, GRADIENT, u, scale.excess, **how)
        given = used.get(event.place)
        if check.is_wrong and given is not None and given.size <= min(limit, FADES * error.size):
            verdicts.add(Verdict(event, State.HEALED, bounded(relative), u, check.limit, code="reduced-elsewhere"))
            ratio = abs(step.a.params[Phase.UPDATE, Role.PARAM_GRAD][event.place].norm - error.norm_a)
            verdicts.notes.append("reduced-in-A" if ratio <= limit * size else "reduced-in-B")
            continue
        is_behind = scale.is_wrong or any_finding or check.is_consequence
        is_small = (relative <= GRADIENT.floor(u) or check.is_fixed) and not check.is_wrong
        state = State.EQUAL if step.is_equal(event) and factor == 1 else State.AGREES if is_small else State.INHERITS
        is_found = check.is_wrong and not is_over and (not is_behind or (check.is_far and not check.is_consequence))
        state = State.INTRODUCED if is_found else State.OPEN if check.code else state
        told = {"is_behind": is_behind, "code": check.code, "sources": scale.error, "check": check}
        verdicts.add(Verdict(event, state, bounded(relative), u, check.limit, **told))
        shown += bool(size and larger / size > 4 * limit)
        if is_found:
            wrong.append(Wrong(max(check.share, 1.0), event, error, check.limit, "gradient", check))
    if wrong:
        modules = {each.event.place[0] for each in wrong if each.event.place is not None}
        is_all = len(wrong) >= MOST * max(shown, 1) and len(modules) > 2
        judging.finds_worst(Phase.GRADIENT, wrong, shown, is_all, "all-gradients")
    return found


def drop_unseen(judging: Judging) -> None:
    """Take back findings of the forward pass of which nothing is left in the loss and the parameters' gradients.

    These are the last uses: of rows that a mask hides, experts of other numbers, axes turned outside of a call.
    """
    verdicts, found = judging.verdicts, loss_error(judging.step)
    judged = [each.error for event, each in verdicts.by_event.items() if event.phase is Phase.GRADIENT]
    if not verdicts.findings or not judged or found is None or not loss_agrees(judging):
        return
    left, events = max(found.size, *judged), judging.step.parameters.events(Phase.GRADIENT, Role.PARAM_GRAD)
    is_seen = any(map(judging.step.lacks, events))
    if not is_seen and all(_is_gone(judging, finding, left) for finding in verdicts.findings):
        for event in [each.event for each in verdicts.findings if each.event in verdicts.by_event]:
            verdicts.add(replace(verdicts.by_event[event], state=State.HEALED, code="moved-border"))
        verdicts.findings.clear()


def _is_gone(judging: Judging, finding: Finding, left: float) -> bool:
    error = finding.error
    if finding.phase is Phase.BACKWARD and finding.event is not None and not finding.event.is_paired:
        return left <= _GONE  # one side did not record it: views that are changed in place
    is_wanted = finding.check is not None and finding.check.is_fixed
    if finding.phase is not Phase.FORWARD or error is None or is_wanted or _is_of_one_layer(judging, finding):
        return False
    return error.size > BEFORE_LOSS and left <= _GONE * error.size and not _is_other_batch(finding.event)


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
    is_logged = event.role is Role.VALUE and event.node is not None and event not in event.node.values
    return is_logged or (is_given and event.a.form == event.b.form and look_permuted(event.a, event.b))


def _is_multiple(event: Event, error: Error, apart: float) -> bool:
    """Return True if B's gradient is a multiple of A's whose norm is off by more than its terms explain."""
    assert event.a is not None
    is_along = event.a.size >= SEVERAL and abs(error.along) >= ALONG_BACKWARD and not error.is_bound
    return is_along and math.isfinite(error.size) and abs(error.norm_a - error.norm_b) > apart


def _scales(judging: Judging) -> dict[int, _Scale]:
    """Return, by module of A, what its parameter gradients are sums of; those of tied parameters together."""
    step, verdicts = judging.step, judging.verdicts
    found: dict[int, _Scale] = defaultdict(_Scale)
    back = [each for event, each in verdicts.by_event.items() if event.phase is Phase.BACKWARD]
    for node in step.nodes:
        scale, own = found[node.a.module], verdicts.of_node(node)
        came = [each for each in step.tensors(node, "A", Role.GRAD_OUTPUT).values() if each.size]
        inputs = node.a.of(Role.INPUT).values()
        given = next((each.norm for each in inputs if each.kind == "float" and len(each.shape) > 1), 0.0)
        for each in came:
            rows = each.size // (each.shape[-1] if each.shape else 1)
            scale.rows += rows
            scale.squares += each.norm**2 if math.isfinite(each.norm) else 0.0
            scale.terms = math.hypot(scale.terms, each.norm * given / math.sqrt(rows))
        scale.is_unknown |= bool(came) and all(each.event.phase is not Phase.BACKWARD for each in own)
        if came or node.parent is None:
            scale.take(own)
            scale.is_wrong |= any(each.is_behind or each.state is State.INTRODUCED for each in own)
        if any(map(step.is_part, node.outputs)):  # what came back to it is not known
            scale.take(back)
        for inner in node.inner:
            scale.take(each for each in verdicts.of_node(inner) if each.event.phase is Phase.BACKWARD)
    modules = step.a.reader.modules
    for module in {place[0] for place in step.a.places}:  # weights that other code uses: what came back to that
        around = module
        while around >= 0 and not (found[around].rows or found[around].squares):
            around = modules[around].parent
        if around not in (-1, module):
            mine, other = found[module], found[around]
            mine.squares, mine.rows, mine.is_unknown = other.squares, other.rows, True
            mine.is_wrong |= other.is_wrong
    for owners in step.parameters.owners():
        together = [found[each] for each in owners]
        squares = sum(each.squares for each in together)
        error, excess = (max(column) for column in zip(*((e.error, e.excess) for e in together), strict=True))
        for each in together:
            each.squares, each.error, each.excess = squares, error, excess
    return dict(found)
