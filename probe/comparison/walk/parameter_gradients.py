"""Walking one step in causal order: what is introduced where.

Every event is held against the errors of its direct sources. One whose error is more than they and rounding
explain is a finding, and is charged to the module whose code lies between: `StepWalk` for what the model
computes, `probe.comparison.walk.updates` for what the optimizer does with it.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np

from probe.comparison.blame import causes
from probe.comparison.blame.values import tied
from probe.comparison.exemptions.reduced_over_ranks import reduced_within_backward
from probe.comparison.fusion.parts import without_gradient
from probe.comparison.fusion.tied import untied
from probe.comparison.ledger.known import Walk
from probe.comparison.ledger.places import (
    are_alike,
    classes_of,
    is_elsewhere,
    parameter_owners,
    path_a,
    peaks_of,
    refs_of,
    roundoff,
    underflow_limit,
)
from probe.comparison.ledger.recording import add, append, kind_of_finding, record, scale_hint
from probe.comparison.noise import tolerance
from probe.comparison.noise.tolerance import Level
from probe.comparison.notes import Note, note
from probe.comparison.optimizer.settings import different_settings, settings_note
from probe.comparison.result import Divergence, Kind
from probe.comparison.steps.side import kind_of
from probe.comparison.steps.step_half import Event, Node, StepHalf
from probe.comparison.walk.backward import note_scaling
from probe.comparison.walk.gradient_sources import (
    beside_key,
    blind_sources,
    cancelled_in,
    coarsest,
    has_arrived,
    largest_beside,
    largest_norms,
    norm_that_arrived,
    sources_of_gradient,
    worst_weight,
)
from probe.comparison.walk.scaling import common_factor, factor_of, factor_of_all
from probe.comparison.walk.weights import pool
from probe.records import Phase, Role


def judge_gradients(walk: Walk) -> None:
    """Judge the gradients that backward left at the parameters."""
    factor = walk.backward.factors_of_passes[0] if walk.backward.factors_of_passes else 1.0
    events = list(walk.pairs.parameter_events(Phase.GRADIENT, Role.PARAM_GRAD, factor))
    unwatched = [event for event in events if event.is_one_sided and walk.pairs.is_unwatched(event)]
    if unwatched and len(unwatched) < len(events):
        events = [event for event in events if event not in unwatched]
    both = [event for event in events if not event.is_one_sided]
    if both:
        walk.ledger.findings = walk.backward.cut + walk.ledger.findings  # other gradients behind a cut follow from it
    if events and not both:
        have = all(half.rows.has(Phase.GRADIENT, Role.PARAM_GRAD) for half in walk.pairs.halves)
        walk.ledger.notes.append(note("parameter-gradients-not-compared", are_recorded=have))
        return
    if not walk.backward.arrived and coarsest(walk) > tolerance.SIXTEEN_BIT and _are_routed_otherwise(walk):
        walk.ledger.notes.append(note("gradients-routed-otherwise"))
        for event in both:
            assert event.metrics is not None
            record(walk, event, math.nan, False, exempt="routed-gradients")
            walk.state.gradients[event.pair, event.slot_a] = event.metrics.rel_l2
        return
    _look_for_common_factor(walk, both)
    owners, is_later = parameter_owners(walk), bool(walk.state.gradients)
    walk.backward.errors_beside = {} if walk.backward.arrived else largest_beside(walk, both)
    walk.backward.norms_beside = largest_norms(walk, both) if walk.backward.arrived else {}
    walk.backward.largest_behind = 0.0
    backwards = [event for event in reversed(both) if _judge_parameter_gradient(walk, event, owners)]
    found = _reduced_alike(walk, backwards[::-1])
    if not walk.backward.cut:
        _blame_missing_gradients(walk, [event for event in events if event.is_one_sided])
    if found and is_later and not walk.backward.arrived and not walk.pairs.same_micros:
        _doubt_gradients(walk, found, len(both))
    elif len(set(walk.backward.factors_of_passes)) <= 1:  # else sums of gradients with several factors cannot agree
        _add_gradients(walk, found, len(both))


def _reduced_alike(walk: Walk, found: list[Event]) -> list[Event]:
    """Leave aside gradients that one side adds up over ranks within backward, the other behind it, and that are used alike."""
    side = reduced_within_backward(
        walk.pairs, found, lambda event: tolerance.USED.limit(roundoff(walk, event), worst_weight(walk).error)
    )
    if not side or walk.ledger.findings:
        return found
    is_alone = walk.pairs.half(side).side.reader.info.world_size < 2
    walk.ledger.notes.append(note("gradients-reduced-behind-backward", side=side, is_alone=is_alone))
    for event in found:
        judged = walk.ledger.judged[id(event)]
        judged.exempt("reduced-over-ranks")
        walk.state.gradients[event.pair, event.slot_a] = 0.0
    return []


def _doubt_gradients(walk: Walk, found: list[Event], judged: int) -> None:
    """Leave open what is wrong with gradients of another split, once the weights differ: between the two nothing was compared."""
    worst = max(walk.ledger.judged[id(event)].error for event in found)
    walk.ledger.reasons.append(
        note("gradients-of-another-split", step=walk.pairs.step, differing=len(found), judged=judged, worst=worst)
    )
    for event in found:
        walk.ledger.judged[id(event)].exempt("other-split")


def _look_for_common_factor(walk: Walk, events: list[Event]) -> None:
    """Where no gradients of calls were compared: see whether B's parameter gradients are one multiple of A's."""
    if walk.backward.factors_of_passes or walk.ledger.findings or not events:
        return
    limit = tolerance.GRADIENT.limit(max(map(partial(roundoff, walk), events)), 0.0)
    factor = factor_of(walk.pairs, events, limit)
    if factor == 1:
        factor = factor_of_all(walk.pairs, events, _limit_of_blind(walk, max(map(partial(roundoff, walk), events))))
    if factor == 1:
        for event in events:
            event.factor = 1.0
        return
    facts = (
        note("gradients-differ", count=len(events), judged=len(events)),
        *common_factor(events),
        note("backward-not-compared"),
    )
    note_scaling(walk, factor, Phase.GRADIENT, events[0], facts)
    for event in events:
        event.metrics = walk.pairs.measured(event, factor)


def _limit_of_blind(walk: Walk, u: float) -> float:
    """Return what gradients may be off by, all of them together, where nothing on the way to them was compared."""
    u = max(u, coarsest(walk))
    limit = tolerance.GRADIENT.limit(u, blind_sources(walk, u))
    return max(limit, tolerance.BLIND_GAIN * math.sqrt(u)) if u > tolerance.SIXTEEN_BIT else limit


def _judge_parameter_gradient(walk: Walk, event: Event, owners: dict[tuple[int, str], list[int]]) -> bool:
    metrics = event.metrics
    assert metrics is not None
    if not metrics.is_known:
        return record(walk, event, math.nan, False)
    pairs = owners.get((event.pair, event.slot_a), [event.pair])
    own = max(metrics.norm_a, metrics.norm_b)
    sources = sources_of_gradient(walk, pairs)
    known = max(metrics.rel_l2, sources.error) if metrics.is_lower_bound else metrics.rel_l2
    walk.state.gradients[event.pair, event.slot_a] = known
    scale = max(
        own,
        math.hypot(*map(partial(norm_that_arrived, walk), pairs))
        or walk.backward.norms_beside.get(beside_key(walk, event), 0.0),
    )
    error = metrics.rel_l2 * own / scale if scale and own else metrics.rel_l2
    u = max(roundoff(walk, event), sources.u, 0.0 if walk.backward.arrived else coarsest(walk))
    given = Level()
    given.merge(sources)
    rounding = 0.0
    if not walk.backward.arrived:
        given.add(blind_sources(walk, u), 0.0)
        rounding = tolerance.BLIND_GAIN * math.sqrt(u) if u > tolerance.SIXTEEN_BIT else 0.0
        beside = walk.backward.errors_beside.get(beside_key(walk, event), 0.0) / (scale or 1.0)
        rounding = max(rounding, tolerance.SIBLING_GAIN * beside, tolerance.BLIND_GROWTH * walk.backward.largest_behind)
    rule = tolerance.GRADIENT
    if has_arrived(walk, pairs) and not walk.ledger.findings:
        size = math.prod(walk.pairs.a.shapes[event.row_a])
        rule = tolerance.backward_rule(metrics, size, lambda: peaks_of(walk, event), rule)
    check = walk.noise.check(event, error, rule, u, given)
    check = check.raise_limit(max(rounding, underflow_limit(walk, event)))
    if check.is_wrong and walk.backward.arrived:
        check = check.raise_limit(rule.gain * given.error * cancelled_in(walk, event, pairs))
    wrong = check.is_wrong and not sources.tainted
    if not walk.backward.arrived and not wrong and u > tolerance.SIXTEEN_BIT:
        walk.backward.largest_behind = max(walk.backward.largest_behind, error)
    return record(walk, event, check.limit, wrong, sources.error, error=check.error, check=check)


def _are_routed_otherwise(walk: Walk) -> bool:
    """Tell whether integers that modules returned do not add up to the same over all micro-batches."""
    a, b = (_sums(half) for half in walk.pairs.halves)
    return any(a.get(pair.a) != b.get(pair.b) for pair in walk.pairs.matching.pairs)


def judge_written(walk: Walk) -> None:
    """Judge the weights that were written to in the middle of the step and not by an optimizer, if nothing else is wrong."""
    written = next((each for each in walk.weights.written.seen.values() if each.told), None)
    if written is not None and not walk.ledger.findings:
        pair, slot = written.place
        differing = different_settings(walk.pairs).get(
            (pair, walk.pairs.a.canonical(walk.pairs.matching.pairs[pair].a, slot))
        )
        advice = (
            note("settings-differ", settings=settings_note([differing]))
            if differing
            else note("writes-between-forwards")
        )
        walk.ledger.findings.append(Divergence(
            Phase.UPDATE, Role.PARAM, Kind.UPDATE, 0.9, *refs_of(walk, pair, None, slot, written.slot_b), written.metrics,
            facts=(note("written-before-use"), written.told), advice=advice,
        ))  # fmt: skip
    _doubt_unknown_writes(walk)
    if walk.state.goes_on:
        _remember_written(walk)


def _doubt_unknown_writes(walk: Walk) -> None:
    """Doubt a step that uses other weights of which it was not recorded what they were before: no update was judged there."""
    unknown = [each for each in walk.weights.written.seen.values() if not each.is_known and each.metrics.is_known]
    parts = [(each.metrics.rel_l2, max(each.metrics.norm_a, each.metrics.norm_b), each.u) for each in unknown]
    total = math.hypot(*(norm for _, norm, _ in parts))
    error = math.hypot(*(error * norm for error, norm, _ in parts)) / total if total else 0.0
    u = max((u for *_, u in parts), default=0.0)
    if not walk.ledger.findings and error > tolerance.DRIFT * tolerance.INIT.limit(u, 0.0):
        walk.ledger.reasons.append(
            note("weights-changed-unrecorded", step=walk.pairs.step, error=error, count=len(parts))
        )


def _remember_written(walk: Walk) -> None:
    """Keep the errors of weights that were written to and that the step does not end with a record of."""
    walk.state.weights |= walk.weights.written.known()
    walk.state.left_alone = walk.weights.written.left_alone()
    pooled: dict[int, list[tuple[float, float, float]]] = {}
    for written in walk.weights.written.not_left():
        norm = max(written.metrics.norm_a, written.metrics.norm_b)
        if written.metrics.is_known and math.isfinite(norm):
            for owner in parameter_owners(walk).get(written.place, written.place[:1]):
                pooled.setdefault(owner, []).append((written.metrics.rel_l2 * norm, norm, written.u))
    pool(walk, pooled, tolerance.UPDATED_GAIN)


def _blame_missing_gradients(walk: Walk, events: list[Event]) -> None:
    """Charge parameters that learn on one side only to the call behind them that passes nothing back there, or each to itself."""
    for name in "AB":
        missing = [event for event in events if (event.row_a < 0) == (name == "A")]
        swallower = _swallower(walk, name) if missing else None
        if swallower is not None:
            ran = {node.pair for node in walk.pairs.nodes.values() if node.begin < swallower.begin}
            before = [event for event in missing if event.pair in ran]
            if before:
                _blame_swallower(walk, swallower, name, before)
            missing = [event for event in missing if event.pair not in ran]
        for event in missing:
            _blame_missing_gradient(walk, event)


def _swallower(walk: Walk, name: str) -> Node | None:
    """Return the last call that got a gradient on both sides and passed nothing back to its inputs on one."""
    if not walk.backward.has_flow:
        return None
    found = [node for node in walk.pairs.nodes.values() if walk.backward.flow.swallowing_side(node) == name]
    return max(found, key=lambda node: node.begin, default=None)


def _blame_swallower(walk: Walk, node: Node, name: str, behind: list[Event]) -> None:
    first = behind[0]
    facts = (
        note("passes-nothing-back", path=path_a(walk, node.pair), side=name),
        note(
            "get-no-gradient-there", count=len(behind), slot=first.slot_a or first.slot_b, path=path_a(walk, first.pair)
        ),
    )
    append(walk, Divergence(
        Phase.BACKWARD, Role.GRAD_INPUT, Kind.MISSING, 0.95, *refs_of(walk, node.pair, node, "", ""), None, math.nan, facts,
        note("cuts-graph-in-module", side=name),
    ))  # fmt: skip


def _blame_missing_gradient(walk: Walk, event: Event) -> None:
    side = "A" if event.row_a >= 0 else "B"
    slot = event.slot_a or event.slot_b
    if event.pair in walk.weights.uncalled:
        return
    on_both = walk.pairs.is_initial_on_both(event)
    if not on_both and (not are_alike(walk, event.pair) or is_elsewhere(walk, event)):
        return
    other = "B" if side == "A" else "A"
    add(walk, Phase.GRADIENT, Kind.MISSING, event, event.pair, tolerance.GRADIENT,
              (note("gradient-on-one-side", slot=slot, side=side),), slot=slot,
              advice=tied(walk, event.pair, slot, side) or note("does-not-learn", slot=slot, side=other, is_there=on_both))  # fmt: skip


def _add_gradients(walk: Walk, found: list[Event], judged: int) -> None:
    """Add findings about gradients: one for all where most are concerned, else one for each."""
    hint = note("accumulation-and-reduction")
    blind = not walk.backward.arrived and len(found) > 1
    able = _able_to_show(walk, found)
    if blind or len(found) > max(2, tolerance.MOST * able):
        said = [note("gradients-differ", count=len(found), judged=judged), *common_factor(found)]
        if blind:
            said.append(_why_blind(walk))
        elif len(found) <= tolerance.MOST * judged:
            said.append(note("noise-hides-in-others", count=judged - able))
        surest = max(found, key=lambda event: walk.ledger.judged[id(event)].error / walk.ledger.judged[id(event)].limit)
        is_odd = blind and not common_factor(found)
        if is_odd:
            about, hint = _without_a_place(walk, found, hint)
            said += about
        add(walk, Phase.GRADIENT, Kind.INTRODUCED, surest, None, tolerance.GRADIENT, said, advice=hint, root=True)
        if is_odd:
            walk.ledger.findings[-1] = replace(
                walk.ledger.findings[-1], confidence=_NO_PLACE * walk.ledger.findings[-1].confidence
            )
        return
    for event in found:
        assert event.metrics is not None
        arrived = has_arrived(walk, parameter_owners(walk).get((event.pair, event.slot_a), [event.pair]))
        text = note("gradient-of-parameter-differs", has_arrived=bool(arrived))
        frozen = without_gradient(walk.pairs, event)
        kind = Kind.MISSING if frozen else kind_of_finding(event.metrics)
        told = causes.born(walk.pairs, None, event)
        add(walk, Phase.GRADIENT, kind, event, event.pair, tolerance.GRADIENT, (text, told) if told else (text,),
                  advice=frozen or untied(walk.pairs, event) or _zero_rows(walk, event) or scale_hint(event.metrics) or hint)  # fmt: skip


def _why_blind(walk: Walk) -> Note:
    """Say why it is not known where gradients become wrong."""
    counts = {"A": len(walk.pairs.micros_a), "B": len(walk.pairs.micros_b)}
    if walk.pairs.same_micros or walk.pairs.share:
        return note("backward-not-compared")
    none = next((name for name, count in counts.items() if not count), "")
    if none:
        return note("no-forward-recorded", side=none)
    return note("not-compared-under-another-split", a=counts["A"], b=counts["B"])


def _without_a_place(walk: Walk, found: list[Event], hint: Note) -> tuple[list[Note], Note]:
    """Return what to say, and to look at, where gradients have no common factor and nothing before them was compared."""
    counts = len(walk.pairs.micros_a), len(walk.pairs.micros_b)
    is_split = bool(min(counts)) and not walk.pairs.same_micros
    more = note("record-with-same-split" if is_split else "record-forward-and-backward")
    ratios = [event.metrics.norm_ratio for event in found if event.metrics is not None and event.metrics.norm_a]
    ratio = float(np.median(ratios)) if ratios else math.nan
    if not abs(ratio - 1) < _SAME_SIZE:
        return [], note("any-of", ways=(more, hint))
    return [note("gradients-of-same-size", ratio=ratio)], more


def _able_to_show(walk: Walk, found: list[Event]) -> int:
    """Return how many gradients could show an error as large as the typical one that was found.

    Noise hides it in the others: behind a kink in 16 bits, by what flips there.
    """
    if not found:
        return 0
    typical = float(np.median([walk.ledger.judged[id(event)].error for event in found]))
    return sum(
        j.limit < typical
        for j in walk.ledger.events
        if (j.event.phase, j.event.role) == (Phase.GRADIENT, Role.PARAM_GRAD)
    )


def _zero_rows(walk: Walk, event: Event) -> Note | None:
    """Say so when whole rows of an embedding's gradient are zero on one side only."""
    zeros = [half.side.columns["zeros"][half.row(event)] for half in walk.pairs.halves]
    shape = walk.pairs.a.shapes[event.row_a]
    more = abs(zeros[0] - zeros[1])
    if len(shape) != 2 or "Embedding" not in classes_of(walk, event.pair)[0] or not more or more % shape[1]:
        return None
    return note("zero-rows-of-embedding", rows=int(more // shape[1]), side="A" if zeros[0] > zeros[1] else "B")


_NO_PLACE = 0.6
"""what is left of the confidence where gradients are all that was compared, and differ by no common factor"""
_SAME_SIZE = 0.05
"""accumulation, a loss scale or a reduction that is wrong changes the norms of gradients by more"""


def _sums(half: StepHalf) -> dict[int, tuple[int, int]]:
    """Return how many integers each module returned in a step, and their sum."""
    found, side = {}, half.side
    for module, taken in half.rows.by_module(Role.OUTPUT).items():
        integers = [row for row in taken if kind_of(side.dtypes[row]) == "integer"]
        counts = [math.prod(side.shapes[row]) for row in integers]
        total = sum(count * side.columns["mean"][row] for count, row in zip(counts, integers, strict=True))
        found[module] = sum(counts), round(total)
    return found
