"""How far two tensors are apart whose shapes, axes or scales are different."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from probe.answer.metrics import Status
from probe.notes import in_words
from probe.numbers.sketch import WIDTH
from probe.numbers.statistics import dtype_of
from probe.records import HashKind, Phase, Role, TensorStats
from probe.store.reading.reader import Reader
from probe.verdict.distance.measure import measure
from probe.verdict.rows import metrics_of
from tests.metrics.comparing import Measure, noise, relative, tensor_of
from tests.store.files import Tensor, arrays, write_tensors

# Shapes


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((4,), (4, 4)),
        ((4, 4), (4,)),
        ((1,), (7,)),
        ((), (3,)),
        ((3, 1), (3, 3)),
        ((2, 3), (2, 4)),
        ((2, 1, 3), (2, 5, 3)),
    ],
    ids=str,
)
def test_shapes_that_would_broadcast_are_not_comparable(
    measured: Measure, values: bool, a: tuple[int, ...], b: tuple[int, ...]
) -> None:
    found = measured(arrays(np.ones(a), np.ones(b)), values=values)
    assert found.status is Status.NOT_COMPARABLE
    assert found.reason == f"shape {list(a)} against {list(b)}"


def test_a_column_against_a_row_is_compared_element_by_element_and_never_stretched(
    measured: Measure, values: bool
) -> None:
    column, row = np.array([[1.0], [2.0], [3.0]]), np.array([[1.0, 2.0, 3.0]])
    assert measured(arrays(column, row), values=values).rel_l2 == 0.0
    assert measured(arrays(column, row + [[0, 0, 1]]), values=values).rel_l2 == pytest.approx(
        1 / math.sqrt(21), rel=1e-6
    )


@pytest.mark.parametrize("order", [(1, 0, 2), (2, 0, 1), (2, 1, 0), (0, 2, 1)], ids=str)
def test_layouts_with_other_orders_of_axes(measured: Measure, values: bool, order: tuple[int, ...]) -> None:
    a = noise((5, 3, 4))
    b = a + 1e-3 * noise((5, 3, 4), 1)
    same = measured(arrays(a, a.transpose(order)), values=values)
    assert same.is_known and same.rel_l2 < 1e-12
    found = measured(arrays(a, b.transpose(order), dtype="float64"), values=values)
    assert found.rel_l2 == pytest.approx(relative(a, b), rel=1e-9 if values else 0.5)
    if values:
        assert found.max_abs_at == np.unravel_index(np.abs(a - b).argmax(), a.shape), "an index in A"


def test_a_large_layout_is_compared_in_parts(measured: Measure) -> None:
    a = noise((2, 300, 700))
    b = a.copy()
    b[1, 299, 3] += 20
    b[0, 17, 5] -= 19
    found = measured(arrays(a, b.transpose(1, 0, 2), dtype="float64"), values=True)
    assert found.rel_l2 == pytest.approx(relative(a, b), rel=1e-12)
    assert found.max_abs_at == (1, 299, 3)


def test_activations_whose_axes_of_one_size_are_swapped_are_decided_from_values(measured: Measure) -> None:
    a = noise((6, 6, 5))
    found = measured(arrays(a, a.transpose(1, 0, 2)), values=True)
    assert found.is_known and found.rel_l2 == 0.0
    wrong = a.transpose(1, 0, 2).copy()
    wrong[2, 3] *= 1.5
    found = measured(arrays(a, wrong, dtype="float64"), values=True)
    assert found.status is Status.COMPARED
    assert found.rel_l2 == pytest.approx(relative(a, wrong.transpose(1, 0, 2)), rel=1e-9)
    assert measured(arrays(a, noise((6, 6, 5), 9)), values=True).rel_l2 > 0.5


def test_activations_whose_axes_of_one_size_are_swapped_are_not_decided_from_sketches(measured: Measure) -> None:
    a = noise((6, 6, 5))
    found = measured(arrays(a, a.transpose(1, 0, 2)), values=False)
    assert (found.status, found.is_known) == (Status.PERMUTED, False)
    assert found.reason == "axes of the same size may be swapped; record with task='tensor' to decide"
    other = measured(arrays(a, noise((6, 6, 5), 9)), values=False)
    assert other.status is Status.COMPARED and other.rel_l2 > 0.5, "other numbers are no other order"


def test_integers_whose_axes_are_swapped(measured: Measure, values: bool) -> None:
    ids = np.random.default_rng(0).integers(0, 1000, (7, 7))
    found = measured([Tensor(ids), Tensor(ids.T)], values=values)
    assert found.rel_l2 == 0.0 if values else not found.is_known


def test_a_square_weight_that_is_not_transposed_is_a_fault(measured: Measure, values: bool) -> None:
    w = noise((16, 16))
    found = measured(arrays(w, w.T), values=values, free_axes=False)
    assert found.status is Status.COMPARED and found.rel_l2 > 1
    oblong = noise((16, 9))
    found = measured(arrays(oblong, oblong.T), values=values, free_axes=False)
    assert found.rel_l2 < 1e-12, "here the sizes say which axis is which"


@pytest.mark.parametrize("role", [Role.PARAM, Role.PARAM_GRAD, Role.STATE, Role.DELTA], ids=str)
def test_a_square_weight_that_is_stored_the_other_way_round(measured: Measure, values: bool, role: Role) -> None:
    w = noise((16, 16))
    slot = "weight.exp_avg" if role is Role.STATE else "weight"
    phase = Phase.INIT if role is Role.PARAM else Phase.UPDATE
    stored = Tensor(w, role, phase, slot)
    turned = Tensor(np.ascontiguousarray(w.T), role, phase, slot.replace("weight", "kernel"), axes=(1, 0))
    forgotten = Tensor(w, role, phase, slot.replace("weight", "kernel"), axes=(1, 0))
    assert measured([stored, turned], values=values, free_axes=False).rel_l2 < 1e-12
    for pair in ([stored, forgotten], [forgotten, stored]):
        found = measured(pair, values=values, free_axes=False)
        assert found.status is Status.COMPARED and found.rel_l2 > 1, "the same bytes, but they mean Wᵀ"


MERGED = [((2, 3, 5), (6, 5)), ((6, 5), (2, 3, 5)), ((2, 3, 5), (30,)), ((2, 3, 4, 5), (2, 3, 20)), ((4, 1, 6), (24,))]


@pytest.mark.parametrize(("a", "b"), MERGED, ids=str)
def test_merged_axes(measured: Measure, values: bool, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    x = noise(a)
    found = measured(arrays(x, x.reshape(b)), values=values)
    assert found.is_known and found.rel_l2 == 0.0
    wrong = x.copy()
    wrong.reshape(-1)[3] += 10
    found = measured(arrays(x, wrong.reshape(b), dtype="float64"), values=values)
    assert found.is_known and found.rel_l2 > 0.1
    if values:
        assert found.rel_l2 == pytest.approx(relative(x, wrong), rel=1e-9)


def test_merged_axes_whose_order_is_another_are_not_called_wrong(measured: Measure, values: bool) -> None:
    x = noise((4, 3, 5))
    found = measured(arrays(x, x.transpose(1, 0, 2).reshape(12, 5)), values=values)
    assert found.is_known and found.rel_l2 < 1e-6
    wrong = measured(arrays(x, 1.1 * x.transpose(1, 0, 2).reshape(12, 5)), values=values)
    assert wrong.is_known and wrong.rel_l2 > 0.05


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(("shapes", "values"), [(((4, 16, 48), (64, 48)), True), (((48, 48), (48, 48)), False)])
def test_errors_of_a_few_roundings_are_those_of_elements_in_their_places(
    measured: Measure, shapes: Any, values: bool, dtype: str
) -> None:
    """Root mean square and ends of what a norm returns in 16 bits may agree; in float32 such an error may be another order."""
    x = noise(shapes[0]).astype(dtype_of("bfloat16")).astype(np.float32)
    y, places = x.copy().reshape(-1), np.argsort(x, axis=None)[10:2250]
    y[places[::40]], y[places[20::40]] = (
        y[places[20::40]],
        y[places[::40]].copy(),
    )  # the same numbers, some a little elsewhere
    error = relative(x, y.reshape(shapes[0]))
    assert 1e-3 < error < 0.03
    found = measured(arrays(x, y.reshape(shapes[1]), dtype=dtype_of(dtype)), values=values)
    if dtype == "float32" and not values:
        assert found.status is Status.PERMUTED
    else:
        assert found.status is Status.COMPARED and found.rel_l2 == pytest.approx(error, rel=1e-3 if values else 0.4)


def test_split_heads_are_not_compared_as_if_they_were_merged(measured: Measure, values: bool) -> None:
    heads = noise((2, 4, 6, 5))  # batch, heads, sequence, width
    flat = heads.transpose(0, 2, 1, 3).reshape(2, 6, 20)
    found = measured(arrays(heads.reshape(8, 6, 5), flat), values=values)
    assert not (found.is_known and found.rel_l2 > 1e-6)


# What was not measured


def test_what_was_not_measured_is_not_comparable(measured: Measure) -> None:
    unmeasured = TensorStats(*[math.nan] * 5, 0, 0, 0, 0, 0, 0, HashKind.NONE, np.zeros(WIDTH))
    a = np.ones((2, 3))
    for pair in ([Tensor(a, stats=unmeasured), Tensor(a)], [Tensor(a), Tensor(a, stats=unmeasured)]):
        found = measured(pair, values=False)
        assert (found.status, found.reason) == (Status.NOT_COMPARABLE, "no statistics were recorded")


def test_values_on_one_side_only_are_of_no_use(tmp_path: Path) -> None:
    a, b = noise((20, 30)), 1.01 * noise((20, 30))
    full = write_tensors(tmp_path / "a.h5", arrays(a), values=True)
    thin = write_tensors(tmp_path / "b.h5", arrays(b), values=False)
    with Reader(full) as first, Reader(thin) as second:
        found = measure(tensor_of(first, 0), tensor_of(second, 0))
    assert found is not None and not found.is_of_values
    assert found.size == pytest.approx(relative(a, b), rel=0.5)


# Multiples


@pytest.mark.parametrize("factor", [-1.0, -3.0, 1e-4, 0.5, 1.0001, 2.0, 65536.0])
def test_an_exact_multiple_is_not_estimated_but_known(measured: Measure, values: bool, factor: float) -> None:
    a = noise((40, 64))
    found = measured(arrays(a, a * factor, dtype="float64"), values=values)
    assert found.cosine == pytest.approx(math.copysign(1, factor), abs=1e-9)
    assert found.rel_l2 == pytest.approx(abs(factor - 1) / max(1, abs(factor)), rel=1e-6)
    assert found.coherence == pytest.approx(math.copysign(1, factor - 1), abs=1e-6)


@pytest.mark.parametrize("factor", [65536.0, -3.0, 1.5])
def test_a_factor_is_taken_out_before_tensors_are_compared(tmp_path: Path, values: bool, factor: float) -> None:
    a = noise((40, 64))
    b = a * factor + 1e-3 * abs(factor) * noise((40, 64), 1)
    path = write_tensors(tmp_path / "a.h5", arrays(a, b, dtype="float64"), values=values)
    with Reader(path) as reader:
        found = measure(tensor_of(reader, 0), tensor_of(reader, 1), factor=factor)
    assert found is not None and found.size == pytest.approx(relative(factor * a, b), rel=1e-9 if values else 0.4)
    assert found.off == pytest.approx(0, abs=1e-2)


@pytest.mark.parametrize(
    ("dtypes", "shape", "why"),
    [
        (("int64", "int64"), (3,), "no statistics were recorded"),
        (("int64", "float32"), (3,), "int64 against float32"),
        (("int64", "int64"), (4,), "shape [3] against [4]"),
    ],
)
def test_equal_shapes_are_no_reason(dtypes: tuple[str, str], shape: tuple[int, ...], why: str) -> None:
    tensors = (
        SimpleNamespace(shape=each, form=each, size=each[0], dtype=dtype, is_known=False)
        for each, dtype in zip(((3,), shape), dtypes, strict=True)
    )
    found = metrics_of(SimpleNamespace(**dict(zip("ab", tensors, strict=True))), None)  # type: ignore[arg-type]
    assert in_words([found.why]) == (why,)
