"""What gradients, clipping and updates tell."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from probe.diagnosis.evidence import Evidence, Half, are_of_ranks, distance, read
from probe.diagnosis.hint import Found, strong, verified
from probe.diagnosis.optimizer.gradients import is_added, treated_otherwise
from probe.notes import note, sides
from probe.numbers.sketch import WIDTH
from probe.records import Phase, Role

_CLOSE = 1e-3
_PARALLEL = 0.999
"""cosine from which a difference of sketches is a multiple of another"""


# Gradients


def linear_gradient(evidence: Evidence) -> Found | None:
    """A linear layer's gradient is not what its input, weight and output's gradient give."""
    factors = fits_linear_gradient(evidence)
    if factors is None or (factors[0] == 1) == (factors[1] == 1):
        return None
    right, wrong = sides(factors[0] == 1).values()
    factor = factors["AB".index(wrong)]
    return verified(note("gradient-of-linear", right=right, wrong=wrong, factor=factor), wrong=wrong, factor=factor)


def fits_linear_gradient(evidence: Evidence) -> tuple[float | None, float | None] | None:
    """Return what each side's gradient is times the one that a linear layer's recorded input, weight and output's gradient give.

    It is 1 where it is that one up to noise, None for a side of which it is no multiple. None where that is not known of both.
    """
    factors: list[float | None] = []
    for half in evidence.halves:
        own = half.values
        expected = next((e for e in _expected(half, evidence) if own is not None and e.shape == own.shape), None)
        if own is None or expected is None:
            return None
        squares = float(np.vdot(expected, expected))
        factor = float(np.vdot(expected, own)) / squares if squares else 0.0
        is_own = distance(expected, own) <= max(min(evidence.limit, 1e-4), 1e-3 * evidence.error)
        factors.append(1.0 if is_own else factor if evidence.explains(factor * expected, own) else None)
    return factors[0], factors[1]


def _expected(half: Half, evidence: Evidence) -> Iterator[np.ndarray]:
    """Yield what a linear layer's gradient should be."""
    weight = half.parameter("weight")
    if weight is None or weight.ndim != 2:
        return
    calls = half.calls if evidence.role is Role.PARAM_GRAD else [half.call]
    if len(calls) != 1:
        return
    gradients, inputs = ([read(each) for each in calls[0](role).values()] for role in (Role.GRAD_OUTPUT, Role.INPUT))
    for g in gradients[:1]:
        if g is None or g.shape[-1] != weight.shape[0]:
            return
        if evidence.role is Role.GRAD_INPUT:
            yield g @ weight
        elif evidence.role is Role.PARAM_GRAD and evidence.phase is Phase.GRADIENT:
            flat = g.reshape(-1, g.shape[-1])
            yield flat.sum(axis=0)
            for x in inputs[:1]:
                if x is not None and x.shape[:-1] == g.shape[:-1]:
                    yield flat.T @ x.reshape(-1, x.shape[-1])


def gradient_of_one_rank(evidence: Evidence) -> Found | None:
    """On one side, a linear layer passes back only this rank's product."""
    fits = fits_linear_gradient(evidence) if are_of_ranks(evidence) else None
    if fits is None or (fits[0] is None) == (fits[1] is None) or 1.0 not in fits:
        return None
    said = note("gradient-of-one-rank", **sides(fits[0] is not None))
    return verified(said, by="from-weight-and-gradient", alone=said.facts["side"])


def straight_through(evidence: Evidence) -> Found | None:
    """One side passes the gradient through unchanged."""
    a, b = (
        own is not None and any(evidence.explains(given, own) for given in half.given(Role.GRAD_OUTPUT))
        for half, own in ((each, each.values) for each in evidence.halves)
    )
    side = "A" if a else "B"
    return verified(note("gradient-passed-through", side=side), side=side) if a != b else None


# The optimizer


def clipping(evidence: Evidence) -> Found | None:
    """All gradients are scaled between backward and the optimizer, told from their norms."""
    if evidence.phase is not Phase.UPDATE:
        return None
    done = treated_otherwise(evidence.a.side, evidence.b.side)
    return verified(done, by="from-norms") if done is not None and not is_added(done) else None


def weight_decay(evidence: Evidence) -> Found | None:
    """Two updates, or used gradients, differ by a multiple of the parameter."""
    is_used = evidence.role is Role.PARAM_GRAD and evidence.phase is Phase.UPDATE
    if not (is_used or evidence.role is Role.DELTA):
        return None
    weight = evidence.a.belonging(evidence.a.name)
    sketches = [half.tensor.sketch for half in evidence.halves]
    parameter = weight.sketch if weight is not None else None
    if parameter is None or sketches[0] is None or sketches[1] is None or evidence.size < WIDTH // 4:
        return None
    difference = sketches[1] - sketches[0]
    lengths = float(np.linalg.norm(difference)) * float(np.linalg.norm(parameter))
    along = float(difference @ parameter) / float(parameter @ parameter) if lengths else 0.0
    if not lengths or abs(difference @ parameter) < _PARALLEL * lengths:
        return None
    group = evidence.a.group
    rate = group.hyper.get("lr") if group is not None else None
    more = None
    if isinstance(rate, float) and rate and not is_used:
        more = note("more-weight-decay", rate=rate, decay=abs(along) / rate, side="B" if along < 0 else "A")
    said = note("difference-is-multiple-of-parameter", of_gradients=is_used, factor=along, more=more)
    return verified(said, by="from-sketches", factor=along)


def learning_rate(evidence: Evidence) -> Found | None:
    """One update is a multiple of the other."""
    metrics = evidence.metrics
    if not metrics.norm_a or not metrics.cosine > _PARALLEL:
        return None
    factor = metrics.norm_ratio
    if abs(factor - 1) < 10 * _CLOSE or all(map(_is_by_hand, evidence.halves)):
        return None
    rates = [None if half.group is None else half.group.hyper.get("lr") for half in evidence.halves]
    are_known = all(isinstance(rate, (int, float)) and rate for rate in rates)
    if are_known and math.isclose(rates[1] / rates[0], factor, rel_tol=0.01):
        return verified(note("update-as-learning-rate", factor=factor, a=rates[0], b=rates[1]), factor=factor)
    return strong(note("update-is-a-multiple", factor=factor), factor=factor)


def _is_by_hand(half: Half) -> bool:
    """Return True if an update came without an optimizer, and without a gradient, that was seen: an average of weights."""
    return half.group is None and half.belonging(half.name, Role.PARAM_GRAD, Phase.GRADIENT) is None
