"""Recording verdicts and findings."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from probe.comparison.distance.metrics import Metrics, Status
from probe.comparison.fusion.parts import agreeing, facts
from probe.comparison.ledger.known import Judged, Walk
from probe.comparison.ledger.places import (
    are_alike,
    is_elsewhere,
    path_a,
    path_b,
    refs_of,
    root_refs,
    roundoff,
    unpaired,
    unpaired_between,
)
from probe.comparison.noise import tolerance
from probe.comparison.noise.interface import Check
from probe.comparison.noise.tolerance import Rule
from probe.comparison.notes import Note, note
from probe.comparison.result import Divergence, Kind
from probe.comparison.steps.step_half import Event, Node
from probe.records import Phase, Role

_NOTHING = 1.0
"""relative error from which on a limit lets any other tensor of that size pass"""


def _is_judged_before(event: Event) -> bool:
    """Tell whether an optimizer makes a tensor of a gradient, which was judged against what it is a sum of.

    A gradient that is rounding alone (of a key's bias) leaves nothing to judge in what is made of it; updates are judged by
    their lengths too.
    """
    return event.phase is Phase.UPDATE and event.role in (Role.PARAM_GRAD, Role.STATE, Role.DELTA)


def record(
    walk: Walk, event: Event, limit: float, wrong: bool, sources: float = 0.0, *, error: float | None = None,
    exempt: str = "", check: Check | None = None,
) -> bool:  # fmt: skip
    """Note an event's verdict, or that it is not judged and why; return whether it is a finding."""
    metrics = event.metrics
    assert metrics is not None
    if check is not None and check.is_wrong and not exempt:
        walk.noise.introduced(check.error)
    verdict = (check.verdict if check is not None else "") or _verdict(walk, event, metrics, wrong)
    exempt = exempt or (check.exemption if check is not None else "")
    if verdict == "noise" and limit >= _NOTHING and not exempt and not _is_judged_before(event):
        exempt = "no-limit"
    judged = Judged(
        event, limit, "not judged" if exempt else verdict, metrics.rel_l2 if error is None else error, sources, check, exempt,
        tuple(walk.ledger.tried.pop(id(event), ())),
    )  # fmt: skip
    walk.ledger.events.append(judged)
    walk.ledger.judged[id(event)] = judged
    return wrong


def _verdict(walk: Walk, event: Event, metrics: Metrics, wrong: bool) -> str:
    if not metrics.is_known:
        return "not comparable"
    if metrics.status is Status.EQUAL:
        return "equal"
    if wrong:
        return "introduced"
    if walk.ledger.findings and metrics.rel_l2 > tolerance.FORWARD.limit(roundoff(walk, event), 0.0):
        return "inherited"
    return "noise"


def note_missing(walk: Walk, event: Event) -> None:
    """Keep what is known of a parameter that one side alone has."""
    is_b = event.row_a < 0
    half = walk.pairs.half("B" if is_b else "A")
    slot = half.slot(event)
    stands_elsewhere = is_elsewhere(walk, event)
    if stands_elsewhere:
        walk.state.elsewhere.add((event.pair, slot))
    is_needed = are_alike(walk, event.pair) and not stands_elsewhere
    if is_needed and half.side.columns["norm"][half.row(event)] > 0:
        walk.weights.missing[event.pair] = (slot, half.name)
    walk.state.unpaired.setdefault(event.pair, ({}, {}))[is_b][slot] = None


def add(
    walk: Walk, phase: Phase, kind: Kind, event: Event, pair: int | None, rule: Rule, said: Iterable[Note], *,
    advice: Note | None, node: Node | None = None, slot: str | None = None, root: bool = False, is_apart: bool = False,
) -> None:  # fmt: skip
    """Add a finding at a pair of modules, or at the model as a whole.

    The event's slot is named with it where the event is one of the module's own. It is apart from others where its
    own evidence tells, whatever its sources are.
    """
    if root:
        refs = root_refs(walk)
    else:
        assert pair is not None
        own = (event.slot_a, event.slot_b) if pair == event.pair else ("", "")
        refs = refs_of(walk, pair, node, *(own if slot is None else (slot, slot)))
    judged = walk.ledger.judged.get(id(event))
    limit, error = (
        (rule.limit(roundoff(walk, event), 0.0), math.nan) if judged is None else (judged.limit, judged.error)
    )
    check = None if judged is None else judged.check
    about = (
        *(() if check is None else check.facts),
        *(() if root or pair != event.pair else facts(walk.pairs, event, limit)),
    )
    right = () if root or pair != event.pair else agreeing(walk.pairs, event, limit)
    share, guess = guessed(walk, event, pair)
    append(walk, Divergence(phase, event.role, kind, share * confidence(walk, event, node), *refs, event.metrics, limit,
                            (*said, *about, *guess), advice, error, is_apart or stands_apart(walk, event, rule),
                            "" if check is None else check.measure, event, agreeing=right))  # fmt: skip


def guessed(walk: Walk, event: Event, pair: int | None) -> tuple[float, tuple[Note, ...]]:
    """Return by how much what a finding was seen at is less surely a pair than the place that it names, and a fact.

    The place's own guess is weighed in `probe.comparison.blame.guesses`.
    """
    seen = walk.pairs.matching.pairs[event.pair]
    named = 1.0 if pair is None else walk.pairs.matching.pairs[pair].confidence
    if seen.confidence >= named:
        return 1.0, ()
    places = {"a": path_a(walk, event.pair), "b": path_b(walk, event.pair)}
    by = seen.reason.value
    return seen.confidence / named, (note("seen-at-a-guessed-pair", **places, by=by, confidence=seen.confidence),)


def append(walk: Walk, divergence: Divergence, event: Event | None = None) -> None:
    """Add a finding; with what was held against what, by the rung that judged, at the event that shows it."""
    judged = walk.ledger.judged.get(id(event))
    if judged is not None:
        check = judged.check or Check(judged.error, judged.limit)
        divergence = replace(divergence, limit=judged.limit, error=judged.error, measure=check.measure,
                             facts=(*divergence.facts, *check.facts))  # fmt: skip
    walk.ledger.findings.append(divergence)


def stands_apart(walk: Walk, event: Event, rule: Rule) -> bool:
    """Tell whether what an event was computed from agrees, up to rounding: then it is no consequence of anything."""
    judged = walk.ledger.judged.get(id(event))
    if judged is not None and judged.check is not None and judged.check.inherits is not None:
        return not judged.check.inherits
    return judged is None or judged.sources <= rule.limit(roundoff(walk, event), 0.0)


def confidence(walk: Walk, event: Event, node: Node | None) -> float:
    """Return how sure it is that an event differs."""
    value = 0.99
    if event.metrics is not None and event.metrics.estimated:
        value *= 0.97
    if node is not None and id(node) in walk.forward.unknown:
        value *= 0.9
    if node is not None and any(unpaired(walk, node.pair)):
        value *= 0.5
    if node is not None and unpaired_between(walk, node, node.end):
        value *= 0.9
    judged = walk.ledger.judged.get(id(event))
    if judged is not None and judged.error < 2 * judged.limit:
        value *= 0.7
    return value


def kind_of_finding(metrics: Metrics) -> Kind:
    """Return ``nonfinite`` where NaN or Inf was born, else ``introduced``."""
    return Kind.NONFINITE if metrics.status is Status.NONFINITE else Kind.INTRODUCED


def scale_hint(metrics: Metrics | None, what: str = "scale-of-value") -> Note | None:
    """Say so when the error, and so B, is parallel to the value; the error of what is much smaller is so in any direction."""
    if metrics is None or not min(abs(metrics.coherence), abs(metrics.cosine)) > 0.98 or not metrics.norm_a:
        return None
    return Note(what, {"factor": metrics.norm_ratio})
