"""What gradients, clipping and updates tell."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from probe.comparison.notes import note
from probe.diagnosis.causes.losses import counts
from probe.diagnosis.causes.patterns import factor_of
from probe.diagnosis.evidence import Evidence, Half, distance, read
from probe.diagnosis.grades import Found, strong, verified
from probe.numbers.sketch import WIDTH
from probe.records import Phase, Role

_GRADIENTS = (Role.GRAD_OUTPUT, Role.GRAD_INPUT, Role.GRAD_TOTAL, Role.PARAM_GRAD)
_CLOSE = 1e-3
_PARALLEL = 0.999
"""cosine from which a difference of sketches is a multiple of another"""


# Gradients


def gradient_factor(evidence: Evidence) -> Found | None:
    """A gradient is the other times a number of micro-batches, ranks, samples or tokens."""
    found = factor_of(evidence) if evidence.role in _GRADIENTS and not _is_of_one(evidence) else None
    if found is None or is_of_one_module(evidence):
        return None
    for meaning, count in counts(evidence):
        for factor in (count, 1 / count):
            if math.isclose(found[0], factor, rel_tol=_CLOSE):
                said = note("gradient-times-a-count", factor=factor, count=count, of=meaning)
                return verified(said, factor=factor) if found[1] else strong(said, factor=factor)
    return None


def one_gradient(evidence: Evidence) -> Found | None:
    """The gradient of one parameter is a multiple, while those of the others agree."""
    found = factor_of(evidence) if _is_of_one(evidence) else None
    if found is None:
        return None
    said = note("one-gradient-is-a-multiple", factor=found[0])
    return verified(said, factor=found[0]) if found[1] else strong(said, factor=found[0])


def _is_of_one(evidence: Evidence) -> bool:
    """Tell whether a gradient was charged to the module that it belongs to, and not to the whole model."""
    return evidence.role is Role.PARAM_GRAD and bool(evidence.finding.path)


def is_of_one_module(evidence: Evidence) -> bool:
    """Tell whether a module in the midst of backward was charged: what ran back before it agrees, so it is not the loss."""
    return evidence.finding.phase is Phase.BACKWARD and bool(evidence.finding.path)


def one_module(evidence: Evidence) -> Found | None:
    """What one module passes back, or gets, is a multiple, while what ran back before it agrees."""
    found = factor_of(evidence) if is_of_one_module(evidence) else None
    if found is None or abs(found[0] + 1) < _CLOSE:  # that is another sign
        return None
    said = note("gradient-is-a-multiple-from-here", factor=found[0])
    return verified(said, factor=found[0]) if found[1] else strong(said, factor=found[0])


def linear_gradient(evidence: Evidence) -> Found | None:
    """Of a linear layer: the side whose gradient is not what its recorded input, weight and output's gradient give."""
    factors = fits_linear_gradient(evidence)
    if factors is None or (factors[0] == 1) == (factors[1] == 1):
        return None
    right, wrong = ("A", "B") if factors[0] == 1 else ("B", "A")
    factor = factors["AB".index(wrong)]
    return verified(note("gradient-of-linear", right=right, wrong=wrong, factor=factor), wrong=wrong, factor=factor)


def fits_linear_gradient(evidence: Evidence) -> tuple[float | None, float | None] | None:
    """Return what each side's gradient is times the one that a linear layer's recorded input, weight and output's gradient give.

    It is 1 where it is that one up to noise, None for a side of which it is no multiple. None where that is not known of both.
    """
    if evidence.is_one_sided:
        return None
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


def straight_through(evidence: Evidence) -> Found | None:
    """One side passes back the gradient that it gets, as if the module were not there."""
    if evidence.role is not Role.GRAD_INPUT or evidence.values is None:
        return None
    is_passed = []
    for half in evidence.halves:
        own, given = half.values, half.given(Role.GRAD_OUTPUT)
        is_passed.append(
            own is not None and any(g.shape == own.shape and distance(g, own) <= evidence.tolerance for g in given)
        )
    if is_passed[0] == is_passed[1]:
        return None
    side = "A" if is_passed[0] else "B"
    return verified(note("gradient-passed-through", side=side), side=side)


# The optimizer


def clipping(evidence: Evidence) -> Found | None:
    """What was done to all gradients between backward and the optimizer, from their norms."""
    if evidence.phase is not Phase.UPDATE or evidence.role is not Role.PARAM_GRAD:
        return None
    done, numbers = [], {}
    for name, half in (("A", evidence.a), ("B", evidence.b)):
        found = _norms(half)
        if not found:
            return None
        raw, used = (math.hypot(*(pair[k] for pair in found)) for k in (0, 1))
        factors = [after / before for before, after in found if before > 1e-6 * raw]
        if not raw or not factors:
            return None
        if max(factors) - min(factors) > _CLOSE * max(factors):
            sizes = [after for before, after in found if after < (1 - _CLOSE) * before]
            if len(sizes) < 2 or not min(sizes) or max(sizes) - min(sizes) > _CLOSE * max(sizes):
                return None
            done.append(note("clips-each-gradient", norm=_digits(sizes[0])))
        elif abs(factors[0] - 1) <= _CLOSE:
            done.append(note("leaves-gradients", norm=_digits(raw)))
        else:
            factor = _digits(factors[0])
            done.append(note("multiplies-gradients", factor=factor, norm=_digits(used), before=_digits(raw)))
        numbers[name.lower()] = used
    if done[0] == done[1] or len(done) < 2:
        return None
    return verified(note("gradients-treated-otherwise", a=done[0], b=done[1]), by="from-norms", **numbers)


def _digits(number: float) -> float:
    """Return a number of the four digits that are told: norms that differ by less are the same."""
    return float(f"{number:.4g}")


def _norms(half: Half) -> list[tuple[float, float]]:
    """Return the norms of every gradient as backward left it and as it was used."""
    made, used = (half.params.get((phase, Role.PARAM_GRAD), {}) for phase in (Phase.GRADIENT, Phase.UPDATE))
    return [(tensor.norm, used[place].norm) for place, tensor in made.items() if place in used]


def weight_decay(evidence: Evidence) -> Found | None:
    """The difference of two updates, or of two gradients as used, is a multiple of the parameter."""
    is_used = evidence.role is Role.PARAM_GRAD and evidence.phase is Phase.UPDATE
    if evidence.is_one_sided or not (is_used or evidence.role is Role.DELTA):
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
    if evidence.role is not Role.DELTA or metrics is None or not metrics.norm_a or not metrics.cosine > _PARALLEL:
        return None
    factor = metrics.norm_ratio
    if abs(factor - 1) < 10 * _CLOSE or all(map(_is_by_hand, evidence.halves)):
        return None
    rates = [None if half.group is None else half.group.hyper.get("lr") for half in evidence.halves]
    if all(isinstance(rate, (int, float)) and rate for rate in rates) and math.isclose(
        rates[1] / rates[0], factor, rel_tol=0.01
    ):
        return verified(note("update-as-learning-rate", factor=factor, a=rates[0], b=rates[1]), factor=factor)
    return strong(note("update-is-a-multiple", factor=factor), factor=factor)


def _is_by_hand(half: Half) -> bool:
    """Tell whether an update came without an optimizer, and without a gradient, that was seen: an average of weights."""
    return half.group is None and half.belonging(half.name, Role.PARAM_GRAD, Phase.GRADIENT) is None
