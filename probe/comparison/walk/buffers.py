"""What a step made of the buffers: running statistics."""

from __future__ import annotations

import math
from collections.abc import Sequence

from probe.comparison.exemptions.running_variance import RunningVariance
from probe.comparison.ledger.known import Walk
from probe.comparison.ledger.places import path_a, roundoff
from probe.comparison.ledger.recording import add, record
from probe.comparison.noise import tolerance
from probe.comparison.noise.tolerance import Level
from probe.comparison.notes import note
from probe.comparison.result import Kind
from probe.comparison.steps.step_half import Event
from probe.records import Phase, Role

_RUNNING = ("running_mean", "running_var")


def judge_buffers(walk: Walk) -> None:
    """Judge what the step made of the buffers."""
    before = {(e.pair, e.slot_a): e for e in walk.pairs.parameter_events(Phase.INIT, Role.BUFFER)}
    variance = RunningVariance(walk.pairs, walk.state)
    explained: list[str] = []
    counted: list[Event] = []
    for event in walk.pairs.parameter_events(Phase.UPDATE, Role.BUFFER):
        metrics = event.metrics
        if event.is_one_sided or metrics is None:
            continue
        key = (event.pair, event.slot_a)
        if _has_other_integers(walk, event, before.get(key)):
            counted.append(event)
        sources = _sources_of_buffer(walk, event, before.get(key))
        check = walk.noise.check(
            event, metrics.rel_l2, tolerance.FORWARD, max(roundoff(walk, event), sources.u), sources
        )
        check = check.raise_limit(check.limit * _cancelled(walk, event))
        limit = check.limit
        wrong = metrics.is_known and roundoff(walk, event) > 0 and check.is_wrong
        is_as_expected = variance.explains(event, before.get(key), limit)
        if wrong and is_as_expected:
            explained.append(path_a(walk, event.pair))
            wrong, limit = False, math.nan  # it was not the size of the error that told
        is_unknown = metrics.rel_l2 > 0 and (
            key in walk.state.other_buffers and not wrong or _is_called_apart(walk, event)
        )
        exempt, wrong = ("other-buffer", False) if is_unknown else ("", wrong)
        limit = math.nan if exempt else limit
        if record(walk, event, limit, wrong, sources.error, error=check.error, check=check, exempt=exempt):
            facts = (note("buffer-differs-after-step", slot=event.slot_a),)
            add(walk, Phase.FORWARD, Kind.INTRODUCED, event, event.pair, tolerance.FORWARD, facts,
                      advice=note("update-of-running-statistics"))  # fmt: skip
        if metrics.is_known:
            walk.state.buffers[key] = metrics.rel_l2
    _tell_of_integers(walk, counted)
    if explained and not walk.state.variance_was_told:
        walk.state.variance_was_told = True
        walk.ledger.notes.append(variance.told_of(explained))


def _has_other_integers(walk: Walk, event: Event, old: Event | None) -> bool:
    """Tell whether the step made other integers of a buffer of which both sides had the same."""
    metrics, began = event.metrics, walk.state.buffers.get((event.pair, event.slot_a))
    if began is None and old is not None and old.metrics is not None:
        began = old.metrics.rel_l2
    return metrics is not None and metrics.of_integers and metrics.rel_l2 > 0 and began == 0


def _tell_of_integers(walk: Walk, counted: Sequence[Event]) -> None:
    """Say which buffers hold other integers behind a step: counters, indices. Rounding may have chosen those, so none is a finding."""
    if not counted:
        return
    first, others = counted[0], len(counted) - 1
    share = None if first.metrics is None else first.metrics.rel_l2
    walk.ledger.notes.append(note(
        "buffer-of-other-integers", step=walk.pairs.step, slot=first.slot_a, path=path_a(walk, first.pair), share=share, others=others,
    ))  # fmt: skip


def _is_called_apart(walk: Walk, event: Event) -> bool:
    """Tell whether both sides call a buffer's module, and no call of the one is one of the other: what it is made from was not compared."""
    calls_are_pairs = any(node.pair == event.pair for node in walk.pairs.nodes.values())
    return not calls_are_pairs and all(
        any(call.module == half.modules[event.pair] for call in half.calls) for half in walk.pairs.halves
    )


def is_running(walk: Walk, event: Event) -> bool:
    """Tell whether a buffer is a running statistic."""
    module = walk.pairs.matching.pairs[event.pair].a
    return bool(event.slot_a) and walk.pairs.a.canonical(module, event.slot_a) in _RUNNING


def _cancelled(walk: Walk, event: Event) -> float:
    """Return how much larger than a running mean the numbers are that it is the mean of: their rounding stays."""
    pair, metrics = walk.pairs.matching.pairs[event.pair], event.metrics
    assert metrics is not None
    mean = max(metrics.norm_a, metrics.norm_b)
    if walk.pairs.a.canonical(pair.a, event.slot_a) != "running_mean" or not mean:
        return 1.0
    given = [
        walk.pairs.a.columns["rms"][rows[0]]
        for node in walk.pairs.nodes.values()
        if node.pair == event.pair
        for rows in walk.pairs.rows_a.get((node.micro, pair.a, node.call), Role.INPUT).values()
    ]
    size = math.prod(walk.pairs.a.shapes[event.row_a])
    return max(1.0, max(given, default=0.0) * math.sqrt(size) / mean)


def _sources_of_buffer(walk: Walk, event: Event, old: Event | None) -> Level:
    """Return the errors of the buffer before the step, and of what its module was given."""
    sources = Level()
    sources.add(walk.state.buffers.get((event.pair, event.slot_a), 0.0), 0.0)
    if old is not None and old.metrics is not None and old.metrics.is_known:
        sources.add(old.metrics.rel_l2, roundoff(walk, event))
        is_judged = is_running(walk, old) and not walk.pairs.step
        if old.metrics.rel_l2 > tolerance.FORWARD.limit(roundoff(walk, event), 0.0) and not is_judged:
            place = {"slot": event.slot_a, "path": path_a(walk, event.pair)}
            walk.ledger.notes.append(
                note("buffer-differs-before", step=walk.pairs.step, error=old.metrics.rel_l2, **place)
            )
    for node, level in walk.forward.errors.items():
        if node is not None and node.pair == event.pair:
            sources.merge(level)
    return sources
