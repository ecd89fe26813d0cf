"""What two sketches tell of their tensors."""

from __future__ import annotations

import numpy as np
import pytest

from probe.comparison.distance.estimates import geometry
from probe.comparison.distance.metrics import Metrics
from probe.numbers.sketch import sketch

SHORT = 0.0026
"""length of B beside A: what is beside A of it is less than a hundredth of their difference, whatever its direction"""


def told(a: np.ndarray, b: np.ndarray) -> Metrics:
    return geometry(sketch(a), sketch(b), float(np.linalg.norm(a)), float(np.linalg.norm(b)))


def vector(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=4000)


@pytest.mark.parametrize("seed", range(5))
def test_a_short_tensor_of_another_direction_is_no_multiple(seed: int) -> None:
    found = told(vector(seed), SHORT * vector(seed + 100))
    assert abs(found.cosine) < 0.5
    assert 0.99 < found.rel_l2 < 1.01


@pytest.mark.parametrize("sign", [1, -1])
def test_a_short_multiple_is_one(sign: int) -> None:
    found = told(vector(0), sign * SHORT * vector(0))
    assert found.cosine == sign
    assert found.rel_l2 == pytest.approx(1 - sign * SHORT)
