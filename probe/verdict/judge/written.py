"""Weights that are written to otherwise than by an optimizer that was seen: averages, perturbations, steps by hand.

Who wrote answers for it: the optimizer, or code of which only the change tells. Sketches are linear: what a weight is
changed by is what it is, less what it was and the updates in between. What calls find written has the error found then.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from probe.notes import Note, note
from probe.numbers.sketch import WIDTH
from probe.records import Phase, Role
from probe.verdict.distance.error import Error
from probe.verdict.distance.measure import measure
from probe.verdict.judge.judging import Judging
from probe.verdict.noise.limits import length_limit, update_limit
from probe.verdict.noise.model import BACKWARD, UPDATE_GAIN, WEIGHTS
from probe.verdict.side import Place, Side, steps_of
from probe.verdict.steps.events import Event
from probe.verdict.tensors import Tensor, less

_OTHER_SIDE = 0.25
"""share of one side's change up to which the other side has not made it"""


@dataclass(frozen=True)
class _Change:
    """What a weight is changed by beside its updates."""

    sketch: np.ndarray
    length: float
    size: float
    """as a share of the weight"""
    rounding: float
    stays: bool
    """the weight is what it was"""

    @property
    def is_real(self) -> bool:
        """Whether rounding does not explain it."""
        return self.length > self.rounding


def _change(begun: Tensor | None, now: Tensor | None, updates: Sequence[Tensor | None]) -> _Change | None:
    known = [each for each in updates if each is not None and each.sketch is not None]
    if begun is None or now is None or not now.norm or len(known) < len(updates) or sum(now.bad) or sum(begun.bad):
        return None
    total = less(now, begun)
    if total is None or total.sketch is None:
        return None
    sketch = total.sketch - sum((each.sketch for each in known if each.sketch is not None), np.zeros(WIDTH))
    rounding = (BACKWARD.floor(2**-24) + now.u) * now.norm
    rounding += UPDATE_GAIN * now.u * max((each.norm for each in known), default=0.0)
    length, stays = float(np.linalg.norm(sketch)), now.hash is not None and now.hash == begun.hash
    return _Change(sketch, length, length / now.norm, rounding, stays)


def _begun(judging: Judging) -> dict[Place | None, Event]:
    """Return the weights that the step begins with."""
    return {event.place: event for event, *_ in (*judging.before.weights, *judging.before.found.values())}


def _halves(judging: Judging, event: Event) -> list[tuple[Side, Place]]:
    """Return both sides, with the place of a weight there."""
    assert event.place is not None
    there = judging.step.parameters.b_of.get(event.place[0], -1)
    return [(judging.step.a, event.place), (judging.step.b, (there, event.slot_b or event.slot_a))]


def sources_of_change(judging: Judging, event: Event, gradients: Mapping[Place, float]) -> tuple[float | None, float]:
    """Return the largest errors of the gradients, None if none is known, and of the weights that a change is made of.

    One that has no gradient, an average, may be made of any of its shape.
    """
    shape, begun = event.a.shape if event.a is not None else None, _begun(judging).items()
    alike = [place for place, each in begun if place and each.a is not None and each.a.shape == shape]
    own = [event.place] if event.place in gradients else alike
    known = max((gradients[place] for place in own if place in gradients), default=None)
    return known, max((judging.verdicts.error(_begun(judging)[place]) for place in alike), default=0.0)


# What a step leaves


def own_updates(
    judging: Judging, left: Mapping[Place | None, Event], updates: Mapping[Place | None, Event]
) -> dict[Place, tuple[Event, Event]]:
    """Return, of weights that no optimizer was seen to update on both sides, what is left and what changed them."""
    found = {}
    for place, first in _begun(judging).items():
        event, update = left.get(place), updates.get(place)
        if place is None or event is None or (update is not None and (update.is_paired or not event.is_paired)):
            continue
        half_a, half_b = _halves(judging, first)
        a = first.a if event.a is None and _stays(judging, *half_a) else event.a
        b = first.b if event.b is None and _stays(judging, *half_b) else event.b
        moved = [less(x, y) if x and y else None for x, y in ((a, first.a), (b, first.b))]
        norms = [each.norm for each in moved if each is not None]
        if len(norms) == 2 and max(norms) > 0 and (update is None or min(norms) > 0):
            delta = replace(first, phase=Phase.UPDATE, role=Role.DELTA, a=moved[0], b=moved[1])
            found[place] = replace(event, a=a, b=b), delta
    return found


def _stays(judging: Judging, half: Side, place: Place) -> bool:
    """Return True if a side that leaves no record of a weight left it as it was; calls tell what becomes of others."""
    step = judging.step
    side, other = ("A", "B") if half is step.a else ("B", "A")
    is_called = any(call.module == place[0] for call in half.calls) or (Role.PARAM, place) in half.writes
    if is_called and any(each.step == steps_of(each.reader)[-1] for each in (step.a, step.b)):
        judging.verdicts.tell(note("last-step-writes-on-one-side", step=step.a.step, side=other))
    elif not is_called and not half.reader.info.tells_writes:
        judging.verdicts.tell(note("writes-not-recorded", side=other, other=side))
    return not is_called and half.reader.info.tells_writes


def judge_behind(judging: Judging, gradients: Mapping[Place, float]) -> None:
    """Find weights that one side alone changes otherwise than by its update, or that both change, and not alike.

    Between steps they changed before the forward pass that shows it.
    """
    step, findings, known = judging.step, judging.verdicts.findings, _changes(judging)
    real = {at: both for at, both in known.items() if both[0].is_real or both[1].is_real}
    alone = [
        {at: one[x].size for at, one in real.items() if one[x].is_real and one[y].size < _OTHER_SIDE * one[x].size}
        for x, y in ((0, 1), (1, 0))
    ]
    which = max((0, 1), key=lambda side: max(alone[side].values(), default=0.0))
    found, is_alone = dict(alone[which]), bool(alone[which])
    for at, (a, b) in real.items() if not is_alone else ():
        larger = max(a.length, b.length)
        gap = float(np.linalg.norm(a.sketch - b.sketch)) / larger
        noise = UPDATE_GAIN * math.sqrt(max(gradients.get(at, 1.0), 2**-24)) + (a.rounding + b.rounding) / larger
        if a.is_real and b.is_real and gap > max(_OTHER_SIDE, noise):
            found[at] = gap
    paths = {step.path(module) for module, _ in found}
    if not found or (findings and (judging.is_first or not paths.intersection(findings[0].paths))):
        return
    at = max(found, key=lambda place: found[place])
    when = note("in-step" if judging.is_first else "between-steps", step=step.a.step)
    told = {"when": when, "count": len(found), "known": len(known), "largest": found[at]}
    told |= {"slot": at[1], "path": step.path(at[0])}
    code, advice = "both-change-weights-otherwise", "behind-optimizer-step"
    lengths = [math.hypot(*(known[place][side].length for place in found)) for side in (0, 1)]
    other = note("changes-as-long", times=lengths[1] / lengths[0] if lengths[0] else math.inf)
    if is_alone:
        theirs, told["side"] = sum(known[place][1 - which].is_real for place in found), "AB"[which]
        other = note("changed-there-too", count=theirs) if theirs else note("not-changed-there")
        code = "weights-change-otherwise"
        if all(known[place][which].stays for place in found):
            code, advice = "weights-stay", "set-back-behind-optimizer-step"
    findings.clear()
    path = paths.pop() if len(paths) == 1 else ""
    judging.finds(Phase.UPDATE, (path,), None, 0.0, "behind-optimizer", facts=(Note(code, told), other, note(advice)))


def _changes(judging: Judging) -> dict[Place, tuple[_Change, _Change]]:
    """Return what changes the weights of both sides beside their updates, but for what the rung lets pass."""
    before = {event.place: event for event, *_ in judging.before.weights}
    updates = {event.place: event for event in judging.step.parameters.events(Phase.UPDATE, Role.DELTA)}
    found = {}
    for event in judging.step.parameters.events(Phase.UPDATE, Role.PARAM):
        place, first, update = event.place, before.get(event.place), updates.get(event.place)
        if place is None or first is None or update is None:
            continue
        a, b = _change(first.a, event.a, [update.a]), _change(first.b, event.b, [update.b])
        error = judging.step.error(event) if a is not None and a.is_real or b is not None and b.is_real else None
        if a is not None and b is not None and not (error and judging.noise.explains(event, error)):
            found[place] = a, b
    return found


# What calls find


def take_written(judging: Judging) -> None:
    """Take weights that calls find written to as sources of what these calls make, from then on.

    Of those that a step before left written to on one side alone, it is known at once.
    """
    step, begun = judging.step, _begun(judging)
    writes = [[place for role, place in half.writes if role is Role.PARAM] for half in (step.a, step.b)]
    there = [(step.parameters.a_of.get(module, -1), name) for module, name in writes[1]]
    unknown = [
        Event(Phase.FORWARD, Role.PARAM, None, place, place[1], place[1], None, None, 0)
        for place in dict.fromkeys((*writes[0], *there))
        if place not in begun
    ]
    left = [half.left() if unknown else {} for half in (step.a, step.b)]
    tell = all(half.reader.info.tells_writes for half in (step.a, step.b))
    for event in (*begun.values(), *unknown):
        alone, halves = judging.before.alone.get(event.place, event), _halves(judging, event)
        found = [half.writes.get((Role.PARAM, at), []) for half, at in halves]
        was = alone.a or event.a, alone.b or event.b
        was = [one or each.get((Role.PARAM, at)) for one, each, (_, at) in zip(was, left, halves, strict=True)]
        for number in range(max(*map(len, found), tell and alone is not event)):
            rows = [each[: number + 1][-1:] for each in found]
            a, b = (row[0][1] if row else one for row, one in zip(rows, was, strict=True))
            now = replace(event, phase=Phase.FORWARD, a=a, b=b, at=number)
            error = step.error(now)
            if error is not None:
                when = rows[0][0][0] if rows[0] and event.is_paired else -1
                judging.verdicts.written[now.place].append((when, now, error, judging.noise.excess(now, error)))


def judge_written(judging: Judging, gradients: Mapping[Place, float]) -> None:
    """Find a weight that is changed otherwise in B, beside updates, before a call uses it, if all else agrees."""
    if judging.verdicts.findings:
        return
    begun, unknown = _begun(judging), {}
    for place, rows in judging.verdicts.written.items():
        before = begun.get(place)
        for _, now, error, _ in rows:
            if before is None:
                unknown[place] = now, error
            elif not (error.is_bound or judging.noise.explains(now, error)):
                told = _told(judging, before, now, error, gradients)
                if told is not None:
                    facts = note("written-before-use"), told, note("writes-between-forwards")
                    judging.blames(Phase.UPDATE, now, "behind-optimizer", limit=math.nan, error=error, facts=facts)
                    return
            before = before and now
    apart = math.hypot(*(error.apart for _, error in unknown.values()))
    total = math.hypot(*(error.norm_a for _, error in unknown.values()))
    if apart > BACKWARD.k * WEIGHTS.limit(max((now.u for now, _ in unknown.values()), default=0.0), 0) * total:
        told = {"step": judging.step.a.step, "error": apart / (total or 1.0), "count": len(unknown)}
        judging.verdicts.doubts.append(note("weights-changed-unrecorded", **told))


def _told(judging: Judging, before: Event, now: Event, error: Error, gradients: Mapping[Place, float]) -> Note | None:
    """Say how a weight is changed otherwise in B; None where noise explains it, or nothing is known."""
    halves = _halves(judging, now)
    pairs = [(*half, x, y) for half, x, y in zip(halves, before.both, now.both, strict=True)]
    moments = [(half, Role.DELTA, at, _when(half, at, x), _when(half, at, y)) for half, at, x, y in pairs]
    a, b = (_change(x, y, _seen(*moment)) for (*_, x, y), moment in zip(pairs, moments, strict=True))
    if a is None or b is None or now.a is None or not error.size or not (longest := max(a.length, b.length)):
        return None
    known, weight = sources_of_change(judging, now, gradients)
    own = _gradient(halves, now)
    known = (known or 0.0) if own is None else own
    norm = max(error.norm_a, error.norm_b)
    noise, bound = update_limit(known, now.u, norm, longest, now.a.size)
    rounding = (weight + BACKWARD.floor(2**-24)) * norm
    is_apart = float(np.linalg.norm(b.sketch - a.sketch)) > bound * longest + rounding
    if not is_apart and abs(b.length - a.length) <= length_limit(noise, now.a.size) * longest + rounding:
        return None
    if not (a.is_real and b.is_real):
        return note("not-changed-there-at-all", side="B" if a.is_real else "A")
    return note("changed-by-as-long", times=b.length / a.length)


def _gradient(halves: Iterable[tuple[Side, Place]], now: Event) -> float | None:
    """Return the error of the gradient that a weight had before it was written to."""
    pairs = zip(halves, now.both, strict=True)
    a, b = (_seen(half, Role.PARAM_GRAD, at, -1, _when(half, at, tensor))[-1:] for (half, at), tensor in pairs)
    error = measure(a[0], b[0]) if a and b else None
    return error.size if error is not None else None


def _when(side: Side, place: Place, tensor: Tensor | None) -> int:
    """Return when a weight was found written to; −1 for what it was as the step began."""
    return next((at for at, each in side.writes.get((Role.PARAM, place), []) if each is tensor), -1)


def _seen(side: Side, role: Role, place: Place, since: int, until: int) -> list[Tensor]:
    """Return the gradients of a weight, or the updates of an optimizer, between two moments."""
    return [each for at, each in side.writes.get((role, place), []) if since < at < until]
