"""How a loss was computed from the recorded logits and labels."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from probe.comparison.notes import Note, note
from probe.diagnosis.evidence import Call, Evidence, Half
from probe.diagnosis.grades import Found, strong, verified
from probe.records import Phase, Role

_IGNORED = (None, -100, 0, 1)
_TOLERANCE = 2e-6
"""relative error of a loss in float32: more would make chance hits of the many ways"""
_SMOOTHINGS = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3)
_PARTS = ("shift", "ignored", "smoothing", "reduction")


@dataclass(frozen=True, slots=True)
class CrossEntropy:
    """A way to compute a cross entropy."""

    shift: Note
    ignored: Note
    smoothing: Note
    reduction: Note

    @property
    def parts(self) -> tuple[Note, ...]:
        """What may be mistaken."""
        return self.shift, self.ignored, self.smoothing, self.reduction


def loss(evidence: Evidence, part: str) -> Found | None:
    """Two cross entropies of the recorded logits and labels that differ in one part."""
    told = evidence.once(_told)
    if told is None:
        return None
    a, b = told
    differing = [name for name, x, y in zip(_PARTS, a.parts, b.parts, strict=True) if x != y]
    if differing != [part]:
        return None
    ways = [next(way for way, name in zip(each.parts, _PARTS, strict=True) if name == part) for each in (a, b)]
    said = note("cross-entropies", a=ways[0], b=ways[1])
    return verified(said, by="from-logits-and-labels", a=ways[0], b=ways[1])


def added_up(evidence: Evidence) -> Found | None:
    """What the model returned as its loss agrees in each micro-batch, and the number that was given for the step does not."""
    metrics = evidence.metrics
    if evidence.finding.phase is not Phase.LOSS or metrics is None or not evidence.is_one_sided:
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
    found: list[tuple[float, float]] = []
    for (_, call_a), (_, call_b) in zip(evidence.a.roots, evidence.b.roots, strict=True):
        a, b = _single_number(call_a), _single_number(call_b)
        if a is None or b is None:
            return None
        found.append((a, b))
    mine, theirs = np.array(found).reshape(-1, 2).T
    return (mine, theirs) if found else None


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


def loss_factor(evidence: Evidence) -> Found | None:
    """One loss is the other times a number of samples, positions, tokens or micro-batches."""
    metrics = evidence.metrics
    if evidence.finding.phase is not Phase.LOSS or metrics is None or not metrics.norm_a or not evidence.is_number:
        return None
    for meaning, count in counts(evidence):
        for factor, side in ((count, "B"), (1 / count, "A")):
            if math.isclose(metrics.norm_ratio, factor, rel_tol=1e-4):
                return strong(
                    note("loss-times-a-count", factor=factor, count=count, of=meaning, adding=side), factor=factor
                )
    return None


def counts(evidence: Evidence) -> list[tuple[Note, float]]:
    """Return numbers that losses and gradients are divided by, those that are more than one."""
    found = [("number-of-micro-batches", count) for count in evidence.micro_batches]
    found += [("world-size", half.reader.info.world_size) for half in evidence.halves]
    batch = next((x.shape[0] for _, x in evidence.model_inputs(evidence.a) if x.ndim > 1), 0)
    if evidence.tokens is None:
        found.append(("number-of-samples", batch))
    else:
        samples, positions = evidence.tokens
        found += [("number-of-samples", samples), ("number-of-tokens", samples * positions),
                  ("number-of-tokens-with-a-next", samples * (positions - 1)), ("number-of-positions", positions),
                  ("number-of-next-tokens", positions - 1)]  # fmt: skip
    return [(Note(of), float(count)) for of, count in found if count > 1]


def _told(evidence: Evidence) -> tuple[CrossEntropy, CrossEntropy] | None:
    metrics = evidence.metrics
    if evidence.finding.phase is not Phase.LOSS or metrics is None or not evidence.is_number:
        return None
    sides = []
    for half, value in ((evidence.a, metrics.norm_a), (evidence.b, metrics.norm_b)):
        close = min(_TOLERANCE, evidence.error / 4) * value
        sides.append([way for way, each in _losses(evidence, half) if abs(each - value) <= close])
    pairs = itertools.product(*sides)
    apart = [(sum(x != y for x, y in zip(a.parts, b.parts, strict=True)), a, b) for a, b in pairs]
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
    if labels.ndim == 2 and labels.shape[1] > 1:
        yield note("label-at-next-position"), logits[:, :-1], labels[:, 1:]
    if labels.ndim == 2 and labels.shape[1] > 2:
        yield note("label-two-positions-on"), logits[:, :-2], labels[:, 2:]


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
        number, everything = int(kept.sum()), labels.size
        divisors = {
            "mean-over-what-counts": number,
            "sum-of-all": 1,
            "sum-over-samples": len(labels),
        }
        if everything != number:
            divisors["mean-over-all-tokens"] = everything
        for reduction, divisor in divisors.items():
            way = CrossEntropy(shift, without, note("no-label-smoothing"), Note(reduction))
            yield way, exact / divisor
            for share in _SMOOTHINGS:
                yield (
                    replace(way, smoothing=note("label-smoothing", share=share)),
                    ((1 - share) * exact + share * smooth) / divisor,
                )


def _logits_and_labels(evidence: Evidence, half: Half) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    integers = [(slot, x) for slot, x in evidence.model_inputs(half) if x.dtype.kind == "i" and x.ndim in (1, 2)]
    labels = [x for _, x in sorted(integers, key=lambda pair: not pair[0].casefold().startswith(("label", "target")))]
    made = (*half.given(Role.OUTPUT), *(each.values for each in half.sources(False)))
    candidates = [x for x in made if x.ndim in (2, 3)]
    for logits in candidates:
        for each in labels:
            if logits.shape[:-1] == each.shape and logits.shape[-1] > 1:
                yield logits, each
