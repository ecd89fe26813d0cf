"""The contract for tensors: statistics, facts, copies."""

from __future__ import annotations

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from probe.numbers.axis_sums import axis_sums
from probe.numbers.packed import unpack
from probe.numbers.sketch import CHUNK
from probe.numbers.statistics import dtype_of, measure, measure_update
from probe.testing.arrays import arrays, assert_stats_agree, sample
from probe.testing.kit import AdapterKit

_by_hypothesis = hypothesis.settings(
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=150,
    suppress_health_check=[hypothesis.HealthCheck.differing_executors, hypothesis.HealthCheck.too_slow],
)


class TensorContract(AdapterKit):
    """What an adapter says of tensors is true, whatever their dtype, shape and layout."""

    @_by_hypothesis
    @hypothesis.given(data=st.data())
    def test_statistics_are_those_of_the_reference(self, data: st.DataObject) -> None:
        array = data.draw(arrays(self.dtypes))
        order = data.draw(st.permutations(range(array.ndim))) if array.dtype.kind != "c" else ()
        actual = unpack(self.adapter.measure(self.tensor(array), tuple(order)))
        assert_stats_agree(actual, measure(array, order, actual.hash_kind))

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64"])
    @pytest.mark.parametrize(
        "shape", [(CHUNK + 1,), (3, CHUNK), (700, 800), (2, 1, 3, 61, 1000), (300_000, 1), (1, 5, 70_001)]
    )
    def test_statistics_of_tensors_of_several_chunks(self, shape: tuple[int, ...], dtype: str) -> None:
        array = (sample(shape) * 100).astype(dtype_of(dtype))
        if dtype != "int64":
            array.reshape(-1)[[5, 77, -3]] = np.nan, -np.inf, np.inf
        actual = unpack(self.adapter.measure(self.tensor(array), ()))
        assert_stats_agree(actual, measure(array, (), actual.hash_kind))

    @pytest.mark.parametrize("shape", [(4, 6), (3, 1, 5, 2), (2, 200_000)])
    def test_the_layout_in_memory_does_not_matter(self, shape: tuple[int, ...]) -> None:
        array = sample(shape)
        tensors = list(self.layouts(array))
        assert tensors
        for tensor in tensors:
            actual = unpack(self.adapter.measure(tensor, ()))
            assert_stats_agree(actual, measure(array, (), actual.hash_kind))
            assert np.array_equal(self.adapter.values(tensor), array)

    def test_what_is_known_of_another_tensor_is_not_taken_for_it(self) -> None:
        """Of the same bytes in another shape, dtype or order, and of other bytes."""
        array = sample((6, 6))
        one = self.adapter.measure(self.tensor(array), ())
        for other, order in ((array.reshape(4, 9), ()), (array + 1, ()), (array, (1, 0)), (array.view("int32"), ())):
            if other.dtype.name in self.dtypes:
                found = unpack(self.adapter.measure(self.tensor(other), order, one))
                assert_stats_agree(found, measure(other, order, found.hash_kind))
        assert self.adapter.measure(self.tensor(array.copy()), (), one) == one

    @pytest.mark.parametrize("shape", [(5,), (4, 6), (3, 1, 5, 2), (3, 5, 5), (900, 700), (4, 3, 2, 2)])
    def test_sums_along_axes_are_those_of_the_reference(self, shape: tuple[int, ...]) -> None:
        for name in set(self.dtypes) - {"bool"}:
            array = (sample(shape) * 10).astype(dtype_of(name))
            order = tuple(range(len(shape)))[::-1]
            actual, expected = self.adapter.axis_sums(self.tensor(array), order), axis_sums(array, order)
            size = np.linalg.norm(array.astype(np.complex128 if array.dtype.kind == "c" else np.float64))
            for mine, theirs in zip(actual, expected, strict=True):
                assert np.linalg.norm(mine - theirs) <= 1e-7 * size, name

    def test_facts(self) -> None:
        for name in self.dtypes:
            facts = self.adapter.facts(self.tensor(np.zeros((2, 0, 3), dtype_of(name))))
            assert (facts.dtype, facts.shape, facts.requires_grad) == (name, (2, 0, 3), False)
        assert self.adapter.facts(self.tensor(sample((2,)), requires_grad=True)).requires_grad
        assert self.adapter.is_tensor(self.tensor(sample((2,))))
        assert not any(self.adapter.is_tensor(value) for value in (None, 1, 2.5, "x", [1], np.ones(2)))

    @_by_hypothesis
    @hypothesis.given(data=st.data())
    def test_values_are_exact(self, data: st.DataObject) -> None:
        array = data.draw(arrays(self.dtypes))
        values = self.adapter.values(self.tensor(array))
        assert values.dtype == array.dtype and values.shape == array.shape
        assert values.tobytes() == array.tobytes()

    def test_copies_are_isolated(self) -> None:
        array = sample((3, 4))
        tensor = self.tensor(array)
        values, snapshot, version = (
            self.adapter.values(tensor), self.adapter.snapshot(tensor), self.adapter.version_of(tensor)
        )  # fmt: skip
        self.scale_in_place(tensor, 2.0)
        assert np.array_equal(values, array) and np.array_equal(self.numpy(snapshot), array)
        assert version is None or self.adapter.version_of(tensor) != version
        values[:] = 0
        assert np.array_equal(self.numpy(tensor), array * 2)

    def test_updates_are_measured_in_float64(self) -> None:
        after, before = sample((5, 7), 0), sample((5, 7), 1)
        for name in set(self.dtypes) & {"float32", "float16", "bfloat16", "float64", "complex64", "float8_e4m3fn"}:
            a, b = after.astype(dtype_of(name)), before.astype(dtype_of(name))
            dtype, found, of_after = self.adapter.measure_update(self.tensor(a), self.tensor(b), (1, 0))
            assert dtype == ("complex128" if name == "complex64" else "float64")
            assert_stats_agree(found, measure_update(a, b, (1, 0)))
            assert of_after in (None, self.adapter.measure(self.tensor(a), (1, 0)))
