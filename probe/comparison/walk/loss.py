"""Judging the loss: its number, and the gradient that it sends back to what it was computed from."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

from probe.comparison.blame.values import lacking_inputs, loss_hint, returns_loss, unseen_before_loss
from probe.comparison.distance.metrics import Metrics, Status
from probe.comparison.exemptions.label_inputs import Aside, is_behind_the_loss, is_from_elsewhere, shifted
from probe.comparison.ledger.known import Walk
from probe.comparison.ledger.places import refs_of, root_refs
from probe.comparison.ledger.recording import append
from probe.comparison.noise import tolerance
from probe.comparison.noise.tolerance import Level, Rule
from probe.comparison.notes import Note, note
from probe.comparison.once import once
from probe.comparison.result import Divergence, Kind, cause_order
from probe.comparison.steps.step_half import Event, Node
from probe.comparison.walk.forward import blame_first_other_size, resolve_other_sizes
from probe.comparison.walk.values import blame_padded
from probe.numbers.statistics import unit_roundoff
from probe.records import Phase, Role
from probe.structure.tree import Tree

_LIKE_ENTROPY = 0.1
"""share of a loss that its gradient must at least be to be that of a cross entropy"""
_MOST_OF_LOSS = 0.1
"""share of the largest gradient of an output that those of other outputs are at least"""
_OF_ALIGNMENTS = 4
"""roundoffs of a sum of alignments' logarithms, of its own size (measured: 1.2 to 2.4)"""


def judge_loss(walk: Walk, a: dict[str, float], b: dict[str, float]) -> None:
    """Judge the loss that was given to ``probe.step``, and with it what nothing before it has told about."""
    _judge_loss(walk, a, b)
    resolve_other_sizes(walk)


def _judge_loss(walk: Walk, a: dict[str, float], b: dict[str, float]) -> None:
    if "loss" not in a or "loss" not in b:
        return
    x, y = a["loss"], b["loss"]
    outputs = walk.forward.errors.get(None, Level())
    nodes = [node for node in walk.pairs.nodes.values() if node.parent is None]
    for node in nodes:
        outputs.merge(walk.forward.errors.get(node, Level()))
    if outputs.tainted:
        return
    precisions = [tolerance.precision_of(each) for each in (x, y)]
    u = min(precisions)  # where one side alone is coarser, that side has rounded it
    inherited = max((_loss_error(walk, node, outputs.error, u) for node in nodes), default=0.0)
    check = walk.noise.loss(x, y, max(tolerance.SCALAR_LOSS.limit(u, outputs.error), inherited, outputs.u))
    walk.forward.loss_agrees = not check.is_wrong
    if not check.is_wrong or not nodes or any(f.phase is Phase.LOSS for f in walk.ledger.findings):
        return
    if walk.exempted.other_sizes.open and not all(map(partial(_all_outputs_known, walk), nodes)):
        blame_first_other_size(walk)
        return
    if not last_outputs_known(walk, nodes) and walk.ledger.findings:
        return
    if not last_outputs_known(walk, nodes):
        if not walk.state.loss_was_doubted:
            walk.ledger.reasons.append(note("loss-without-outputs", step=walk.pairs.step, a=x, b=y))
        walk.state.loss_was_doubted = True
        return
    if blame_padded(walk):
        return
    metrics = Metrics(Status.COMPARED, check.error, norm_a=abs(x), norm_b=abs(y), max_abs=abs(x - y))
    models = [node for node in nodes if is_model(walk, node)]
    facts = (
        note("losses-differ", a=x, b=y),
        note("sources-of-loss-agree", of_model=bool(models), error=outputs.error),
        *([note("padded-outputs-compared-in-part")] if _are_padded_outputs(walk) else []),
        *unseen_before_loss(walk, nodes[-1]),
    )
    hint = loss_hint(walk, nodes[-1])
    if max(precisions) > max(u, outputs.u):
        facts += (note("loss-of-few-digits", side="AB"[precisions.index(max(precisions))]),)
        hint = note("dtype-of-loss")
    refs = refs_of(walk, models[0].pair, models[0], "loss", "loss") if models else root_refs(walk)
    append(walk, Divergence(
        Phase.LOSS, Role.VALUE, Kind.INTRODUCED if math.isfinite(check.error) else Kind.NONFINITE, 0.95,
        *refs, metrics, check.limit, facts,
        hint, is_independent=outputs.error <= tolerance.LOSS.limit(outputs.u, 0.0), measure=check.measure,
    ))  # fmt: skip


def _are_padded_outputs(walk: Walk) -> bool:
    """Tell whether outputs with a padded vocabulary were compared in part."""
    return any(
        j.event.role is Role.OUTPUT and j.event.metrics is not None and j.event.metrics.is_lower_bound
        and walk.pairs.is_padded(j.event) for j in walk.ledger.events
    )  # fmt: skip


def judge_inputs(walk: Walk) -> None:
    """Judge the integers that the model was given otherwise and handed to no module, by all that was found in the step.

    They are named first, and the rest is a consequence, unless something tells that it is none.
    """
    before = [finding for finding in walk.ledger.findings if finding.phase is Phase.INIT]
    others = sorted((f for f in walk.ledger.findings if f.phase is not Phase.INIT), key=cause_order)
    matter = []
    for aside in walk.exempted.label_inputs:
        move = shifted(walk.pairs, aside.event)
        why = _why_it_does_not_matter(walk, aside, others[0] if others else None, move, bool(before))
        if why is not None:
            judged = walk.ledger.judged[id(aside.event)]
            judged.exempt("label-inputs")
            walk.ledger.notes.append(note("input-differs-without-effect", input=aside.name, move=move, why=why))
            if why == _SHIFTED_LABELS and move is not None:
                _tell_of_shift(walk, others[0], aside, move)
        else:
            is_unknown = aside.is_of_the_loss and not walk.pairs.a.has_values(aside.event.row_a)
            told = move or (note("shift-not-known") if is_unknown else None)
            matter.append(replace(aside.finding, facts=(*aside.finding.facts, *([told] if told else ()))))
    if matter:
        walk.ledger.findings = [*before, *matter]
        for judged in walk.ledger.events:
            late = judged.event.phase is not Phase.INIT and all(judged.event is not f.event for f in matter)
            judged.verdict = "inherited" if late and judged.verdict == "introduced" else judged.verdict


def _why_it_does_not_matter(
    walk: Walk, aside: Aside, first: Divergence | None, move: Note | None, is_late: bool
) -> Note | None:
    """Return why an input that differs is not behind what was found first, if anything was; None where it may be.

    Parameters
    ----------
    move
        how the input is the other side's at other positions
    is_late
        whether weights differ already, so that the loss tells nothing
    """
    if first is not None and first.phase is Phase.FORWARD:
        is_other = aside.is_of_the_loss and _is_of_another_input(walk, first)
        return _NOT_USED if is_other or is_from_elsewhere(walk.pairs, aside, first) else None
    if first is not None and not is_behind_the_loss(first):
        of_labels = aside.is_of_the_loss and (move or walk.backward.scaling is not None)
        if of_labels and move and walk.backward.scaling is None:
            return _SHIFTED_LABELS
        return _SAME_LABELS if of_labels else None
    compared = any(
        j.event.phase in (Phase.BACKWARD, Phase.GRADIENT) and j.verdict in ("equal", "noise")
        for j in walk.ledger.events
    )
    return _AGREES if compared and not is_late and _loss_is_equal(walk) else None


def _tell_of_shift(walk: Walk, first: Divergence, aside: Aside, move: Note) -> None:
    """Say at a wrong loss, or the gradient that it sends back, how the labels that it is made of are shifted."""
    advice = note("or-shift-of-labels", first=first.advice, name=aside.name, shift=move)
    told = replace(first, facts=(*first.facts, note("shift-of-input", name=aside.name, shift=move)), advice=advice)
    walk.ledger.findings = [told if finding is first else finding for finding in walk.ledger.findings]


def _is_of_another_input(walk: Walk, first: Divergence) -> bool:
    """Tell whether numbers that no labels are made into are charged to an input that one side's model alone is given."""
    if first.kind is not Kind.INPUTS or first.metrics is None or first.metrics.of_integers:
        return False
    return any(ref.slot == slot for ref in first.a for slot, _ in lacking_inputs(walk))


def _loss_is_equal(walk: Walk) -> bool:
    returned = [j for j in walk.ledger.events if j.event.phase is Phase.FORWARD and j.event.metrics is not None
                and j.event.role is Role.OUTPUT and returns_loss(walk, j.event)]  # fmt: skip
    return walk.forward.loss_agrees or any(j.verdict in ("equal", "noise") for j in returned)


def rule_of_loss(walk: Walk, node: Node, event: Event) -> Rule:
    """Return the thresholds for the gradient that the loss passes back to what the model returned.

    The derivative of a loss is smooth: that of cross entropy moves by twice the (absolute) error of the logits at most,
    relative to itself, and that of a squared error by ‖z‖/‖z−t‖ of the relative one.
    """
    module = walk.pairs.matching.pairs[node.pair].a
    rows = walk.pairs.rows_a.get((node.micro, module, node.call), Role.OUTPUT).get(event.slot_a)
    if not rows or not walk.pairs.a.columns["norm"][event.row_a]:
        return tolerance.BACKWARD
    share, left = _shares_left(walk, rows[0], event.row_a)
    rounding = _rounding_left(walk, rows[0], event.row_a)
    return tolerance.loss_gradient_rule(walk.pairs.a.columns["rms"][rows[0]], share, left, rounding)


def rounding_of_alignments(walk: Walk, node: Node, event: Event) -> float:
    """Return the relative error that rounding alone makes of the gradient of a CTC loss; 0.0 where neither side has one.

    Its terms are exponentials of sums over all alignments, kept as logarithms in float32: an exponent as large as the loss of a
    sequence is off by that many roundoffs. How large that is follows from the loss and its gradient, whatever both are divided by:
    rows of the gradient of a sum have norms of about 1. The batch is taken for the shortest axis.
    """
    if not _aligns(walk):
        return 0.0
    module = walk.pairs.matching.pairs[node.pair].a
    rows = walk.pairs.rows_a.get((node.micro, module, node.call), Role.OUTPUT).get(event.slot_a)
    sizes, norm = walk.pairs.a.shapes[rows[0]][:-1] if rows else (), walk.pairs.a.columns["norm"][event.row_a]
    if not sizes or not norm or not min(sizes):
        return 0.0
    exponent = abs(_loss_of_a(walk)) * math.sqrt(math.prod(sizes)) / (norm * min(sizes))
    return _OF_ALIGNMENTS * unit_roundoff("float32") * exponent


@once
def _aligns(walk: Walk) -> bool:
    """Whether a run's loss sums over alignments: as its framework told, or by what the model is called."""
    readers = [half.side.reader for half in walk.pairs.halves]
    named = [name for reader in readers for name in reader.listed("loss_functions")]
    named += [module.class_name for reader in readers for module in reader.modules[:1]]
    return any("ctc" in name.casefold() for name in named)


def is_most_of_loss(walk: Walk, node: Node, event: Event) -> bool:
    """Tell whether no other output gets a far larger gradient: those of auxiliary losses are sums of few terms."""
    norm, module = walk.pairs.a.columns["norm"], walk.pairs.matching.pairs[node.pair].a
    rows = walk.pairs.rows_a.get((node.micro, module, node.call), Role.GRAD_OUTPUT).values()
    return norm[event.row_a] >= _MOST_OF_LOSS * max(norm[row] for row, *_ in rows)


def _loss_error(walk: Walk, node: Node, error: float, u: float) -> float:
    """Return what relative error of a loss is noise where little of what it is computed from is left: z−t of z.

    A mean of squares moves by 2⟨z−t, Δz⟩ + ‖Δz‖², relative to ‖z−t‖². Of independent errors the former is 1/√n of its
    bound. Cross entropy is a difference of numbers of the size of z in each row. Four standard deviations of both.
    Any loss moves by ⟨g, Δz⟩: that is much where logits are large, as behind a low temperature, and there are few rows.
    """
    key = node.micro, walk.pairs.matching.pairs[node.pair].a, node.call
    gradients, found = walk.pairs.rows_a.get(key, Role.GRAD_OUTPUT), [0.0]
    for slot, rows in walk.pairs.rows_a.get(key, Role.OUTPUT).items():
        shape, rms = walk.pairs.a.shapes[rows[0]], walk.pairs.a.columns["rms"][rows[0]]
        if slot in gradients and math.prod(shape) and _loss_of_a(walk):
            found.append(4 * error * _logits_moved_by(walk, rows[0], gradients[slot][0]) / _loss_of_a(walk))
            left = _shares_left(walk, rows[0], gradients[slot][0])[1] * error
            found.append(8 * left / math.sqrt(math.prod(shape)) + 2 * left**2)
            found.append(4 * u * rms / math.sqrt(math.prod(shape[:-1])) / _loss_of_a(walk))
    return max(found)


def _logits_moved_by(walk: Walk, row: int, gradient: int) -> float:
    """Return how far a mean cross entropy moves where each of its logits z moves by itself, as far as it is large.

    That is ‖g·z‖, at most ‖g‖·max|z|. The gradient of r rows is no longer than √(2/r), whatever a loss scale makes of it.
    """
    columns, shape = walk.pairs.a.columns, walk.pairs.a.shapes[row]
    longest = math.sqrt(2 / math.prod(shape[:-1]))
    return min(columns["norm"][gradient], longest) * max(-columns["min"][row], columns["max"][row])


def _shares_left(walk: Walk, row: int, gradient: int) -> tuple[float, float]:
    """Return ‖z‖/‖z−t‖ of what A's model returned, were the loss a mean of squared errors, and where it is one (else less).

    Of such a mean, 2‖z‖/(n‖g‖) and ‖g‖‖z‖/2L both are that; of another loss, or a small part of one, one of them is less.
    """
    norm, size = walk.pairs.a.columns["norm"], math.prod(walk.pairs.a.shapes[row])
    if not size or not norm[gradient]:
        return 0.0, 0.0
    share = 2 * norm[row] / (size * norm[gradient])
    left = norm[gradient] * norm[row] / (2 * _loss_of_a(walk)) if _loss_of_a(walk) else 0.0
    return share, min(share, left)


def _rounding_left(walk: Walk, row: int, gradient: int) -> float:
    """Return how many times the roundoff the gradient of a mean cross entropy may be off: it is p−1 where p is nearly 1.

    Then its norm over r rows is about L/√r; that of a small part of a loss is less, and is no such gradient.
    """
    shape, loss = walk.pairs.a.shapes[row], _loss_of_a(walk)
    rest = math.sqrt(math.prod(shape[:-1])) * walk.pairs.a.columns["norm"][gradient]
    return max(1.0, 1 / rest) if loss and rest > _LIKE_ENTROPY * min(1.0, loss) else 1.0


@once
def _loss_of_a(walk: Walk) -> float:
    """The size of A's loss; 0.0 where it was not given to ``probe.step``, or is no number."""
    loss = abs(walk.pairs.a.reader.scalars_of(walk.pairs.step).get("loss", 0.0))
    return loss if math.isfinite(loss) else 0.0


def last_outputs_known(walk: Walk, nodes: list[Node]) -> bool:
    """Tell whether the outputs of models among some calls were compared, or those of the module that ran last.

    Where the program calls the parts of a model itself, the last of these calls stands for it.
    """
    micro = max((node.micro for node in nodes), default=0)
    ran = [node for node in walk.pairs.nodes.values() if node.micro == micro]
    models = [node for node in nodes if is_model(walk, node)]
    inner = [node for node in ran if node.parent is not None or not models]
    last = {(node.pair, node.call) for node in (*models, *sorted(inner, key=lambda node: node.end)[-1:])}
    return any(
        event.role is Role.OUTPUT and event.micro == micro and (event.pair, event.call) in last
        and event.metrics is not None and event.metrics.is_known
        for event in (judged.event for judged in walk.ledger.events)
    )  # fmt: skip


def _all_outputs_known(walk: Walk, node: Node) -> bool:
    """Tell whether a call's outputs were compared: one at least, and all that may have a counterpart by their shapes."""
    place = (node.micro, node.pair, node.call)
    compared = [
        event for event in (judged.event for judged in walk.ledger.events)
        if event.role is Role.OUTPUT and (event.micro, event.pair, event.call) == place
        and event.metrics is not None and event.metrics.is_known
    ]  # fmt: skip
    left = []
    for half in walk.pairs.halves:
        slots = {half.slot(event) for event in compared}
        rows = half.rows.get(half.key(node), Role.OUTPUT)
        left.append({half.side.shapes[found[0]] for slot, found in rows.items() if slot not in slots})
    return bool(compared) and not left[0] & left[1]


def is_model(walk: Walk, node: Node) -> bool:
    """Tell whether a call is that of the model, or of one of several, and not of a part that the program calls itself."""
    return node.parent is None and walk.pairs.matching.pairs[node.pair].a in _models(walk)


@once
def _models(walk: Walk) -> frozenset[int]:
    """Modules of A that are the model: with its wrappers, or each of a list of models."""
    tree = Tree(walk.pairs.a.reader.modules)
    models = tree.children[tree.root].values() if tree.class_name(tree.root) == "list" else (tree.root,)
    found = {tree.root}
    for index in models:
        found.add(index)
        while (check := tree.wrapped(index)) is not None:
            index = tree.children[index][check]
            found.add(index)
    return frozenset(found)


_NOT_USED = note("first-fault-not-of-this-input")
_SAME_LABELS = note("loss-gradient-of-the-same-labels")
_SHIFTED_LABELS = note("labels-shifted-by-the-other-loss")
_AGREES = note("loss-and-gradients-agree")
