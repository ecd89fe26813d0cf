"""Judging the weights that a step begins with."""

from __future__ import annotations

import math

from probe.comparison.distance.combined import canonical_shape
from probe.comparison.distance.metrics import Status, kind_of
from probe.comparison.exemptions.known_differences import EXACT
from probe.comparison.fusion.moved_weights import Elsewhere
from probe.comparison.fusion.parts import other_order
from probe.comparison.fusion.sharded import side_with_parts
from probe.comparison.ledger.known import Walk
from probe.comparison.ledger.places import are_alike, parameter_owners, path_a, path_b, requires_grad_of, roundoff, when
from probe.comparison.ledger.recording import add, note_missing, record, scale_hint
from probe.comparison.noise import tolerance
from probe.comparison.noise.tolerance import Level
from probe.comparison.notes import Note, note
from probe.comparison.once import once
from probe.comparison.result import Kind
from probe.comparison.steps.step_half import Event
from probe.comparison.walk.buffers import is_running
from probe.records import Phase, Role

_REORDERED = 0.01
"""from this error on, equal sums cannot be those of a weight that only changed a little"""


def judge_init(walk: Walk) -> None:
    """Judge the weights that the step began with."""
    found, judged = [], 0
    pooled: dict[int, list[tuple[float, float, float]]] = {}
    for event in walk.pairs.initial_weights:
        if event.is_one_sided:
            if walk.pairs.lacks_parameter(event):
                note_missing(walk, event)
            continue
        metrics = event.metrics
        assert metrics is not None
        judged += 1
        if requires_grad_of(walk, event)[0] != requires_grad_of(walk, event)[1]:
            walk.weights.frozen.add(walk.pairs.matching.pairs[event.pair].a)
        u = roundoff(walk, event)
        check = walk.noise.start(event, _init_limit(walk, u))
        is_judged = check.verdict != "not judged" and not walk.pairs.is_padded(event)
        if metrics.status is Status.NOT_COMPARABLE and is_judged:
            _form_mismatch(walk, event)
        if record(walk, event, check.limit, metrics.is_known and check.is_wrong, error=check.error, check=check):
            found.append(event)
        if metrics.is_known:
            norm = max(metrics.norm_a, metrics.norm_b)
            for owner in parameter_owners(walk).get((event.pair, event.slot_a), [event.pair]):
                pooled.setdefault(owner, []).append((metrics.rel_l2 * norm, norm, u))
    pool(walk, pooled)
    _doubt_parts(walk)
    if walk.pairs.begins:
        _judge_buffers_before(walk)
    if walk.pairs.step and not _have_parted(walk, pooled):
        walk.weights.drifted = found
    elif len(found) > max(1, tolerance.MOST * judged) and len({event.pair for event in found}) > 1:
        _blame_all_weights(walk, found, judged)
    else:
        for event in found:
            add(walk, Phase.INIT, Kind.INIT, event, event.pair, tolerance.INIT, (note("weights-differ", when=when(walk)),),
                      advice=_elsewhere(walk).said(event) or _not_recorded(walk)
                      or other_order(walk.pairs, event, walk.ledger.judged[id(event)].limit) or _reordered(walk, event)
                      or scale_hint(event.metrics) or note("loading-of-weight"))  # fmt: skip


def _judge_buffers_before(walk: Walk) -> None:
    """Judge with what running statistics the models begin: training does not use them, and evaluation will.

    Other buffers that differ are no fault by themselves: code that uses them shows it, and what none uses is not judged.
    """
    for event in walk.pairs.parameter_events(Phase.INIT, Role.BUFFER):
        metrics = event.metrics
        if metrics is None or not metrics.is_known:
            continue
        is_judged = is_running(walk, event) and not walk.pairs.step
        rule = tolerance.INIT if is_judged else tolerance.FORWARD
        check = walk.noise.start(event, rule.limit(roundoff(walk, event), 0.0))
        if check.is_wrong and not is_judged:
            walk.state.other_buffers.add((event.pair, event.slot_a))
            record(walk, event, math.nan, False, exempt="other-buffer")
        elif record(walk, event, check.limit, check.is_wrong, error=check.error, check=check):
            add(walk, Phase.INIT, Kind.INIT, event, event.pair, tolerance.INIT,
                      (note("running-statistics-differ", when=when(walk)),), advice=note("loading-of-running-statistics"))  # fmt: skip


def _init_limit(walk: Walk, u: float) -> float:
    """Return the largest error that is noise; weights that steps before have changed drift apart."""
    return tolerance.INIT.limit(u, 0.0) * (tolerance.DRIFT if walk.pairs.step else 1)


def _have_parted(walk: Walk, pooled: dict[int, list[tuple[float, float, float]]]) -> bool:
    """Tell whether all weights together differ by more than rounding in the steps before explains."""
    parts = [part for each in pooled.values() for part in each]
    total = math.hypot(*(norm for _, norm, _ in parts))
    error = math.hypot(*(error for error, _, _ in parts))
    return error > total * _init_limit(walk, max((u for *_, u in parts), default=0.0))


def judge_drift(walk: Walk) -> None:
    """Doubt a step that begins with some other weights if what the model returns differs too."""
    if not walk.weights.drifted:
        return
    outputs = [
        j
        for j in walk.ledger.events
        if j.event.role is Role.OUTPUT and _is_top(walk, j.event) and not math.isnan(j.error)
    ]
    if outputs and all(j.error <= _init_limit(walk, roundoff(walk, j.event)) for j in outputs):
        return
    first = walk.weights.drifted[0]
    assert first.metrics is not None
    walk.ledger.reasons.append(note(
        "weights-drifted", count=len(walk.weights.drifted), step=walk.pairs.step, slot=first.slot_a, path=path_a(walk, first.pair),
        error=first.metrics.rel_l2,
    ))  # fmt: skip


def _is_top(walk: Walk, event: Event) -> bool:
    key = (event.micro, walk.pairs.matching.pairs[event.pair].a, event.call)
    return key in walk.pairs.nodes and walk.pairs.nodes[key].parent is None


def _blame_all_weights(walk: Walk, found: list[Event], judged: int) -> None:
    said = note("parameters-differ", count=len(found), judged=judged, when=when(walk))
    advice = _moved(walk, found) or _not_recorded(walk) or note("start-from-the-same-weights")
    add(walk, Phase.INIT, Kind.INIT, found[0], None, tolerance.INIT, (said,), advice=advice, root=True)


def _not_recorded(walk: Walk) -> Note | None:
    step = walk.pairs.step
    return note("record-steps-before", step=step) if step else None


def _reordered(walk: Walk, event: Event) -> Note | None:
    """Say so when B's weight has A's numbers at other places."""
    metrics, a, b = event.metrics, walk.pairs.a.columns, walk.pairs.b.columns
    assert metrics is not None
    i, j = event.row_a, event.row_b
    same = (
        metrics.rel_l2 > _REORDERED
        and all(a[name][i] == b[name][j] for name in ("min", "max", "zeros"))
        and math.isclose(metrics.norm_ratio, 1, rel_tol=EXACT)
        and math.isclose(a["mean"][i], b["mean"][j], rel_tol=EXACT, abs_tol=EXACT * a["rms"][i])
    )
    return note("same-numbers-in-another-order") if same else None


@once
def _elsewhere(walk: Walk) -> Elsewhere:
    return Elsewhere(walk.pairs)


def _moved(walk: Walk, found: list[Event]) -> Note | None:
    """Say so when most of the weights that differ stand at another place in B: layers in another order."""
    weights = [j.event for j in walk.ledger.events if j.event.phase is Phase.INIT and j.event.role is Role.PARAM]
    places = {walk.pairs.b.digest(event.row_b): event.pair for event in reversed(weights)}
    columns = walk.pairs.a.columns
    there = {
        event.pair: places.get(walk.pairs.a.digest(event.row_a))
        for event in found
        if columns["min"][event.row_a] < columns["max"][event.row_a]
    }
    moved = [(mine, theirs) for mine, theirs in there.items() if theirs is not None and theirs != mine]
    if 2 * len(moved) <= len({event.pair for event in found}):
        return None
    mine, theirs = moved[0]
    return note("weights-of-another-layer", a=path_a(walk, mine), b=path_b(walk, theirs))


def pool(walk: Walk, pooled: dict[int, list[tuple[float, float, float]]], gain: float = 1.0) -> None:
    """Keep one error per module for its parameters: of all of them, taken as one vector."""
    for pair, parts in pooled.items():
        total = math.sqrt(sum(norm**2 for _, norm, _ in parts))
        error = math.sqrt(sum(error**2 for error, _, _ in parts)) / total if total else 0.0
        walk.state.parameters[pair] = level = Level()
        level.add(gain * error, max(u for *_, u in parts))


def _doubt_parts(walk: Walk) -> None:
    """Doubt a step of which one side holds weights in parts, as under tensor parallelism: what is whole on both sides is compared."""
    if not walk.weights.in_parts:
        return
    first, count = walk.weights.in_parts[0], len(walk.weights.in_parts)
    a, b = ((half.side.reader.info.rank, half.side.reader.info.world_size) for half in walk.pairs.halves)
    walk.ledger.reasons.append(note(
        "weights-in-parts", a=a, b=b, count=count, slot=first.slot_a, path=path_a(walk, first.pair),
        why=first.metrics.why if first.metrics else None,
    ))  # fmt: skip


def _form_mismatch(walk: Walk, event: Event) -> None:
    """A parameter has another shape, or integers where the other side has floats."""
    a, b = walk.pairs.a, walk.pairs.b
    shapes = canonical_shape(a, event.row_a), canonical_shape(b, event.row_b)
    sizes = [math.prod(shape) for shape in shapes]
    kinds = [kind_of(side.dtypes[row]) for side, row in ((a, event.row_a), (b, event.row_b))]
    if side_with_parts(a.reader, b.reader, *shapes, of_weight=True):
        walk.weights.in_parts.append(event)
        walk.state.in_parts.add((walk.pairs.matching.pairs[event.pair].a, event.slot_a))
        return
    if not are_alike(walk, event.pair) or event.metrics is None:
        return
    if kinds[0] != kinds[1]:
        add(walk, Phase.INIT, Kind.DTYPE, event, event.pair, tolerance.INIT, (event.metrics.why,),
                  advice=note("other-kind-of-numbers"))  # fmt: skip
    elif sizes[0] != sizes[1]:
        add(walk, Phase.INIT, Kind.SHAPE, event, event.pair, tolerance.INIT, (event.metrics.why,),
                  advice=note("built-with-other-sizes"))  # fmt: skip
