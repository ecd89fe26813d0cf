"""The device's way to compute statistics, tried on the CPU: it gives the same numbers and never waits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import probe  # noqa: E402
from probe.adapters.torch import statistics as torch_statistics  # noqa: E402
from probe.adapters.torch.adapter import TorchAdapter  # noqa: E402
from probe.adapters.torch.device import Pending, measure_on_device, settle  # noqa: E402
from probe.config import TaskName  # noqa: E402
from probe.numbers.sketch import CHUNK  # noqa: E402
from probe.numbers.statistics import measure, measure_update  # noqa: E402
from probe.recorder import measuring  # noqa: E402
from probe.records import HashKind  # noqa: E402
from probe.store.reading.reader import Reader  # noqa: E402
from probe.testing import assert_stats_agree  # noqa: E402

SHAPES = [(), (0,), (7,), (2, 0, 3), (33, 70), (3, 1, 5, 2), (20 * CHUNK + 5,)]
COLUMNS = ("phase", "module", "role", "slot", "seq", "shape", "norm", "min", "zeros")
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.complex64, torch.int64, torch.bool]


def sample(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 30
    return values.to(dtype)


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever would make a device's program wait raises."""

    def waits(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("the device is waited for")

    for name in ("item", "tolist", "__bool__", "__float__", "__int__", "numpy", "cpu", "nonzero"):
        monkeypatch.setattr(torch.Tensor, name, waits)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_statistics_are_those_of_the_reference(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    tensor = sample(shape, dtype)
    if dtype.is_floating_point and tensor.numel() > 12:
        tensor.view(-1)[[3, 5, 6, 10, 11]] = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0, -0.0], dtype=dtype)
    order = tuple(reversed(range(tensor.ndim)))
    (stats,) = settle([measure_on_device(tensor, order, HashKind.WSUM64)])
    assert_stats_agree(stats, measure(TorchAdapter().values(tensor), order, HashKind.WSUM64))


def test_many_are_settled_in_one_transfer(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = [sample((5, n), torch.float32, n) for n in (1, 2, 70)]
    after, before = sample((4, 6), torch.float32, 1), sample((4, 6), torch.float32, 2)
    pending = [measure_on_device(tensor, (), HashKind.WSUM64) for tensor in tensors]
    pending.append(measure_on_device(after.double() - before.double(), (), HashKind.WSUM64, (before, after)))
    pending.append(measure_on_device(tensors[0], (), HashKind.NONE))
    transfers = []
    cpu = torch.Tensor.cpu
    monkeypatch.setattr(torch.Tensor, "cpu", lambda tensor: transfers.append(tensor) or cpu(tensor))
    *stats, update, summary = settle(pending)
    assert len(transfers) == 1
    for tensor, found in zip(tensors, stats, strict=True):
        assert_stats_agree(found, measure(tensor.numpy(), (), HashKind.WSUM64))
    expected = measure_update(after.numpy(), before.numpy())
    assert update.norm == pytest.approx(expected.norm, rel=1e-12) and update.hash_kind is HashKind.WSUM64
    assert np.allclose(update.sketch, expected.sketch, rtol=0, atol=1e-12 * expected.norm)
    assert (summary.hash_kind, summary.hash_lo) == (HashKind.NONE, 0) and settle([]) == []


@pytest.mark.usefixtures("no_waiting")
def test_nothing_is_waited_for_before() -> None:
    for dtype in DTYPES:
        assert isinstance(measure_on_device(sample((40, 50), dtype), (), HashKind.WSUM64), Pending)


def record(path: Path, task: TaskName) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.BatchNorm1d(6), torch.nn.ReLU())
    optimizer = torch.optim.AdamW(model.parameters())
    with probe.capture(model, path, task=task):
        for _ in range(2):
            model(torch.randn(5, 6)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            probe.step(loss=1.0)


@pytest.fixture
def on_a_device(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """What lets statistics be pending from then on."""

    def switch() -> None:
        def pending(tensor: torch.Tensor, order: Sequence[int], kind: HashKind) -> Pending:
            return measure_on_device(tensor, order, HashKind.WSUM64)

        monkeypatch.setattr(torch_statistics, "measure_in_place", lambda *place: None)
        monkeypatch.setattr(torch_statistics, "_measure_by_operations", pending)
        monkeypatch.setattr(torch_statistics, "_lies_plain", lambda tensor: False)
        monkeypatch.setattr(torch_statistics, "_with_update_hash", lambda stats, *rest: stats)

    return switch


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_a_recording_of_pending_statistics_is_that_of_settled_ones(
    task: TaskName, tmp_path: Path, on_a_device: Callable[[], None]
) -> None:
    def rows_of(path: Path) -> list[tuple[Any, ...]]:
        with Reader(path) as reader:
            return [tuple(row[name] for name in COLUMNS) for row in reader.records]

    record(tmp_path / "settled.h5", task)
    on_a_device()
    record(tmp_path / "pending.h5", task)
    expected, found = rows_of(tmp_path / "settled.h5"), rows_of(tmp_path / "pending.h5")
    assert [row[:6] for row in found] == [row[:6] for row in expected]
    np.testing.assert_allclose([row[6:] for row in found], [row[6:] for row in expected], rtol=1e-12)


@pytest.mark.parametrize("most", [1, 1000, 1 << 30])
def test_values_that_follow_their_statistics_are_those_of_their_tensors(
    most: int, tmp_path: Path, on_a_device: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def values_of(path: Path) -> list[bytes | None]:
        with Reader(path) as reader:
            return [reader.values(row["tensor"]).tobytes() if row["tensor"] >= 0 else None for row in reader.records]

    def begin(self: TorchAdapter, tensor: torch.Tensor) -> Callable[[], np.ndarray]:
        values = self.values(tensor)
        on_their_way.append(values.nbytes)
        return lambda: values

    record(tmp_path / "at-once.h5", "tensor")
    on_a_device()
    on_their_way: list[int] = []
    monkeypatch.setattr(TorchAdapter, "begin_values", begin)
    monkeypatch.setattr(measuring, "_WAITING_BYTES", most)
    record(tmp_path / "following.h5", "tensor")
    expected = values_of(tmp_path / "at-once.h5")
    assert values_of(tmp_path / "following.h5") == expected
    stored = sum(each is not None for each in expected)
    assert (len(on_their_way) == stored) == (most == 1)  # what is met again is on its way already, if that waits
