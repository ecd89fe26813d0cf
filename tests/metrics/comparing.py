"""What the tests of metrics share."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from probe.answer.metrics import Metrics
from probe.store.reading.reader import Reader
from probe.verdict.side import Side
from probe.verdict.tensors import Tensor

Measure = Callable[..., Metrics]


def tensor_of(reader: Reader, row: int) -> Tensor:
    """Return the tensor of a record of the first step."""
    rows, sketches = reader.of_step("records", 0), reader.of_step("sketches", 0)
    record = dict(zip(rows.dtype.names or (), rows[row].tolist(), strict=True))
    return Side(reader, 0, {})._tensor_of(record, sketches[row], row)


def noise(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def relative(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.linalg.norm(a - b) / max(np.linalg.norm(a), np.linalg.norm(b)))
