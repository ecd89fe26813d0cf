"""The test vectors of docs/reference/file-format.md."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np

from probe.numbers.packed import unpack
from probe.numbers.statistics import dtype_of
from probe.records import HashKind, TensorStats

SPECIFICATION = Path(__file__).parent.parent / "docs" / "reference" / "file-format.md"


def blocks(language: str) -> list[str]:
    """Return the fenced blocks of the specification in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", SPECIFICATION.read_text(encoding="utf-8"), re.M | re.S)


def vectors() -> list[dict[str, Any]]:
    """Return the vectors, as they stand there."""
    return json.loads(blocks("json")[0])


def array_of(vector: dict[str, Any]) -> np.ndarray:
    """Return the tensor of a vector: x[n] = (7919·n mod 1013) − 506."""
    dtype, shape = dtype_of(vector["dtype"]), vector["shape"]
    count = math.prod(shape) * (2 if dtype.kind == "c" else 1)
    x = (np.arange(count) * 7919 % 1013 - 506).astype(np.float64)
    if dtype.kind == "c":
        return (x[::2] + 1j * x[1::2]).astype(dtype).reshape(shape)
    if dtype.kind == "b":
        return (x > 0).reshape(shape)
    x = x.astype(dtype)
    if vector.get("special"):
        x[[3, 5, 6, 10, 11]] = np.nan, np.inf, -np.inf, 0.0, -0.0
    return x.reshape(shape)


def assert_vector(stats: TensorStats | bytes, vector: dict[str, Any]) -> None:
    """Require what a vector says: integers and hashes exactly, the rest to 1e-14."""
    if isinstance(stats, bytes):
        stats = unpack(stats)
    for name in ("min", "max", "mean", "rms", "norm"):
        actual, expected = getattr(stats, name), vector[name]
        assert math.isnan(actual) if expected is None else math.isclose(actual, expected, rel_tol=1e-14), name
    assert all(getattr(stats, name) == vector[name] for name in ("nan", "posinf", "neginf", "zeros"))
    np.testing.assert_array_equal(stats.sketch, vector["sketch"])
    algorithm = "xxh3_128" if stats.hash_kind is HashKind.XXH3_128 else "wsum64"
    assert f"{stats.hash_hi:016x}{stats.hash_lo:016x}" == vector[algorithm]
