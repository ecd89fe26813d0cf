"""Arrays to try statistics with, and what it means that two implementations agree."""

from __future__ import annotations

from collections.abc import Sequence

import hypothesis.extra.numpy as npst
import numpy as np
from hypothesis import strategies as st

from probe.numbers.packed import unpack
from probe.numbers.statistics import dtype_of
from probe.records import TensorStats

DTYPES = (
    "float32", "float64", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "complex64", "complex128",
    "bool", "int8", "int16", "int32", "int64", "uint8",
)  # fmt: skip
"""the dtypes that every adapter is tried with unless it says otherwise"""


def arrays(dtypes: Sequence[str] = DTYPES, max_side: int = 7) -> st.SearchStrategy[np.ndarray]:
    """Return arrays of every dtype and of 0 to 4 axes, empty ones, NaN, ±Inf, −0.0 and subnormals among them.

    float64 stays within ±1e100, so that squares can be added up.
    """
    return st.sampled_from(list(dtypes)).flatmap(lambda name: _arrays_of(dtype_of(name), max_side))


def _arrays_of(dtype: np.dtype, max_side: int) -> st.SearchStrategy[np.ndarray]:
    shapes = npst.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=max_side)
    if dtype.type.__module__.startswith("ml_dtypes"):
        bits = npst.arrays(np.dtype(f"u{dtype.itemsize}"), shapes)
        return bits.map(lambda array: array.view(dtype))
    if dtype not in (np.float64, np.complex128):
        return npst.arrays(dtype, shapes)
    special = st.sampled_from([np.nan, np.inf, -np.inf, -0.0])
    numbers = st.floats(-1e100, 1e100) | special
    return npst.arrays(dtype, shapes, elements=st.builds(complex, numbers, numbers) if dtype.kind == "c" else numbers)


def sample(shape: tuple[int, ...], seed: int = 0, dtype: str = "float32") -> np.ndarray:
    """Return normally distributed numbers, the same for the same seed."""
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype_of(dtype))


def assert_stats_agree(actual: TensorStats | bytes, expected: TensorStats, tolerance: float = 1e-12) -> None:
    """Require the same statistics, packed or not: counts, hash, min and max exactly, the rest to a relative error."""
    if isinstance(actual, bytes):
        actual = unpack(actual)
    for name in ("min", "max", "nan", "posinf", "neginf", "zeros", "hash_kind", "hash_hi", "hash_lo"):
        a, b = getattr(actual, name), getattr(expected, name)
        assert a == b or (a != a and b != b), f"{name}: {a!r}, expected {b!r}"
    largest = max(abs(expected.min), abs(expected.max))  # where squares are below the range of float64
    scales = {"mean": expected.rms, "rms": expected.rms, "norm": expected.norm}
    for name, scale in ((name, scale or largest) for name, scale in scales.items()):
        a, b = getattr(actual, name), getattr(expected, name)
        assert a == b or abs(a - b) <= tolerance * scale + 1e-300 or (a != a and b != b), (
            f"{name}: {a!r}, expected {b!r}"
        )
    assert actual.sketch.shape == expected.sketch.shape and actual.sketch.dtype == np.float64
    scale = np.linalg.norm(expected.sketch) + (expected.norm if expected.norm == expected.norm else 0.0)
    assert np.abs(actual.sketch - expected.sketch).max() <= tolerance * scale + 1e-300, "sketch"
