"""One side is a multiple of the other: of which findings it is said, and by which numbers factors are mistaken."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from probe.answer.result import Kind
from probe.diagnosis.evidence import Evidence, once
from probe.diagnosis.hint import Found, graded, strong
from probe.notes import Note, note
from probe.records import Phase, Role

_FACTOR = 1e-3
"""a factor is a known number if it is one up to this, or up to the noise"""
_PARALLEL, _ESTIMATED = 0.995, 0.98
"""least cosine of an error and of B with A, from values and from sketches"""
_BESIDE = 1e-2
"""share of the difference of two sketches up to which it has no other direction than theirs"""
_DROPOUTS = (0.05, 0.1, 0.15, 0.2, 0.3)

Number = tuple[float, dict[str, object]]
"""a number, and the facts that tell of it"""


@once
def factor_of(evidence: Evidence) -> tuple[float, bool] | None:
    """Return what B is times A, and whether that is computed from values."""
    values, metrics = evidence.values, evidence.metrics
    if values is not None:
        squares = float(np.vdot(values.a, values.a))
        factor = float(np.vdot(values.a, values.b)) / squares if squares else 0.0
        fits = values.a.size > 1 and factor and evidence.explains(factor * values.a, values.b)
        return (factor, True) if fits else None
    a, b = (half.tensor.sketch for half in evidence.halves)
    are_known = metrics.norm_a and metrics.norm_b and metrics.estimated and evidence.size > 1
    if not are_known or a is None or b is None or not a.any():
        return None
    along = float(a @ b) / float(a @ a)
    rest, least = float(np.linalg.norm(b - along * a)), min(float(np.linalg.norm(b - a)), float(np.linalg.norm(b)))
    return (math.copysign(metrics.norm_ratio, along), False) if rest <= _BESIDE * least else None


def multiple(
    evidence: Evidence, of: str = "", numbers: str = "any", within: float = 0.0, code: str = "multiple"
) -> Found | None:
    """B is a multiple of A.

    ``of`` names the findings that it is said of (`_OF`), ``numbers`` the factors that it may be (`_NUMBERS`). A
    factor may be ``within`` so much of such a number; where that is 0, the noise says it.
    """
    found = factor_of(evidence) if not of or _OF[of](evidence) else None
    for number, facts in _NUMBERS[numbers](evidence, found[0]) if found is not None else ():
        is_one = math.isclose(found[0], number, rel_tol=within) if within else _is(evidence, found[0], number)
        if number != 1 and is_one:
            more = {"meaning": facts.get("meaning")} if code == "multiple" else {}
            return graded(found[1], Note(code, facts | more), factor=facts.get("factor", number))
    return None


def _is(evidence: Evidence, factor: float, number: float) -> bool:
    return abs(factor / number - 1) <= min(_FACTOR, max(4 * evidence.limit, 1e-6), abs(number - 1) / 4 or _FACTOR)


def uniform(evidence: Evidence, of: str = "") -> Found | None:
    """Any factor."""
    if of and not _OF[of](evidence):
        return None
    found, metrics = factor_of(evidence), evidence.metrics
    if found is None:
        # what is much smaller errs parallel to A
        is_parallel = min(abs(metrics.coherence), abs(metrics.cosine)) > (
            _ESTIMATED if metrics.estimated else _PARALLEL
        )
        if not metrics.norm_a or evidence.role is Role.VALUE or not is_parallel:
            return None
        found = math.copysign(metrics.norm_ratio, metrics.cosine), False
    said = note("multiple", factor=found[0], meaning=note("uniform-scale"))
    return graded(found[1], said, factor=found[0])


def loss_times_a_count(evidence: Evidence) -> Found | None:
    """A loss times a number of samples, positions, tokens or micro-batches."""
    metrics = evidence.metrics
    if evidence.finding.phase is not Phase.LOSS or not metrics.norm_a or not evidence.is_number:
        return None
    for factor, facts in _counts(evidence):
        if math.isclose(metrics.norm_ratio, factor, rel_tol=1e-4):
            return strong(note("loss-times-a-count", **facts, adding="B" if factor > 1 else "A"), factor=factor)
    return None


# The numbers


def _counts(evidence: Evidence, _: float = 0.0) -> Iterator[Number]:
    """Yield what losses and gradients are divided by, and multiplied by, where it is more than one."""
    found = [("number-of-micro-batches", count) for count in evidence.micro_batches]
    found += [("world-size", half.reader.info.world_size) for half in evidence.halves]
    if evidence.tokens is None:
        found.append(
            ("number-of-samples", next((x.shape[0] for _, x in evidence.model_inputs(evidence.a) if x.ndim > 1), 0))
        )
    else:
        samples, positions = evidence.tokens
        found += [("number-of-samples", samples), ("number-of-tokens", samples * positions),
                  ("number-of-tokens-with-a-next", samples * (positions - 1)), ("number-of-positions", positions),
                  ("number-of-next-tokens", positions - 1)]  # fmt: skip
    for of, count in ((Note(of), float(count)) for of, count in found if count > 1):
        for factor in (count, 1 / count):
            yield factor, {"factor": factor, "count": count, "of": of}


def _sizes(evidence: Evidence, factor: float) -> Iterator[Number]:
    """Yield factors of the model's sizes, and of dropout."""
    width = float((evidence.a.tensor.shape[-1:] or (1,))[0])
    sizes = [(note("width"), width)]
    if evidence.has_known_heads:
        sizes += [(note("head-size"), width / n) for n in evidence.heads(int(width))]
    found = [(note("root-of-two"), math.sqrt(2.0)), (note("one-over-root-of-two"), math.sqrt(0.5))]
    for of, size in sizes:
        found.append((note("root-of-size", size=size, of=of), math.sqrt(size)))
        found.append((note("one-over-root-of-size", size=size, of=of), size**-0.5))
    found += [(note("kept-by-dropout", rate=rate), 1 / (1 - rate)) for rate in _DROPOUTS]
    yield from ((number, {"factor": factor, "meaning": meaning}) for meaning, number in found)


_NUMBERS: dict[str, Callable[[Evidence, float], Iterator[Number]]] = {
    "any": lambda _, factor: iter([(factor, {"factor": factor})]),
    "two": lambda _, __: ((number, {"factor": number}) for number in (2.0, 0.5)),
    "minus one": lambda _, __: iter([(-1.0, {})]),
    "sizes": _sizes,
    "counts": _counts,
}


# The findings


def _is_of_one_parameter(evidence: Evidence) -> bool:
    """Return True if a gradient was charged to the module that it belongs to, and not to the whole model."""
    return evidence.role is Role.PARAM_GRAD and bool(evidence.finding.path)


def _is_of_one_module(evidence: Evidence) -> bool:
    """Return True if a module in the midst of backward was charged: what ran back before it agrees, so it is not the loss."""
    return evidence.finding.phase is Phase.BACKWARD and bool(evidence.finding.path)


def _is_not_minus_one(evidence: Evidence) -> bool:
    found = factor_of(evidence)
    return found is None or abs(found[0] + 1) >= _FACTOR  # that is another sign


def _is_used_gradient(evidence: Evidence) -> bool:
    return evidence.phase is Phase.UPDATE and evidence.role is Role.PARAM_GRAD


_OF: dict[str, Callable[[Evidence], bool]] = {
    "inputs": lambda each: each.finding.kind is Kind.INPUTS and not each.is_of_integers,
    "one parameter": _is_of_one_parameter,
    "one module": lambda each: _is_of_one_module(each) and _is_not_minus_one(each),
    "all": lambda each: not _is_of_one_parameter(each) and not _is_of_one_module(each),
    "used": _is_used_gradient,
    "left": lambda each: not _is_used_gradient(each),
}
