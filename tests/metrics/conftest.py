"""Two tensors are compared, with values and with sketches alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import ml_dtypes  # noqa: F401  numpy knows its dtypes by name once it is imported
import pytest

from probe.comparison.distance.metrics import Metrics, Side, measure_pair
from probe.records import Role
from probe.store.reading.reader import Reader
from tests.files import Tensor, write_tensors
from tests.metrics.comparing import Measure


@pytest.fixture(params=[True, False], ids=["values", "sketches"])
def values(request: pytest.FixtureRequest) -> bool:
    return request.param


@pytest.fixture
def measured(tmp_path: Path) -> Measure:
    """Write two tensors to a file and compare them."""
    count = iter(range(1000))

    def measure(tensors: Sequence[Tensor], *, values: bool, free_axes: bool = True) -> Metrics:
        became = [replace(each, role=Role.PARAM) for each in tensors if each.role is Role.DELTA]
        path = write_tensors(tmp_path / f"{next(count)}.h5", [*tensors, *became], values=values)
        with Reader(path) as reader:
            side = Side(reader, 0)
            return measure_pair(side, 0, side, 1, free_axes=free_axes)

    return measure
