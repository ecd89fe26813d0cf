"""Gated layers, f(gate) · up, that take one of the two for the other."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from probe.comparison.hints.evidence import Evidence, distance
from probe.comparison.hints.formulas import ACTIVATIONS, common_sources
from probe.comparison.hints.grades import Found, verified
from probe.records import Role

_MOST = 4
"""tensors that are tried"""


def exchanged_gate(evidence: Evidence) -> Found | None:
    """One side applies its activation to the other of the two factors."""
    values = evidence.values
    if values is None or evidence.role not in (Role.INPUT, Role.OUTPUT):
        return None
    sources = evidence.once(common_sources)[0]
    factors = [x.reshape(values.a.shape) for x in sources if x.size == values.a.size][:_MOST]
    best = ("", evidence.tolerance)
    for name, one, other in _ways(factors):
        rest = max(distance(one, values.a), distance(other, values.b))
        best = (name, rest) if rest <= best[1] else best
    if not best[0]:
        return None
    text = f"A multiplies {best[0]} of one tensor by the other, B {best[0]} of the other by the first: gate and up change places"
    return verified(text, by="what was recorded", activation=best[0])


def _ways(factors: list[np.ndarray]) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    for name, function in ACTIVATIONS.items():
        if name != "the identity":
            for x, y in itertools.permutations(factors, 2):
                yield name, function(x) * y, function(y) * x
