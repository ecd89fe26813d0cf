"""How far two tensors are apart, by the best that was recorded: hashes, values, sketches, statistics."""

from __future__ import annotations

import math
from dataclasses import replace

from probe.verdict.distance.error import Error, View
from probe.verdict.distance.estimates import from_sketches, from_statistics, look_permuted
from probe.verdict.distance.masks import are_masked_otherwise, mask_error
from probe.verdict.distance.values import FITS, can_be_laid, from_values
from probe.verdict.tensors import Tensor


def measure(
    a: Tensor, b: Tensor, *, may_permute: bool = False, factor: float = 1.0, is_given: bool = True
) -> Error | None:
    """Return the error of B against ``factor`` times A; None if the two cannot be compared.

    ``may_permute``: axes of one size may stand in another order; ``is_given``: it is an input, which a side may mask.
    """
    if a.size != b.size or not (a.is_known and b.is_known):
        return None
    if factor != 1 and a.kind != "integer":
        a = a.times(factor)
    is_laid_alike = a.form == b.form and a.axes == b.axes
    if a.hash is not None and a.hash == b.hash and a.dtype == b.dtype and is_laid_alike:
        return Error(0.0, a.norm, b.norm, view=View.EQUAL, max_abs=0.0)
    if not a.size:
        return Error(0.0)
    is_counted = not (a.is_summary or b.is_summary)
    masks = mask_error(a, b) if is_counted and (is_given or not a.kind == b.kind == "integer") else None
    if masks is not None:
        return masks
    if a.kind != b.kind or are_masked_otherwise(a, b):
        return None
    if a.has_values and b.has_values and can_be_laid(a.form, b.form):
        return from_values(a, b, may_permute)
    if a.bad != b.bad and (is_counted or any(bool(x) != bool(y) for x, y in zip(a.bad, b.bad, strict=True))):
        return Error(math.inf, a.norm, b.norm, view=View.NON_FINITE)
    if math.isinf(max(a.norm, b.norm)) and not any(a.bad):  # squares overflow
        return None
    if a.sketch is not None and b.sketch is not None and sorted(a.form) == sorted(b.form):
        found = from_sketches(a, b)
        may_permute &= found.size > max(FITS, math.sqrt(a.u), math.sqrt(b.u)) and len(set(a.form)) < len(a.form)
        if may_permute and math.isnan(a.low + b.low):  # of a sum, nothing but the sketch is known
            return None
        return replace(from_statistics(a, b), view=View.PERMUTED) if may_permute and look_permuted(a, b) else found
    if a.kind == "integer":
        is_told = (is_counted and a.zeros != b.zeros) or not look_permuted(a, b)
        return Error(1 / a.size, a.norm, b.norm, view=View.INTEGERS) if is_told else None
    return None if math.isnan(a.norm + b.norm) else from_statistics(a, b)
