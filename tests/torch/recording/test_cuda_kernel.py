"""The kernel for CUDA tensors gives the CPU's numbers: on a GPU, or interpreted by triton on the CPU."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from probe.adapters.torch.adapter import TorchAdapter
from probe.adapters.torch.cuda import launching
from probe.adapters.torch.cuda.measuring import Launcher
from probe.adapters.torch.cuda.plans import plan_of
from probe.adapters.torch.device import measure_on_device, settle
from probe.numbers.statistics import measure, measure_update
from probe.records import HashKind, TensorStats
from probe.testing import assert_stats_agree

ON_GPU = torch.cuda.is_available()
if not ON_GPU and importlib.util.find_spec("triton") is None:
    pytest.skip("neither a GPU nor triton", allow_module_level=True)

DEVICE = "cuda" if ON_GPU else "cpu"
WSUM = HashKind.WSUM64
SHAPES = [(), (0,), (7,), (2, 0, 3), (33, 70), (3, 1, 5, 2), (4, 3, 3, 5, 2), (2, 1, 2, 2, 2, 2, 2, 3), (9000,)]
LARGE = [(3_000_001,), (700, 5000), (61, 64, 1000), (5, 151_936), (300_000, 3)] if ON_GPU else []
FLOATS = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
OTHERS = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32]
OTHERS += [torch.uint64, torch.complex64]
VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "plain": lambda t: t,
    "transposed": lambda t: t.mT,
    "permuted": lambda t: t.permute(2, 0, 1),
    "stepped": lambda t: t[::2, 1:, ::3],
    "expanded": lambda t: t[:, :1].expand(-1, 5, -1),
    "broadcast": lambda t: t[0, 0, :3].expand(90, 3),
    "narrowed": lambda t: t.narrow(2, 3, 40),
    "diagonal": lambda t: t.diagonal(0, 0, 1),
    "channels last": lambda t: t[None].to(memory_format=torch.channels_last),
}


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> Iterator[Launcher]:
    """A launcher that takes tensors on the CPU, too, where triton interprets the kernel."""
    if not ON_GPU:
        monkeypatch.setenv("TRITON_INTERPRET", "1")
        monkeypatch.setattr(Launcher, "takes", lambda self, tensor: True)
    launcher = Launcher()
    yield launcher
    assert not launcher.unusable


def sample(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0, spoilt: bool = False) -> Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 30
    values = values.to(dtype) if dtype.is_floating_point or dtype.is_complex else values.to(torch.int64).to(dtype)
    if spoilt and dtype.is_floating_point and values.numel() > 12:
        special = [torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 1e-40]
        values.view(-1)[[3, 5, 6, 10, 11, 12]] = torch.tensor(special, dtype=dtype)
    return values.to(DEVICE)


def measured(launcher: Launcher, tensor: Tensor, order: tuple[int, ...] = (), kind: HashKind = WSUM) -> TensorStats:
    row = launcher.measure(tensor, order, kind)
    assert row is not None, launcher.unusable
    return launcher.settle([row])[0]


def check(launcher: Launcher, tensor: Tensor, order: tuple[int, ...] = ()) -> None:
    assert_stats_agree(measured(launcher, tensor, order), measure(TorchAdapter().values(tensor), order, WSUM))


@pytest.mark.parametrize("dtype", [*FLOATS, *OTHERS], ids=str)
def test_numbers_are_those_of_the_reference(dtype: torch.dtype, launcher: Launcher) -> None:
    for shape in SHAPES + LARGE:
        check(launcher, sample(shape, dtype, spoilt=True), tuple(reversed(range(len(shape)))))


@pytest.mark.parametrize("view", VIEWS)
def test_views_are_read_where_they_lie(view: str, launcher: Launcher) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int32):
        check(launcher, VIEWS[view](sample((6, 7, 70), dtype)))


@pytest.mark.parametrize("lazy", [lambda t: t.conj(), lambda t: t.conj().imag, lambda t: torch._neg_view(t).mT])
def test_lazy_conjugates_and_negatives(lazy: Callable[[Tensor], Tensor], launcher: Launcher) -> None:
    check(launcher, lazy(sample((6, 7), torch.complex64)))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_an_update_is_the_difference_of_both_and_has_the_hash_of_both(dtype: torch.dtype, launcher: Launcher) -> None:
    after, before = sample((33, 70), dtype, 1, spoilt=True), sample((70, 33), dtype, 2).mT
    row = launcher.measure(after, (1, 0), WSUM, before)
    assert row is not None
    (stats,) = launcher.settle([row])
    wide = after.double() - before.double()
    (by_operations,) = settle([measure_on_device(wide, (1, 0), WSUM, (before, after))])
    assert_stats_agree(stats, by_operations)
    values = TorchAdapter().values
    assert stats.norm == pytest.approx(measure_update(values(after), values(before), (1, 0)).norm, rel=1e-12)


def test_without_a_hash_there_is_no_sketch(launcher: Launcher) -> None:
    tensor = sample((40, 50), torch.float32, spoilt=True)
    stats, expected = measured(launcher, tensor, (), HashKind.NONE), measured(launcher, tensor)
    assert not stats.sketch.any() and (stats.hash_kind, stats.hash_lo, stats.hash_hi) == (HashKind.NONE, 0, 0)
    assert stats[:9] == expected[:9]


def test_rows_and_partial_sums_begin_anew_when_they_are_full(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launching, "_ROWS", 4)
    monkeypatch.setattr(launching, "_PARTIALS", 20)
    monkeypatch.setattr(launching, "_ROUNDS", 1)
    tensors = [sample((size, 70), torch.float32, size) for size in (1, 40, 3, 60, 2, 70, 5, 6, 7, 33)]
    rows = [launcher.measure(tensor, (), WSUM) for tensor in tensors]
    assert len({id(row.rows) for row in rows if row}) == 3
    assert all(row.rows.partials <= 20 for row in rows if row)
    for stats, tensor in zip(launcher.settle([row for row in rows if row]), tensors, strict=True):
        assert_stats_agree(stats, measure(TorchAdapter().values(tensor), (), WSUM))


def test_what_was_fetched_is_not_fetched_again(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [launcher.measure(sample((5, size), torch.float32), (), WSUM) for size in (1, 70)]
    fetches = []
    begin = launching.Rows.begin_fetch
    monkeypatch.setattr(launching.Rows, "begin_fetch", lambda self: fetches.append(self) or begin(self))
    first = launcher.settle([row for row in rows if row])
    again = launcher.settle([row for row in rows if row])
    assert len(fetches) == 1 and [each[:12] for each in first] == [each[:12] for each in again]


def test_numbers_do_not_depend_on_the_order_in_which_programs_run(launcher: Launcher) -> None:
    tensor = sample((300, 1000) if ON_GPU else (30, 200), torch.float32)
    first = measured(launcher, tensor)
    for _ in range(20 if ON_GPU else 1):
        again = measured(launcher, tensor)
        assert again[:12] == first[:12] and np.array_equal(again.sketch, first.sketch)


def test_a_shape_of_too_many_axes_has_no_plan(launcher: Launcher) -> None:
    tensor = sample((2,) * 9, torch.float32)
    assert plan_of(tuple(tensor.shape), tensor.stride(), ()) is None
    assert launcher.measure(tensor, (), WSUM) is None
