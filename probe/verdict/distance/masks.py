"""Masks of two notations: truth values, zeros and a large negative number, zeros and −inf."""

from __future__ import annotations

import math

import numpy as np

from probe.verdict.distance.error import Error, View
from probe.verdict.distance.estimates import from_sketches
from probe.verdict.tensors import Tensor

MASKING = -1e3
"""what an additive mask adds is at most this"""


def mask_error(a: Tensor, b: Tensor) -> Error | None:
    """Return the share of the positions that only one mask hides; None unless both are masks, in two notations."""
    low_a, low_b = fill_of(a), fill_of(b)
    is_truth = [low is None and _is_truth(tensor) for low, tensor in ((low_a, a), (low_b, b))]
    are_masks = all(low is not None or truth for low, truth in zip((low_a, low_b), is_truth, strict=True))
    if not are_masks or (low_a == low_b and (low_a is not None or "bool" not in (a.dtype, b.dtype))):
        return None
    if a.dtype == b.dtype and a.hash is not None and a.hash == b.hash:
        return None
    size = max(a.size, 1)
    if a.has_values and b.has_values and a.form == b.form:
        x, y = a.values() != 0, b.values() != 0
        shares = float(np.mean(x != y)), float(np.mean(x == y))
    else:
        set_a, set_b = a.size - a.zeros, b.size - b.zeros
        shares = abs(set_a - set_b) / size, abs(set_a + set_b - size) / size
        if all(is_truth) and a.form == b.form and a.sketch is not None and b.sketch is not None:
            shares = from_sketches(a, b).size, shares[1]
    if all(is_truth) and shares[0] <= shares[1]:
        return None
    share = min(shares) if any(is_truth) else shares[0]  # a truth value may mean hidden or shown
    return Error(share, 1.0, 1.0, view=View.MASK, is_bound=not a.has_values)


def are_masked_otherwise(a: Tensor, b: Tensor) -> bool:
    """Return True for scores that one side hides with −inf, and the other with a number that drowns the rest."""
    (hidden, other) = (a, b) if a.bad[2] else (b, a)
    return bool(hidden.bad[2]) and not any(other.bad) and not any(hidden.bad[:2]) and other.low <= MASKING


def fill_of(a: Tensor) -> float | None:
    """Return what an additive mask puts where nothing is attended to; None if the tensor is no such mask."""
    if a.kind != "float" or a.bad[0] or a.bad[1] or len(a.shape) < 2:
        return None
    if a.bad[2]:
        return -math.inf if not a.norm else None
    count = a.size - a.zeros
    if not count or a.low > MASKING or a.high not in (0.0, a.low):
        return None
    is_one_number = math.isinf(a.norm) or math.isclose(a.norm, -a.low * math.sqrt(count), rel_tol=1e-6)
    return a.low if is_one_number else None


def _is_truth(a: Tensor) -> bool:
    return a.kind == "integer" and a.low >= 0 and a.high <= 1 and len(a.shape) > 1
