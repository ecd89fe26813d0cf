"""Values that are off by rounding: what a module makes of them shows how much of an error of its own is noise."""

from __future__ import annotations

import numpy as np

from probe.numbers.statistics import as_real, is_float

_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_NARROWER = {"": 0, "bfloat16": 16, "float16": 13}
"""bits of float32 that a cast takes away"""


def moved(values: np.ndarray, generator: np.random.Generator, autocast: str = "") -> np.ndarray:
    """Return values each of which is one unit in the last place larger or smaller, at random; zeros and integers stay.

    Parameters
    ----------
    autocast
        dtype that operations on float32 are cast to: the unit is then that of it, since smaller moves are lost
    """
    if not (is_float(values.dtype) or values.dtype.kind == "c") or not values.size:
        return values
    real = np.array(as_real(values), order="C")
    flat = real.reshape(-1)
    words = flat.view(_WORDS[flat.dtype.itemsize])
    up = generator.integers(0, 2, flat.size, dtype=np.uint8).astype(words.dtype)
    lost = _NARROWER.get(autocast, 0) if flat.dtype == np.float32 else 0
    before = flat.copy()
    with np.errstate(over="ignore"):
        words += (2 * up - 1) << np.array(lost, words.dtype)
    kept = ~np.isfinite(before.astype(np.float64)) | (before == 0) | ~np.isfinite(flat.astype(np.float64))
    flat[kept] = before[kept]
    if values.dtype.kind == "c":
        return (real[..., 0] + 1j * real[..., 1]).astype(values.dtype)
    return real.reshape(values.shape)
