"""Numbers in fewer bits."""

from __future__ import annotations

import numpy as np

ROUNDED = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "TensorFloat-32": 2.0**-11}
"""unit roundoff by name"""
_BITS = {"bfloat16": 16, "TensorFloat-32": 13}
"""bits of a float32 that are dropped"""


def rounded(values: np.ndarray, name: str) -> np.ndarray:
    """Return numbers rounded to the nearest of a narrower format, as float64."""
    if name == "float16":
        with np.errstate(over="ignore"):
            return values.astype(np.float16).astype(np.float64)
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    drop = np.uint32(_BITS[name])
    half = np.uint32((1 << (int(drop) - 1)) - 1)
    even = (bits >> drop) & np.uint32(1)
    kept = ((bits + half + even) >> drop) << drop
    return kept.view(np.float32).astype(np.float64).reshape(values.shape)


def is_rounded(values: np.ndarray, name: str) -> bool:
    """Tell whether all numbers have a narrower format."""
    return bool(np.array_equal(rounded(values, name), values))
