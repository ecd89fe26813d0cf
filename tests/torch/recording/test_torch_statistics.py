"""PyTorch's statistics are those of the reference: on the CPU, by the device's way, in PyTorch's own threads."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

import probe
from probe.adapters.torch import operations as torch_operations
from probe.adapters.torch import statistics as torch_statistics
from probe.adapters.torch.adapter import TorchAdapter
from probe.adapters.torch.device import Pending, measure_on_device, settle
from probe.adapters.torch.statistics import measure
from probe.config import TaskName
from probe.numbers import kernel
from probe.numbers.axis_sums import axis_sums
from probe.numbers.packed import unpack
from probe.numbers.sketch import CHUNK
from probe.numbers.statistics import measure as measure_device
from probe.numbers.statistics import measure as reference
from probe.numbers.statistics import measure_update
from probe.recorder import measuring
from probe.records import HashKind
from probe.store.reading.reader import Reader
from probe.testing import assert_stats_agree
from tests.limits import HANGS
from tests.vectors import array_of, assert_vector, vectors

# ---- PyTorch's statistics are those of the reference: to 1e-12 of the norm, hashes exactly.

SETTINGS = hypothesis.settings(max_examples=60, deadline=None)
DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.complex64, torch.complex128, torch.bool, torch.uint8,
    torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64,
]  # fmt: skip
KINDS = [HashKind.XXH3_128, HashKind.WSUM64]
LARGE = [(CHUNK + 1,), (2, CHUNK), (500, 700), (3, 1, 2, 61, 1000), (250_001, 1), (1, 4, 65_537), (CHUNK + 7, 2)]


@pytest.fixture(params=["float64", "deterministic", "bfloat16 autocast", "meta device", "many threads"])
def settings(request: pytest.FixtureRequest) -> Iterator[AbstractContextManager[object]]:
    """What a user may have set, and statistics must not depend on: to be entered, or set already."""
    torch.set_num_threads(3 if request.param == "many threads" else 1)
    torch.set_default_dtype(torch.float64 if request.param == "float64" else torch.float32)
    torch.use_deterministic_algorithms(request.param == "deterministic")
    yield {
        "bfloat16 autocast": torch.autocast("cpu", torch.bfloat16),
        "meta device": torch.device("meta"),
    }.get(request.param, contextlib.nullcontext())
    torch.use_deterministic_algorithms(False)
    torch.set_default_dtype(torch.float32)


def check(tensor: Tensor, order: tuple[int, ...] = ()) -> None:
    array = TorchAdapter().values(tensor)
    for kind in KINDS:
        assert_stats_agree(measure(tensor, order, kind), reference(array, order, kind))
    assert unpack(measure(tensor, order)).hash_kind is HashKind.XXH3_128


def random(shape: tuple[int, ...], dtype: torch.dtype, spoilt: bool = False) -> Tensor:
    tensor = torch.randn(shape, dtype=torch.float64) * 30
    if spoilt:
        flat = tensor.view(-1)
        for place, value in zip(range(0, flat.numel(), 7), [torch.nan, torch.inf, -torch.inf, 0.0, -0.0] * 2):  # noqa: B905
            flat[place] = value
    if dtype.is_floating_point or dtype.is_complex:
        return tensor.to(dtype)
    return tensor.nan_to_num(0, 0, 0).to(torch.int64).to(dtype)


@SETTINGS
@hypothesis.given(data=st.data())
def test_small_tensors(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.sampled_from([0, 1, 2, 3, 7, 61, 70]), max_size=3)))
    dtype = data.draw(st.sampled_from(DTYPES))
    order = tuple(data.draw(st.permutations(range(len(shape)))))
    check(random(shape, dtype, data.draw(st.booleans())), order)


@pytest.mark.parametrize("shape", LARGE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.complex64], ids=str)
def test_tensors_of_several_chunks(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    check(random(shape, dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_users_settings_do_not_matter(dtype: torch.dtype, settings: AbstractContextManager[object]) -> None:
    tensors = [random((5, 61, 2), dtype, spoilt=True), random((260, 1000), dtype)]
    expected = [[reference(TorchAdapter().values(t), (), kind) for kind in KINDS] for t in tensors]
    with settings:
        actual = [[measure(t, (), kind) for kind in KINDS] for t in tensors]
    for one, other in zip(actual, expected, strict=True):
        for stats, wanted in zip(one, other, strict=True):
            assert_stats_agree(stats, wanted)


def test_every_chunk_is_cleaned_of_what_is_not_finite() -> None:
    tensor = random((3 * CHUNK,), torch.float32)
    tensor[CHUNK : 2 * CHUNK] = torch.nan
    tensor[-5], tensor[7] = torch.inf, -torch.inf
    check(tensor)


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda t: t.mT,
    "permuted": lambda t: t.permute(2, 0, 1),
    "stepped": lambda t: t[::2, 1:, ::3],
    "flipped": lambda t: t.flip(1),
    "expanded": lambda t: t[:, :1].expand(-1, 5, -1),
    "expanded scalar": lambda t: t[0, 0, 0].expand(4, 6),
    "broadcast to much": lambda t: t[0, 0, :3].expand(100_000, 3),
    "narrowed": lambda t: t.narrow(2, 3, 5),
    "diagonal": lambda t: t.diagonal(0, 0, 1),
    "unfolded": lambda t: t.unfold(2, 4, 1),
    "channels last": lambda t: t[None].to(memory_format=torch.channels_last),
    "squeezed": lambda t: t[:1, :, :1],
    "slice of a large one": lambda t: torch.arange(600_000.0).view(600, 1000).T[5:700],
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32, torch.complex64], ids=str)
@pytest.mark.parametrize("view", VIEWS)
def test_views(view: str, dtype: torch.dtype) -> None:
    check(VIEWS[view](random((6, 7, 70), dtype)))


@pytest.mark.parametrize("lazy", [lambda t: t.conj(), lambda t: t.mT.conj(), lambda t: t.conj().imag,
                                  lambda t: torch._neg_view(t), lambda t: torch._neg_view(t).conj()])  # fmt: skip
def test_lazy_conjugates_and_negatives(lazy: Callable[[Tensor], Tensor]) -> None:
    tensor = lazy(random((6, 7), torch.complex64))
    assert tensor.is_conj() or tensor.is_neg()
    check(tensor)
    check(lazy(random((300, 500), torch.complex64)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64], ids=str)
def test_tensors_of_a_graph(dtype: torch.dtype) -> None:
    leaf = random((5, 6), dtype).requires_grad_()
    output = leaf * 2
    for kind in KINDS:
        for tensor in (leaf, output, torch.nn.Parameter(leaf.detach())):
            expected = reference(TorchAdapter().values(tensor), (), kind)
            assert_stats_agree(measure(tensor, (), kind), expected)
    assert leaf.grad is None and leaf._version == output._version == 0
    with torch.inference_mode():
        check(leaf * 3)


def test_nothing_of_the_tensor_is_changed_or_kept() -> None:
    tensor = random((300, 1000), torch.float32, spoilt=True)
    before = tensor.clone().view(torch.int32)
    stats = unpack(measure(tensor))
    assert torch.equal(tensor.view(torch.int32), before) and tensor._version == 0
    assert isinstance(stats.sketch, np.ndarray) and all(type(n) is float for n in (stats.min, stats.mean))


def test_the_seed_is_left_alone() -> None:
    state = torch.get_rng_state()
    measure(torch.ones(70, 70))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("vector", vectors(), ids=lambda v: f"{v['dtype']}{v['shape']}{v.get('order', '')}")
def test_the_vectors_of_the_specification(vector: dict[str, Any]) -> None:
    array, dtype = array_of(vector), getattr(torch, vector["dtype"])
    raw = torch.from_numpy(array.view(np.int16) if vector["dtype"] == "bfloat16" else array)
    tensor = raw.view(dtype)
    for kind in KINDS:
        assert_vector(measure(tensor, tuple(vector.get("order", ())), kind), vector)


def test_sums_along_axes_are_exact_whatever_products_are_made_in() -> None:
    values = torch.randn(1024, 1024, generator=torch.Generator().manual_seed(0))
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")  # products in bfloat16, where the processor has it
    try:
        actual = torch_operations.axis_sums(values, ())
    finally:
        torch.set_float32_matmul_precision(before)
    for mine, theirs in zip(actual, axis_sums(values.numpy()), strict=True):
        assert np.linalg.norm(mine - theirs) <= 1e-7 * float(values.norm())


# ---- The device's way to compute statistics, tried on the CPU: it gives the same numbers and never waits.

SHAPES = [(), (0,), (7,), (2, 0, 3), (33, 70), (3, 1, 5, 2), (20 * CHUNK + 5,)]
COLUMNS = ("phase", "module", "role", "slot", "seq", "shape", "norm", "min", "zeros")
DTYPES_DEVICE = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.complex64, torch.int64, torch.bool]


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


@pytest.mark.parametrize("dtype", DTYPES_DEVICE, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_statistics_are_those_of_the_reference(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    tensor = sample(shape, dtype)
    if dtype.is_floating_point and tensor.numel() > 12:
        tensor.view(-1)[[3, 5, 6, 10, 11]] = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0, -0.0], dtype=dtype)
    order = tuple(reversed(range(tensor.ndim)))
    (stats,) = settle([measure_on_device(tensor, order, HashKind.WSUM64)])
    assert_stats_agree(stats, measure_device(TorchAdapter().values(tensor), order, HashKind.WSUM64))


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
        assert_stats_agree(found, measure_device(tensor.numpy(), (), HashKind.WSUM64))
    expected = measure_update(after.numpy(), before.numpy())
    assert update.norm == pytest.approx(expected.norm, rel=1e-12) and update.hash_kind is HashKind.WSUM64
    assert np.allclose(update.sketch, expected.sketch, rtol=0, atol=1e-12 * expected.norm)
    assert (summary.hash_kind, summary.hash_lo) == (HashKind.NONE, 0) and settle([]) == []


@pytest.mark.usefixtures("no_waiting")
def test_nothing_is_waited_for_before() -> None:
    for dtype in DTYPES_DEVICE:
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

        def pending_update(
            after: torch.Tensor, before: torch.Tensor, order: Sequence[int]
        ) -> tuple[str, Pending, None]:
            change = after.double() - before.double()
            return "float64", measure_on_device(change, order, HashKind.WSUM64, (before, after)), None

        monkeypatch.setattr(torch_statistics, "measure_in_place", lambda *place: None)
        monkeypatch.setattr(torch_statistics, "_measure_by_operations", pending)
        monkeypatch.setattr(torch_statistics, "_lies_plain", lambda tensor: False)
        monkeypatch.setattr(torch_statistics, "measure_update", pending_update)

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


# ---- Large tensors are measured in PyTorch's own threads, and in one where there are none: after a fork.

SCRIPT = """
import os, signal
import torch
from probe.adapters.torch.statistics import SHARES_THREADS, measure

torch.set_num_threads(2)
tensor = torch.randn(1000, 1000)
tensor @ tensor
threads = lambda: len(os.listdir("/proc/self/task"))
before = threads()
together = measure(tensor)
assert SHARES_THREADS and threads() == before, "a pool of its own"
child = os.fork()
if not child:
    signal.alarm(LIMIT)  # ends it where it waits for threads that it has not
    os._exit(0 if measure(tensor) == together else 1)
assert os.waitpid(child, 0)[1] == 0, "the forked process"
torch.set_num_threads(1)
assert measure(tensor) == together
"""


@pytest.mark.skipif(
    not (kernel.AVAILABLE and sys.platform == "linux"), reason="needs the compiled loop and PyTorch for Linux"
)
def test_threads_of_a_training() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.replace("LIMIT", str(HANGS))], capture_output=True, text=True, timeout=HANGS, check=False,
        env={key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
