"""What a value of the forward pass is held against, and what of it is left aside: padding, a factor, a mask."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

from probe.comparison.blame.order import module_a
from probe.comparison.blame.table import blame_input, blame_output
from probe.comparison.blame.values import context_of, returns_loss
from probe.comparison.distance.combined import add_sum
from probe.comparison.exemptions.mask_inside import have_other_masks, mask_alike, side_with_mask, where_not_masked
from probe.comparison.exemptions.padding import Padded
from probe.comparison.exemptions.residual_inside import addend
from probe.comparison.ledger.known import Walk
from probe.comparison.ledger.places import classes_of, parameters_of, path_a, peaks_of, requires_grad_of, roundoff
from probe.comparison.noise import conditioning, tolerance
from probe.comparison.noise.interface import SCALE_MEASURE, Check
from probe.comparison.noise.tolerance import Level
from probe.comparison.notes import note
from probe.comparison.steps.step_half import Event, Node
from probe.records import Phase, Role


def hold(walk: Walk, node: Node, event: Event, u: float, sources: Level) -> Check:
    """Hold an output against what its sources and rounding explain."""
    assert event.metrics is not None
    size, error = math.prod(walk.pairs.a.shapes[event.row_a]), event.metrics.rel_l2
    if roundoff(walk, event) == 0.0:
        return walk.noise.exact(event, tolerance.integer_limit(sources.error, size))
    is_loss = returns_loss(walk, event)
    peaks = peaks_of(walk, event)
    alike = walk.weights.begins_alike and not walk.ledger.findings
    shift = _shift(walk, event, size)
    of_value = tolerance.forward_rule(error, event.metrics.norm_ratio, shift, size, peaks, alike=alike)
    rule = tolerance.LOSS if is_loss else of_value
    check = walk.noise.check(event, error, rule, u, sources)
    if check.is_wrong and check.measure == SCALE_MEASURE:
        check = check.raise_limit(_learned(walk, node, event))
    elif check.is_wrong and rule.plain is not None:
        check = check.raise_limit(rule.plain.gain * _learned(walk, node, event))
    return check


def _learned(walk: Walk, node: Node, event: Event) -> float:
    """Return the error of the weights by which a value is made: updates have a direction, and so has what they make of it."""
    makers = (node, node.parent) if event.role is Role.INPUT else (node,)
    levels = [parameters_of(walk, maker) for maker in makers if maker is not None]
    return max((level.error for level in levels if level is not None), default=0.0)


def _shift(walk: Walk, event: Event, size: int) -> float:
    """Return the part of an error that is a constant, as a share of A's norm; 0 where a part of the tensor was compared."""
    assert event.metrics is not None
    a, b = walk.pairs.a.columns, walk.pairs.b.columns
    norm = a["norm"][event.row_a]
    is_whole = event.factor == 1 and norm and math.isclose(event.metrics.norm_a, norm, rel_tol=1e-6)
    away = abs(b["mean"][event.row_b] - a["mean"][event.row_a])
    return away * math.sqrt(size) / norm if is_whole else 0.0


def weights_agree(walk: Walk) -> bool:
    """Tell whether a step's calls are known to use the same weights, up to rounding: updates would have a direction."""
    worst = walk.state.worst
    is_known = all(half.rows.has(Phase.INIT, Role.PARAM) for half in walk.pairs.halves)
    return is_known and not walk.weights.written.are_there and worst.error <= tolerance.INIT.limit(worst.u, 0.0)


def with_cancelled(walk: Walk, node: Node, event: Event, sources: Level, u: float) -> Level:
    """Return the sources' errors as what a matrix product has left of them: where terms cancel out, their errors stay.

    Sums of n terms without a common direction have the norm ‖W‖·‖x‖/√n; what is smaller has cancelled out.
    """
    norm, made = walk.pairs.a.columns["norm"], event.row_a
    shapes, module = walk.pairs.a.shapes, module_a(walk, node)
    given = [rows[0] for rows in walk.pairs.rows_a.get((node.micro, module, node.call), Role.INPUT).values()]
    if len(given) != 1 or not shapes[given[0]] or not shapes[made] or not norm[made]:
        return sources
    sizes = shapes[given[0]][-1], shapes[made][-1]
    weights = walk.pairs.rows_a.get((0, module, 0), Role.PARAM).values()
    matrices = [rows[0] for rows in weights if sorted(shapes[rows[0]]) == sorted(sizes)]
    factor = norm[matrices[0]] * norm[given[0]] / (math.sqrt(sizes[0]) * norm[made]) if matrices else 1.0
    if not 1 < factor < math.inf:
        return sources
    error = factor * max(sources.error, u)
    return replace(sources, error=error)


def with_hidden(walk: Walk, node: Node, event: Event, sources: Level, u: float) -> Level:
    """Return the sources' errors as attention's scores make them, and with those that large elements hide.

    An error that a tensor had is still in what it was added to, though a few elements there are so large that it is
    no part of the whole; a normalisation of single tokens, or weights for single channels, bring it back. Neither makes a
    multiple of the value.
    """
    assert event.metrics is not None
    if tolerance.is_scaled(event.metrics.rel_l2, event.metrics.norm_ratio):
        return sources
    error = sources.error
    place = node.parent if event.role is Role.INPUT else node
    if event.role is Role.OUTPUT and conditioning.is_given_uneven(walk.pairs, node):
        error = max(error, walk.forward.largest)
    scores = conditioning.score_size(walk.pairs, place) / tolerance.SCORES
    return replace(sources, error=scores * max(error, u) if scores > 1 else error)


def with_angles(walk: Walk, node: Node, event: Event, sources: Level) -> Level:
    """Return the sources' errors with those of angles, where a tensor may be sines and cosines of them: on one side it does not learn."""
    if all(requires_grad_of(walk, event)):
        return sources
    error = conditioning.angle_error(walk.pairs, node, event) / tolerance.FORWARD.gain
    return replace(sources, error=max(sources.error, error))


def without_padding(walk: Walk, node: Node, event: Event, u: float, sources: Level, check: Check) -> Check:
    """Leave out an error that is in padding alone, and what later tensors have of it; values are needed for that."""
    kept, whole = walk.exempted.padding.without(event), event.metrics
    if kept is None or whole is None:
        return check
    event.metrics = kept
    found = hold(walk, node, event, u, sources)
    if found.is_wrong and not walk.exempted.padded:
        event.metrics = whole
        return check
    if not found.is_wrong:
        walk.exempted.padded.append(Padded(node, event, whole, walk.exempted.padding))
    return found


def without_factor(walk: Walk, node: Node, event: Event, u: float, sources: Level, check: Check) -> Check:
    """Leave out a factor between what a module returns on the two sides which the code outside makes up for."""
    whole = event.metrics
    assert whole is not None
    factor = walk.exempted.moving.factor(node, event, check.limit)
    if factor == 1:
        return check
    event.metrics = walk.pairs.measured(event, factor)
    found = hold(walk, node, event, u, sources)
    if found.is_wrong or event.metrics.is_lower_bound:
        event.metrics, event.factor = whole, 1.0
        return check
    walk.exempted.moved_factors[node, event.slot_a] = factor
    if (event.pair, event.slot_a) not in walk.state.moved_factors:
        walk.state.moved_factors.add((event.pair, event.slot_a))
        walk.ledger.notes.append(
            note("factor-stands-elsewhere", slot=event.slot_a, path=path_a(walk, event.pair), factor=factor)
        )
    return found


def made_up_for(walk: Walk, node: Node, event: Event, u: float, sources: Level, check: Check) -> Check:
    """Pass over what a module returns otherwise on the two sides where all that is made of it agrees: the border lies elsewhere."""
    error = walk.exempted.moving.error_of_uses(node, event, check.limit)
    if error is None:
        error = walk.exempted.moving.error_of_next(node, event, check.limit)
    if error is None:
        return check
    walk.exempted.with_border.add((node, event.slot_a))
    walk.exempted.borders[f"output {event.slot_a} of {path_a(walk, event.pair)}"] = None
    for level in map(partial(context_of, walk), (node, node.parent)):
        level.add(error, roundoff(walk, event), error)
    return check.exempt("moved-border")


def without_mask(walk: Walk, node: Node, event: Event, u: float, sources: Level, check: Check) -> Check:
    """Leave out the mask that one side alone has put into what its attention is given, or hands on; the other side's code adds it.

    Where both have one and hide by other numbers, what either hides is left out, if that is the same.
    """
    if node.parent is None:
        return check
    frameworks = {half.side.reader.info.framework for half in walk.pairs.halves}
    side = side_with_mask(walk.pairs, event) if len(frameworks) > 1 or not runs_same_code(walk, node) else ""
    if not side and not (have_other_masks(walk.pairs, event) and mask_alike(walk.pairs, event)):
        return check
    whole, event.metrics = event.metrics, where_not_masked(walk.pairs, event)
    found = check.exempt("mask-inside") if event.metrics is None else hold(walk, node, event, u, sources)
    if found.is_wrong or event.metrics is None:
        event.metrics = whole
    if not found.is_wrong:
        if side and event.role is Role.INPUT:
            walk.exempted.with_mask.add((node, event.slot_a))
        walk.ledger.notes.append(note(
            "masks-inside-differ", role=event.role.label, slot=event.slot_a, path=path_a(walk, node.pair), side=side,
            is_judged=not found.verdict,
        ))  # fmt: skip
    return found


def without_addend(walk: Walk, node: Node, event: Event, u: float, sources: Level, check: Check) -> Check:
    """Take an input for the sum of two, where one side's module adds them itself: the residual, in a norm that is fused with it."""
    whole, rows = event.metrics, (event.row_a, event.row_b)
    found = check
    for half in walk.pairs.halves if event.role is Role.INPUT and node.parent is not None else ():
        row = addend(half, node, event, walk.forward.one_sided.get(id(node), ()))
        if row is None:
            continue
        total = add_sum(half.side, (half.row(event), row), half.modules[node.pair])
        event.row_a, event.row_b = (total, rows[1]) if half.name == "A" else (rows[0], total)
        event.metrics = walk.pairs.measured(event, event.factor)
        found = hold(walk, node, event, u, sources) if event.metrics.is_known else check.exempt("residual-inside")
        event.row_a, event.row_b = rows
        if not found.is_wrong:
            walk.exempted.with_addend.add((node, event.slot_a))
            if found.verdict:
                walk.exempted.unseen_sums[path_a(walk, node.pair)] = None
            return found
    event.metrics = whole
    return check


_REFITS = {
    "padding": without_padding,
    "moved-factor": without_factor,
    "mask-inside": without_mask,
    "moved-border": made_up_for,
    "residual-inside": without_addend,
}
"""by code of `exemptions.REFITS`: how a value is judged without what differs and is no fault"""


def refitted(walk: Walk, node: Node, event: Event, u: float, sources: Level, check: Check) -> Check:
    """Try on a value that differs by more than its sources explain whether that is something that may differ."""
    for code, refit in _REFITS.items():
        if not check.is_wrong:
            break
        walk.ledger.tried.setdefault(id(event), []).append(code)
        check = refit(walk, node, event, u, sources, check)
    return check


def blame_padded(walk: Walk) -> bool:
    """Charge the first error in padding that A's loss may be computed from after all; tell whether there is one."""
    matters = [padded.matters for padded in walk.exempted.padded]
    if walk.ledger.findings or not matters or (False in matters and True not in matters):
        return False
    first = next(padded for padded, does in zip(walk.exempted.padded, matters, strict=True) if does is not False)
    first.event.metrics = first.whole
    walk.exempted.padded.clear()
    judged = walk.ledger.judged[id(first.event)]
    judged.verdict, judged.error = "introduced", first.whole.rel_l2
    if first.event.role is Role.INPUT:
        blame_input(walk, first.node, first.event)
    else:
        blame_output(walk, first.node, first.event)
    return True


def warn_of_padding(walk: Walk) -> None:
    """Say once what differs in padding alone."""
    if walk.exempted.padded and not walk.state.padding_was_told:
        walk.state.padding_was_told = True
        first, count = walk.exempted.padded[0], len(walk.exempted.padded)
        walk.ledger.notes.append(note(
            "padding-differs", count=count, mask=first.padding.name, role=first.event.role.label, slot=first.event.slot_a,
            path=path_a(walk, first.event.pair), error=first.whole.rel_l2,
        ))  # fmt: skip


def runs_same_code(walk: Walk, node: Node) -> bool:
    """Tell whether both sides run the same class, so that their tensors correspond slot by slot.

    Frameworks write the same name in other cases: ``Conv2d`` and ``Conv2D``.
    """
    a, b = classes_of(walk, node.pair)
    return a.casefold() == b.casefold()
