"""Who answers for a gradient that is wrong though what it was made from is right: the rows of the table, in their order."""

from __future__ import annotations

import math

from probe.comparison.blame import causes
from probe.comparison.blame.case import Case, Row
from probe.comparison.blame.gaps import cut_in, gap_behind
from probe.comparison.ledger.places import path_a, refs_of
from probe.comparison.ledger.recording import add, append, kind_of_finding, scale_hint
from probe.comparison.noise import tolerance
from probe.comparison.notes import Note, note
from probe.comparison.result import Divergence, Kind
from probe.comparison.steps.step_half import Node
from probe.comparison.walk.inputs import lone_caller
from probe.comparison.walk.loss import last_outputs_known
from probe.records import Phase, Role


def own_backward(case: Case) -> bool:
    """Blame the backward pass of the module that passes it back."""
    walk, node, event = case.walk, case.node, case.event
    if event.role is not Role.GRAD_INPUT:
        return False
    facts = (
        note("gradient-of-output-agrees") if node.pair in walk.backward.arrived else note("gradient-of-output-not-compared"),
        note("passed-back-differs", slot=event.slot_a), *_born(case),
    )  # fmt: skip
    advice = _scale(case) or note("backward-of-module")
    add(walk, Phase.BACKWARD, _kind(case), event, node.pair, tolerance.BACKWARD, facts, node=node, advice=advice)
    return True


def lone_caller_behind(case: Case) -> bool:
    """Blame nobody: behind what the model returned runs a module whose calls one side alone has."""
    if _place(case) is not None:
        return False
    caller = lone_caller(case.walk.pairs, case.node)
    if caller:
        case.walk.ledger.reasons.append(note("gradient-of-a-lone-caller", caller=caller, **_gradient(case)))
    return bool(caller)


def unknown_outputs(case: Case) -> bool:
    """Blame nobody: what the model returned was not compared."""
    is_unknown = _place(case) is None and not last_outputs_known(case.walk, [case.node])
    if is_unknown:
        case.walk.ledger.reasons.append(note("gradient-without-outputs", **_gradient(case)))
    return is_unknown


def loss_behind(case: Case) -> bool:
    """Blame the loss function, or the scale of the loss."""
    walk, node, event = case.walk, case.node, case.event
    if _place(case) is not None:
        return False
    facts = (note("outputs-agree"), note("gradient-of-outputs-differs"), *_born(case))
    is_of_one = _others_agree(case) and walk.forward.loss_agrees
    if is_of_one:
        facts += (note("loss-and-other-outputs-agree"),)
    advice = _scale(case) or note("loss-function-and-scale", slot=event.slot_a if is_of_one else "")
    add(walk, Phase.LOSS, _kind(case), event, node.pair, tolerance.BACKWARD, facts, node=node, advice=advice)
    return True


def cut_graph(case: Case) -> bool:
    """Blame the code that cuts the graph behind a call which gets no gradient on one side: the missing one is what is wrong first."""
    walk, place = case.walk, _place(case)
    assert place is not None
    cut = None if walk.backward.flow.swallowing_side(place) else cut_in(walk.pairs, place)
    if cut is None:
        return False
    facts = (note("gets-no-gradient", path=cut.name, side=cut.side), note("lies", place=cut.place))
    append(walk, Divergence(
        Phase.BACKWARD, Role.GRAD_OUTPUT, Kind.MISSING, 0.95, *refs_of(walk, cut.around.pair, cut.around, "", ""), None, math.nan, facts,
        note("cuts-graph-at", side=cut.side, place=cut.place),
    ))  # fmt: skip
    return True


def nothing_behind(case: Case) -> bool:
    """Blame nobody: no gradient behind the code in question was compared, and neither was what the model returned."""
    walk, place = case.walk, _place(case)
    assert place is not None
    is_unknown = place.pair not in walk.backward.arrived and not last_outputs_known(walk, [place])
    if is_unknown:
        walk.ledger.reasons.append(note("gradient-with-nothing-behind", what=_what(case), **_gradient(case)))
    return is_unknown


def code_behind(case: Case) -> bool:
    """Blame the own code of the module inside which the tensor is used."""
    walk, node, event, place = case.walk, case.node, case.event, _place(case)
    assert place is not None
    side = walk.backward.flow.swallowing_side(place)
    gap = gap_behind(walk.pairs, node, place) if event.role is Role.GRAD_OUTPUT else None
    facts = (
        note("gradient-differs", path=path_a(walk, node.pair), role=_what(case), slot=event.slot_a),
        note("passed-back-before-agrees"),
        *((note("lies", place=gap),) if gap else ()),
        *_born(case),
    )
    if side:
        facts += (note("passes-nothing-back", path=path_a(walk, place.pair), side=side),)
    advice = note("detached-in-module") if side else _scale(case) or note("backward-of-own-code")
    add(walk, Phase.BACKWARD, _kind(case), event, place.pair, tolerance.BACKWARD, facts, node=place, advice=advice)
    return True


GRADIENT = (
    Row("own-backward", "The backward pass of the module that passes it back.", own_backward),
    Row("lone-caller", "Nobody: behind it a module is called on one side only.", lone_caller_behind),
    Row("unknown-outputs", "Nobody: what the model returned was not compared.", unknown_outputs),
    Row("loss-behind", "The loss function, or the scale of the loss: no module used what the model returned.", loss_behind),
    Row("cut-graph", "The code that cuts the graph on one side, behind a call that gets no gradient there.", cut_graph),
    Row("nothing-behind", "Nobody: no gradient behind the code in question was compared, and neither was what the model returned.", nothing_behind),
    Row("code-behind", "The own code of the deepest module that alone used the tensor.", code_behind),
)  # fmt: skip
"""for a gradient of the backward pass"""


def _place(case: Case) -> Node | None:
    """Return the call whose code lies between who used a tensor and its gradient; None where only the loss used it."""
    walk, node, event = case.walk, case.node, case.event
    is_compensated = event.role is Role.GRAD_OUTPUT and (node, event.slot_a) in walk.exempted.moved_factors
    return node.parent if is_compensated else _handed_on_by(case) or walk.backward.flow.culprit(node, event)


def _handed_on_by(case: Case) -> Node | None:
    """Return the call whose code lies between a tensor with a wrong gradient and who was given it with a right one, in total.

    Then they are two tensors of the same numbers: what the code makes of the first passes something else back.
    """
    walk, node, event = case.walk, case.node, case.event
    use = walk.backward.flow.use_of(node, event)
    if use is None or event.role is not Role.GRAD_OUTPUT:
        return None
    right = {
        (judged.event.micro, judged.event.pair, judged.event.call, judged.event.slot_a) for judged in walk.ledger.events
        if judged.event.role is Role.GRAD_TOTAL and judged.verdict in ("equal", "noise")
    }  # fmt: skip
    given = [user for user, slot in use.consumers if (user.micro, user.pair, user.call, slot) in right]
    return next((user.parent for user in given if user not in node.ancestors()), None)


def _others_agree(case: Case) -> bool:
    """Tell whether a call has other outputs, to which the same gradient comes back on both sides."""
    node, event = case.node, case.event
    found = [
        judged.verdict for judged in case.walk.ledger.events
        if judged.event is not event and judged.event.role is Role.GRAD_OUTPUT and judged.event.pair == node.pair
        and (judged.event.micro, judged.event.call) == (event.micro, event.call)
    ]  # fmt: skip
    return bool(found) and all(verdict in ("equal", "noise") for verdict in found)


def _gradient(case: Case) -> dict[str, object]:
    """Return the facts of a gradient that differs."""
    walk, metrics = case.walk, case.event.metrics
    error = math.nan if metrics is None else metrics.rel_l2
    return {"step": walk.pairs.step, "path": path_a(walk, case.node.pair), "slot": case.event.slot_a, "error": error}


def _what(case: Case) -> str:
    return "output" if case.event.role is Role.GRAD_OUTPUT else "input"


def _kind(case: Case) -> Kind:
    assert case.event.metrics is not None
    return kind_of_finding(case.event.metrics)


def _scale(case: Case) -> Note | None:
    return scale_hint(case.event.metrics, "scale-of-passed-back")


def _born(case: Case) -> tuple[Note, ...]:
    birth = causes.born(case.walk.pairs, case.node, case.event)
    return (birth,) if birth else ()
