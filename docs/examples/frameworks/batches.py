"""What the five models are given, as numpy arrays: the same in every framework."""

from __future__ import annotations

import numpy as np

VOCABULARY, LENGTH, BATCH = 50, 7, 4

Batch = tuple[np.ndarray, np.ndarray]


def batch(model: str, step: int) -> Batch:
    """Return the inputs and the targets of a step."""
    rng = np.random.default_rng(1000 + step)
    ids = rng.integers(0, VOCABULARY, (BATCH, LENGTH))
    if model == "mlp":
        return rng.standard_normal((8, 16)).astype(np.float32), rng.standard_normal((8, 8)).astype(np.float32)
    if model == "cnn":
        return rng.standard_normal((BATCH, 3, 16, 16)).astype(np.float32), rng.integers(0, 10, BATCH)
    if model == "lstm":
        return ids, rng.integers(0, 5, (BATCH, LENGTH))
    if model == "encoder":
        return ids, np.roll(ids, -1, axis=1)
    return ids, rng.integers(0, 3, BATCH)
