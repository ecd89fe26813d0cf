"""In which order rows lie, read from one number for each."""

from __future__ import annotations

import numpy as np
import pytest

from probe.matching.automatic.weights.packing import order_between
from probe.numbers.fused import order_of, reordered

ROWS = np.random.default_rng(0).normal(size=96)


@pytest.mark.parametrize(
    "order", [order_of((1, 1, 1), 1, 4), order_of((1, 1), 8, 1), order_of((4, 1, 1), 1, 2), (2, 0, 3, 1)]
)
def test_any_order_of_equal_rows_is_found(order: tuple[int, ...]) -> None:
    assert order_between(reordered(ROWS, order), ROWS) == order


def test_a_usual_order_is_found_of_rows_that_were_cast() -> None:
    order = order_of((1, 1, 1), 1, 4)
    cast = ROWS * (1 + 2e-3 * np.random.default_rng(1).normal(size=len(ROWS)))
    assert order_between(reordered(cast, order), ROWS) == order
    assert order_between(reordered(cast, order_of((4, 1, 1), 1, 2)), ROWS) is None


def test_rows_that_lie_alike_and_other_rows() -> None:
    assert order_between(ROWS * 1.001, ROWS) == ()
    assert order_between(np.sort(np.random.default_rng(2).normal(size=96)), ROWS) is None
    assert order_between(ROWS, ROWS[:48]) is None
