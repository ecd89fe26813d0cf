"""Weights that something else than the optimizer changes: averaging, rounding, clipping behind its step.

Sketches are linear: what a step leaves is what it began with and the update, or something else changed it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from probe.comparison.notes import Note, note
from probe.records import MASTER, Phase, Role
from probe.verdict.judge.judging import Judging
from probe.verdict.noise.model import BACKWARD, UPDATE_GAIN
from probe.verdict.side import Place
from probe.verdict.tensors import Tensor

_OTHER_SIDE = 0.25
"""share of one side's change up to which the other side has not made it"""


@dataclass(frozen=True)
class _Change:
    sketch: np.ndarray
    norm: float
    """of the weight"""
    rounding: float
    stays: bool
    """the weight is what it was"""

    @property
    def size(self) -> float:
        """The change as a share of the weight."""
        return float(np.linalg.norm(self.sketch)) / self.norm

    @property
    def is_real(self) -> bool:
        """Whether rounding does not explain it."""
        return float(np.linalg.norm(self.sketch)) > self.rounding


_Both = dict[Place, tuple[_Change, _Change]]


def judge_behind(judging: Judging) -> None:
    """Find weights that one side alone changes otherwise than by its update, or that both change, and not alike."""
    step = judging.step
    if any(slot.endswith(MASTER) for half in (step.a, step.b) for slot in half.reader.slots):
        return  # the update is that of a copy, which is rounded to the weight
    known = _changes(judging)
    when = note("in-step" if judging.is_first else "between-steps", step=step.a.step)
    alone: list[dict[Place, float]] = []
    for side in (0, 1):
        own = {place: (each[side], each[1 - side]) for place, each in known.items() if each[side].is_real}
        sizes = {place: x.size for place, (x, y) in own.items() if y.size < _OTHER_SIDE * x.size}
        alone.append(_unexplained(judging, sizes))
    which = max((0, 1), key=lambda side: max(alone[side].values(), default=0.0))
    if alone[which]:
        found = alone[which]
        code = "weights-stay" if all(known[place][which].stays for place in found) else "weights-change-otherwise"
        theirs = sum(known[place][1 - which].is_real for place in found)
        told = Note(code, {"side": "AB"[which], "when": when, **_largest(judging, found, len(known))})
        other = note("changed-there-too", count=theirs) if theirs else note("not-changed-there")
        advice = "set-back-behind-optimizer-step" if code == "weights-stay" else "behind-optimizer-step"
        _find(judging, found, (told, other, note(advice)))
        return
    found, times = _apart(judging, known)
    if found:
        told = note("both-change-weights-otherwise", when=when, **_largest(judging, found, len(known)))
        _find(judging, found, (told, note("changes-as-long", times=times), note("behind-optimizer-step")))


def _changes(judging: Judging) -> _Both:
    """Return what changes the weights of both sides beside their updates."""
    parameters = judging.step.parameters
    before = {event.place: event for event, *_ in judging.before}
    updates = {event.place: event for event in parameters.events(Phase.UPDATE, Role.DELTA)}
    found: _Both = {}
    for event in parameters.events(Phase.UPDATE, Role.PARAM):
        place, first, update = event.place, before.get(event.place), updates.get(event.place)
        if place is None or first is None or update is None:
            continue
        changes = _change(event.a, first.a, update.a), _change(event.b, first.b, update.b)
        if changes[0] is not None and changes[1] is not None:
            found[place] = changes[0], changes[1]
    return found


def _change(left: Tensor | None, begun: Tensor | None, update: Tensor | None) -> _Change | None:
    sketches = [each.sketch if each is not None else None for each in (left, begun, update)]
    if left is None or begun is None or update is None or any(each is None for each in sketches) or not left.norm:
        return None
    after, before, delta = sketches
    assert after is not None and before is not None and delta is not None
    rounding = (BACKWARD.floor(2**-24) + left.u) * left.norm + UPDATE_GAIN * left.u * update.norm
    return _Change(after - before - delta, left.norm, rounding, left.hash is not None and left.hash == begun.hash)


def _apart(judging: Judging, known: _Both) -> tuple[dict[Place, float], float]:
    """Return changes of both sides that differ by more than the updates and weights that they are made of explain."""
    errors = {
        event.place: each.error for event, each in judging.verdicts.by_event.items() if event.phase is Phase.GRADIENT
    }
    found: dict[Place, float] = {}
    lengths = [0.0, 0.0]
    for place, (a, b) in known.items():
        if not (a.is_real and b.is_real):
            continue
        sizes = [float(np.linalg.norm(each.sketch)) for each in (a, b)]
        lengths = [math.hypot(total, size) for total, size in zip(lengths, sizes, strict=True)]
        gap = float(np.linalg.norm(a.sketch - b.sketch)) / max(sizes)
        steps = UPDATE_GAIN * math.sqrt(max(errors.get(place, 1.0), 2**-24)) + (a.rounding + b.rounding) / max(sizes)
        if gap > max(_OTHER_SIDE, steps):
            found[place] = gap
    return _unexplained(judging, found), lengths[1] / lengths[0] if lengths[0] else math.inf


def _unexplained(judging: Judging, found: dict[Place, float]) -> dict[Place, float]:
    """Return the changes of weights that the step left further apart than the rung that judges lets pass."""
    step = judging.step
    events = {event.place: event for event in step.parameters.events(Phase.UPDATE, Role.PARAM)} if found else {}
    errors = {place: step.error(events[place]) for place in found}
    passed = {place for place, error in errors.items() if error and judging.noise.explains(events[place], error)}
    return {place: size for place, size in found.items() if place not in passed}


def _largest(judging: Judging, found: dict[Place, float], known: int) -> dict[str, object]:
    module, slot = max(found, key=lambda place: found[place])
    path = judging.step.path(module)
    return {"count": len(found), "known": known, "largest": max(found.values()), "slot": slot, "path": path}


def _find(judging: Judging, found: dict[Place, float], facts: tuple[Note, ...]) -> None:
    """Name the weights; between steps they changed before the forward pass that shows it."""
    findings, paths = judging.verdicts.findings, {judging.step.path(module) for module, _ in found}
    if findings and (judging.is_first or not paths.intersection(findings[0].paths)):
        return
    findings.clear()
    path = paths.pop() if len(paths) == 1 else ""
    judging.finds(Phase.UPDATE, (path,), None, 0.0, "behind-optimizer", facts=facts)
