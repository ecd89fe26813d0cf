"""Two tensors are compared, with values and with sketches alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import ml_dtypes  # noqa: F401  numpy knows its dtypes by name once it is imported
import pytest

from probe.answer.metrics import Metrics
from probe.records import Role
from probe.store.reading.reader import Reader
from probe.verdict.distance.measure import measure as measure_pair
from probe.verdict.rows import metrics_of
from probe.verdict.steps.events import Event
from tests.metrics.comparing import Measure, tensor_of
from tests.store.files import Tensor, write_tensors


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
            a, b = (tensor_of(reader, row) for row in range(2))
            event = Event(tensors[0].phase, tensors[0].role, None, None, "0", "0", a, b, 0)
            return metrics_of(event, measure_pair(a, b, may_permute=free_axes, is_given=tensors[0].role is Role.INPUT))

    return measure
