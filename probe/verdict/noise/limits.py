"""Limits that know what gives them, where that is not a row of the noise rule."""

from __future__ import annotations

import math

from probe.answer.why import Limit
from probe.verdict.noise.model import UPDATE_FLIPS, UPDATE_GAIN, UPDATE_NORM


def widened(limit: float, **reasons: float) -> float:
    """Return the largest of a limit and others, which are named by their reasons."""
    for why, each in reasons.items():
        limit = Limit(each, why) if each > limit else limit
    return limit


def update_limit(gradient: float, u: float, weight: float, update: float, count: int) -> tuple[float, float]:
    """Return the noise of an update δ, and the limit of its error.

    Adam divides by the size of the gradient, which leaves √e; the stored weight rounds δ; elements whose gradient is
    rounding flip their sign.
    ``gradient`` is an error; ``weight`` and ``update`` are norms.
    """
    root, stored, flips = math.sqrt(max(gradient, 4 * 2**-24)), u * weight / update, math.sqrt(UPDATE_FLIPS / count)
    parts = {"root_of_gradient": UPDATE_GAIN * root, "stored_weight": UPDATE_GAIN * stored, "flips": 2 * flips}
    return root + stored, Limit(sum(parts.values()), max(parts, key=parts.__getitem__))


def length_limit(noise: float, count: int) -> float:
    """Return by how much the length of so many elements' update may differ: noise lies in its direction by chance."""
    return max(UPDATE_NORM, 4 * noise * (1 / math.sqrt(count) + 0.2))
