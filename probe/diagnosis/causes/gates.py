"""Gated layers, f(gate) · up, that take one of the two for the other."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from probe.comparison.notes import note
from probe.diagnosis.evidence import Evidence, distance
from probe.diagnosis.formulas import ACTIVATIONS, IDENTITY, common_sources
from probe.diagnosis.grades import Found, verified
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
    return verified(note("gate-and-up-exchanged", activation=best[0]), by="from-records", activation=best[0])


def _ways(factors: list[np.ndarray]) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    for name, function in ACTIVATIONS.items():
        if name != IDENTITY:
            for x, y in itertools.permutations(factors, 2):
                yield name, function(x) * y, function(y) * x
