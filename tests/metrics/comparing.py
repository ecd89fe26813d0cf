"""What the tests of metrics share."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from probe.comparison.distance.metrics import Metrics

Measure = Callable[..., Metrics]


def noise(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def relative(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.linalg.norm(a - b) / max(np.linalg.norm(a), np.linalg.norm(b)))
