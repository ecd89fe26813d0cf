"""PyTorch's statistics are those of the reference: to 1e-12 of the norm, hashes exactly."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402

from probe.adapters.torch import operations as torch_operations  # noqa: E402
from probe.adapters.torch.adapter import TorchAdapter  # noqa: E402
from probe.adapters.torch.statistics import measure  # noqa: E402
from probe.numbers.axis_sums import axis_sums  # noqa: E402
from probe.numbers.packed import unpack  # noqa: E402
from probe.numbers.sketch import CHUNK  # noqa: E402
from probe.numbers.statistics import measure as reference  # noqa: E402
from probe.records import HashKind  # noqa: E402
from probe.testing import assert_stats_agree  # noqa: E402
from tests.vectors import array_of, assert_vector, vectors  # noqa: E402

SETTINGS = hypothesis.settings(max_examples=60, deadline=None)
DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.complex64, torch.complex128, torch.bool, torch.uint8,
    torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64,
]  # fmt: skip
KINDS = [HashKind.XXH3_128, HashKind.WSUM64]
LARGE = [(CHUNK + 1,), (2, CHUNK), (500, 700), (3, 1, 2, 61, 1000), (250_001, 1), (1, 4, 65_537), (CHUNK + 7, 2)]


@pytest.fixture(autouse=True)
def one_thread_one_seed() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)


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
