"""How a loss was computed from the recorded logits and labels."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from probe.diagnosis.evidence import Call, Evidence, Half, once
from probe.diagnosis.hint import Found, verified
from probe.notes import Note, note
from probe.records import Phase, Role

_IGNORED = (None, -100, 0, 1)
_TOLERANCE = 2e-6
"""relative error of a loss in float32: more would make chance hits of the many ways"""
_SMOOTHINGS = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3)


@dataclass(frozen=True, slots=True)
class CrossEntropy:
    """A way to compute a cross entropy."""

    shift: Note
    ignored: Note
    smoothing: Note
    reduction: Note

    def differing(self, other: CrossEntropy) -> list[str]:
        """Return the parts in which two ways differ."""
        return [name for name in self.__dataclass_fields__ if getattr(self, name) != getattr(other, name)]


def loss(evidence: Evidence, part: str) -> Found | None:
    """Cross entropy of the recorded logits and labels; one part differs."""
    told = _told(evidence)
    if told is None or told[0].differing(told[1]) != [part]:
        return None
    a, b = (getattr(way, part) for way in told)
    return verified(note("cross-entropies", a=a, b=b), by="from-logits-and-labels", a=a, b=b)


def added_up(evidence: Evidence) -> Found | None:
    """The losses of micro-batches agree, the number given for the step does not."""
    metrics = evidence.metrics
    if evidence.finding.phase is not Phase.LOSS or not evidence.is_one_sided:
        return None
    returned = _returned(evidence)
    if returned is None:
        return None
    a, b = returned
    if not np.allclose(a, b, rtol=min(evidence.limit, evidence.error / 4), atol=0.0):
        return None
    given = [Note(_made_of(*each)) for each in ((a, metrics.norm_a), (b, metrics.norm_b))] if len(a) > 1 else []
    ways = tuple(given) if len(set(given)) > 1 else ()
    said = note("loss-of-step-differs", micro_batches=len(a), ways=ways)
    return verified(said, by="from-outputs", micro_batches=len(a))


def _returned(evidence: Evidence) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the single number that the whole model returned in each micro-batch of training."""
    a, b = ([_single_number(call) for _, call in half.roots] for half in evidence.halves)
    return (np.array(a), np.array(b)) if a and None not in (*a, *b) else None


def _single_number(call: Call) -> float | None:
    """Return the one output that is a single number, None where several are or none is."""
    found = [tensor.mean for tensor in call(Role.OUTPUT).values() if tensor.size == 1 and tensor.kind == "float"]
    return found[0] if len(found) == 1 else None


def _made_of(returned: np.ndarray, given: float) -> str:
    for code, number in (
        ("mean-of-micro-batches", returned.mean()),
        ("sum-of-micro-batches", returned.sum()),
        ("last-micro-batch", returned[-1]),
    ):
        if math.isclose(abs(number), given, rel_tol=_TOLERANCE):
            return code
    return "neither-mean-nor-sum"


@once
def _told(evidence: Evidence) -> tuple[CrossEntropy, CrossEntropy] | None:
    metrics = evidence.metrics
    if evidence.finding.phase is not Phase.LOSS or not evidence.is_number:
        return None
    sides = []
    for half, value in ((evidence.a, metrics.norm_a), (evidence.b, metrics.norm_b)):
        close = min(_TOLERANCE, evidence.error / 4) * value
        sides.append([way for way, each in _losses(evidence, half) if abs(each - value) <= close])
    apart = [(len(a.differing(b)), a, b) for a, b in itertools.product(*sides)]
    if any(not count for count, *_ in apart):
        return None
    return next(((a, b) for count, a, b in apart if count == 1), None)


def _losses(evidence: Evidence, half: Half) -> Iterator[tuple[CrossEntropy, float]]:
    for logits, labels in _logits_and_labels(evidence, half):
        for shift, x, y in _shifts(logits, labels):
            logs = x - np.max(x, axis=-1, keepdims=True)
            logs = logs - np.log(np.exp(logs).sum(axis=-1, keepdims=True))
            yield from _reduced(logs, y, shift)


def _shifts(logits: np.ndarray, labels: np.ndarray) -> Iterator[tuple[Note, np.ndarray, np.ndarray]]:
    yield note("label-at-same-position"), logits, labels
    for by, code in ((1, "label-at-next-position"), (2, "label-two-positions-on")):
        if labels.ndim == 2 and labels.shape[1] > by:
            yield Note(code), logits[:, :-by], labels[:, by:]


def _reduced(logs: np.ndarray, labels: np.ndarray, shift: Note) -> Iterator[tuple[CrossEntropy, float]]:
    for ignored in _IGNORED:
        kept = np.ones(labels.shape, bool) if ignored is None else labels != ignored
        if (
            not kept.any()
            or (ignored is not None and kept.all())
            or ((labels < 0) & kept).any()
            or labels[kept].max() >= logs.shape[-1]
        ):
            continue
        without = note("all-tokens") if ignored is None else note("without-label", label=ignored)
        chosen = np.take_along_axis(logs, np.where(kept, labels, 0)[..., None], axis=-1)[..., 0]
        exact, smooth = -float(chosen[kept].sum()), -float(logs.mean(axis=-1)[kept].sum())
        divisors = {"mean-over-what-counts": int(kept.sum()), "sum-of-all": 1, "sum-over-samples": len(labels)}
        divisors |= {} if kept.all() else {"mean-over-all-tokens": labels.size}
        for reduction, divisor in divisors.items():
            way = CrossEntropy(shift, without, note("no-label-smoothing"), Note(reduction))
            yield way, exact / divisor
            for share in _SMOOTHINGS:
                smoothed = ((1 - share) * exact + share * smooth) / divisor
                yield replace(way, smoothing=note("label-smoothing", share=share)), smoothed


def _logits_and_labels(evidence: Evidence, half: Half) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    integers = [(slot, x) for slot, x in evidence.model_inputs(half) if x.dtype.kind == "i" and x.ndim in (1, 2)]
    labels = [x for _, x in sorted(integers, key=lambda pair: not pair[0].casefold().startswith(("label", "target")))]
    made = (*half.given(Role.OUTPUT), *(each.values for each in half.sources(False)))
    candidates = [x for x in made if x.ndim in (2, 3)]
    for logits in candidates:
        for each in labels:
            if logits.shape[:-1] == each.shape and logits.shape[-1] > 1:
                yield logits, each
