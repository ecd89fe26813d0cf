"""How far two tensors are apart, by the best that was recorded: hashes, values, sketches, statistics."""

from __future__ import annotations

import math

from probe.verdict.distance.error import Error, View
from probe.verdict.distance.estimates import from_sketches, from_statistics, look_permuted
from probe.verdict.distance.masks import mask_error
from probe.verdict.distance.values import FITS, can_be_laid, from_values
from probe.verdict.tensors import Tensor


def measure(a: Tensor, b: Tensor, *, may_permute: bool = False, factor: float = 1.0) -> Error | None:
    """Return the error of B against A; None if the two cannot be compared.

    Parameters
    ----------
    may_permute
        axes of one size may stand in another order
    factor
        what A is multiplied by first
    """
    if a.size != b.size or not (a.is_known and b.is_known):
        return None
    if factor != 1 and a.kind != "integer":
        a = a.times(factor)
    is_laid_alike = a.form == b.form and a.axes == b.axes
    if a.hash is not None and a.hash == b.hash and a.dtype == b.dtype and is_laid_alike:
        return Error(0.0, a.norm, b.norm, view=View.EQUAL, max_abs=0.0)
    masks = mask_error(a, b)
    if masks is not None:
        return masks
    if (a.kind == "integer") != (b.kind == "integer"):
        return None
    if a.has_values and b.has_values and can_be_laid(a.form, b.form):
        return from_values(a, b, may_permute)
    if a.bad != b.bad:
        return Error(math.inf, a.norm, b.norm, view=View.NON_FINITE)
    if a.sketch is not None and b.sketch is not None and sorted(a.form) == sorted(b.form):
        found = from_sketches(a, b)
        has_equal_axes = len(set(a.form)) < len(a.form)
        if may_permute and found.size > FITS and has_equal_axes and look_permuted(a, b):
            return from_statistics(a, b)
        return found
    return None if a.kind == "integer" else from_statistics(a, b)
