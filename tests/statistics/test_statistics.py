"""The reference statistics, against plain numpy."""

from __future__ import annotations

import math

import hypothesis
import ml_dtypes
import numpy as np
import pytest
import xxhash
from hypothesis import strategies as st

from probe.numbers.sketch import CHUNK
from probe.numbers.statistics import as_real, dtype_of, hash_bits, is_float, measure, unit_roundoff
from probe.records import HashKind
from probe.testing import arrays, sample

SETTINGS = hypothesis.settings(max_examples=100, deadline=None)


def close(a: float, b: float, scale: float) -> bool:
    return abs(a - b) <= 1e-12 * scale or (math.isnan(a) and math.isnan(b)) or a == b


@SETTINGS
@hypothesis.given(array=arrays())
@np.errstate(all="ignore")
def test_they_are_what_numpy_says(array: np.ndarray) -> None:
    values = np.stack([array.real, array.imag], -1) if array.dtype.kind == "c" else array
    wide = values.astype(np.float64)
    finite = wide[np.isfinite(wide)]
    stats = measure(array)
    assert (stats.nan, stats.posinf, stats.neginf) == (
        np.isnan(wide).sum(), (wide == np.inf).sum(), (wide == -np.inf).sum()
    )  # fmt: skip
    assert stats.zeros == (finite == 0).sum()
    rms = math.sqrt(np.mean(finite**2)) if finite.size else math.nan
    norm = math.sqrt(np.sum(finite**2))
    assert close(stats.rms, rms, rms) and close(stats.norm, norm, norm)
    assert close(stats.mean, np.mean(finite) if finite.size else math.nan, rms)
    assert close(stats.min, finite.min() if finite.size else math.nan, 0)
    assert close(stats.max, finite.max() if finite.size else math.nan, 0)
    digest = xxhash.xxh3_128_intdigest(array.tobytes())
    assert stats.hash_hi << 64 | stats.hash_lo == digest


def test_only_finite_elements_count() -> None:
    stats = measure(np.array([1.0, np.nan, -3.0, np.inf, -np.inf, 0.0, np.nan, -0.0]))
    assert (stats.min, stats.max, stats.mean, stats.rms) == (-3.0, 1.0, -0.5, math.sqrt(10 / 4))
    assert stats.norm == math.sqrt(10)
    assert (stats.nan, stats.posinf, stats.neginf, stats.zeros) == (2, 1, 1, 2)


@pytest.mark.parametrize("array", [np.zeros((0, 3)), np.full(5, np.nan), np.full(2, -np.inf)])
def test_without_finite_elements_there_is_no_mean(array: np.ndarray) -> None:
    stats = measure(array)
    assert all(math.isnan(value) for value in (stats.min, stats.max, stats.mean, stats.rms))
    assert stats.norm == 0 and not stats.sketch.any()


@pytest.mark.parametrize(
    "array, expected",
    [
        (np.array(-2.5, np.float32), (-2.5, -2.5, -2.5, 2.5, 2.5, 0)),
        (np.array([True, False, True, True]), (0, 1, 0.75, math.sqrt(0.75), math.sqrt(3), 1)),
        (np.array([-128, 127], np.int8), (-128, 127, -0.5, math.sqrt(16256.5), math.sqrt(32513), 0)),
        (np.array([2**63 - 1], np.int64), (2.0**63, 2.0**63, 2.0**63, 2.0**63, 2.0**63, 0)),
        (np.array([3, 4], ml_dtypes.bfloat16), (3, 4, 3.5, math.sqrt(12.5), 5, 0)),
        (np.array([-448, 0], ml_dtypes.float8_e4m3fn), (-448, 0, -224, 448 / math.sqrt(2), 448, 1)),
        (np.array([3 + 4j]), (3, 4, 3.5, math.sqrt(12.5), 5, 0)),
        (np.array([1e200, 1e200]), (1e200, 1e200, 1e200, math.inf, math.inf, 0)),
        (np.array([5e-324]), (5e-324, 5e-324, 5e-324, 0, 0, 0)),
    ],
)
def test_known_values(array: np.ndarray, expected: tuple[float, ...]) -> None:
    stats = measure(array)
    assert (stats.min, stats.max, stats.mean, stats.rms, stats.norm, stats.zeros) == pytest.approx(expected)


def test_sums_are_in_float64() -> None:
    """float32 sums would lose the ones; float16 sums would be infinite."""
    assert measure(np.array([2**24, 1, 1, 1, 1], np.float32)).mean == (2**24 + 4) / 5
    stats = measure(np.full(1000, 60_000, np.float16))
    assert (stats.mean, stats.norm) == (60_000, pytest.approx(60_000 * math.sqrt(1000), rel=1e-15))


@pytest.mark.parametrize("kind", [HashKind.XXH3_128, HashKind.WSUM64])
def test_memory_layout_does_not_matter(kind: HashKind) -> None:
    base = sample((40, 50))
    for view, copy in [
        (base.T, base.T.copy()),
        (base[::2, 3::5], base[::2, 3::5].copy()),
        (base[::-1], base[::-1].copy()),
        (np.broadcast_to(base[0], (3, 50)), np.stack([base[0]] * 3)),
        (np.asfortranarray(base), base),
    ]:
        a, b = measure(view, (), kind), measure(copy, (), kind)
        assert (a.hash_lo, a.hash_hi, a.min, a.max, a.nan) == (b.hash_lo, b.hash_hi, b.min, b.max, b.nan)
        np.testing.assert_array_equal(a.sketch, b.sketch)
        assert (a.mean, a.norm) == (b.mean, b.norm)


@pytest.mark.parametrize("size", [CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 17])
def test_several_chunks(size: int) -> None:
    values = sample((size,)) + 3
    values[[0, size // 2, size - 1]] = np.nan, 0, np.inf
    stats = measure(values)
    finite = values[np.isfinite(values)].astype(np.float64)
    assert (stats.nan, stats.posinf, stats.zeros) == (1, 1, 1)
    assert (stats.min, stats.max) == (finite.min(), finite.max())
    assert stats.mean == pytest.approx(math.fsum(finite) / finite.size, rel=1e-14)
    assert stats.norm == pytest.approx(
        math.sqrt(math.fsum(finite**2)), rel=1e-13
    )  # the dot product adds as the kernel of this CPU does


# ---- hashes --------------------------------------------------------------------------------------------


def naive_sum(array: np.ndarray, family: int) -> int:
    """The formula of docs/reference/file-format.md in Python's integers."""

    def mix(x: int) -> int:
        z = (x + 0x9E3779B97F4A7C15) % 2**64
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
        return z ^ z >> 31

    raw, size = as_real(array).tobytes(), as_real(array).dtype.itemsize
    words = [int.from_bytes(raw[i : i + size], "little") for i in range(0, len(raw), size)]
    return sum(word * (mix(2 * place + family) | 1) for place, word in enumerate(words)) % 2**64


@SETTINGS
@hypothesis.given(array=arrays())
def test_the_weighted_sum_is_what_the_formula_says(array: np.ndarray) -> None:
    assert hash_bits(array, HashKind.WSUM64) == (naive_sum(array, 0), naive_sum(array, 1))


@pytest.mark.parametrize("kind", [HashKind.XXH3_128, HashKind.WSUM64])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "uint8", "complex64"])
def test_hashes_tell_any_change(kind: HashKind, dtype: str) -> None:
    base = (np.arange(999) % 200 + 1).astype(dtype_of(dtype))
    seen = {hash_bits(base, kind)}
    for place in (0, 1, 500, 998):
        changed, swapped = base.copy(), base.copy()
        changed.view(np.uint8)[place * base.itemsize] ^= 1
        swapped[[place, place - 1]] = base[[place - 1, place]]
        seen |= {hash_bits(changed, kind), hash_bits(swapped, kind)}
    seen |= {hash_bits(np.sort(base)[::-1], kind), hash_bits(base[:-1], kind), hash_bits(base[:0], kind)}
    assert len(seen) == 12


@pytest.mark.parametrize("kind", [HashKind.XXH3_128, HashKind.WSUM64])
def test_hashes_are_of_bits_not_of_values(kind: HashKind) -> None:
    zeros = np.array([0.0, -0.0])
    assert hash_bits(zeros[:1], kind) != hash_bits(zeros[1:], kind)
    nans = np.array([0x7FC00000, 0x7FC00001], np.uint32).view(np.float32)
    assert hash_bits(nans[:1], kind) != hash_bits(nans[1:], kind)
    assert hash_bits(nans, kind) == hash_bits(nans.copy(), kind)


def test_no_hash() -> None:
    assert hash_bits(np.ones(3), HashKind.NONE) == (0, 0)


# ---- dtypes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, roundoff",
    [
        ("float64", 2**-53), ("float32", 2**-24), ("float16", 2**-11), ("bfloat16", 2**-8),
        ("float8_e4m3fn", 2**-4), ("float8_e5m2", 2**-3), ("complex64", 2**-24), ("complex128", 2**-53),
        ("int32", 0), ("bool", 0), ("uint8", 0),
    ],
)  # fmt: skip
def test_unit_roundoff(name: str, roundoff: float) -> None:
    assert unit_roundoff(name) == roundoff
    assert is_float(dtype_of(name)) is (roundoff > 0 and not name.startswith("complex"))


@pytest.mark.thorough
@SETTINGS
@hypothesis.given(data=st.data())
def test_complex_is_a_real_with_one_axis_more(data: st.DataObject) -> None:
    array = data.draw(arrays(["complex64", "complex128"]))
    order = tuple(data.draw(st.permutations(range(array.ndim))))
    real = np.stack([array.real, array.imag], -1)
    np.testing.assert_array_equal(as_real(array), real)
    np.testing.assert_array_equal(measure(array, order).sketch, measure(real, (*order, array.ndim)).sketch)
