"""How far two tensors are apart: from values, from sketches, from statistics, and as masks."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probe.numbers.fused import Fusion
from probe.verdict.distance.error import View
from probe.verdict.distance.measure import measure
from probe.verdict.distance.values import error_of
from probe.verdict.distance.views import activation_between, seen_error
from probe.verdict.tensors import added, joined
from tests.verdict.tensors import drawn, tensor_of

STORED = [True, False]


@pytest.mark.parametrize("stored", STORED)
def test_equal_bits_are_equal(stored):
    error = measure(tensor_of(drawn(4, 5), stored=stored), tensor_of(drawn(4, 5), stored=stored))
    assert (error.size, error.view) == (0.0, View.EQUAL)


@given(size=st.floats(1e-6, 0.5), seed=st.integers(0, 50))
@settings(max_examples=30, deadline=None)
def test_sketches_estimate_what_values_tell(size, seed):
    a = drawn(32, 48, seed=seed)
    b = a + size * drawn(32, 48, seed=seed + 1000)
    exact = measure(tensor_of(a), tensor_of(b))
    estimated = measure(tensor_of(a, stored=False), tensor_of(b, stored=False))
    assert estimated.view is View.SKETCH
    assert 0.6 * exact.size < estimated.size < 1.5 * exact.size


@pytest.mark.parametrize("stored", STORED)
def test_a_multiple_is_told_exactly(stored):
    a = drawn(16, 16).astype(np.float32)
    error = measure(tensor_of(a, stored=stored), tensor_of(1.001 * a, stored=stored))
    assert error.size == pytest.approx(1e-3, rel=1e-2)
    assert error.off == pytest.approx(1e-3, rel=1e-2)
    assert error.along > 0.99


def test_axes_of_other_sizes_may_stand_in_any_order():
    a = drawn(2, 3, 4)
    assert measure(tensor_of(a), tensor_of(a.transpose(2, 0, 1))).size == 0


def test_axes_of_one_size_are_turned_only_where_they_may_be():
    a = drawn(5, 5)
    assert measure(tensor_of(a), tensor_of(a.T)).size > 0.5
    turned = measure(tensor_of(a), tensor_of(a.T), may_permute=True)
    assert (turned.size, turned.view) == (0, View.PERMUTED)


@pytest.mark.parametrize("shape", [(12, 5), (3, 20), (1, 12, 5)])
def test_neighbouring_axes_may_be_merged(shape):
    a = drawn(3, 4, 5)
    assert measure(tensor_of(a), tensor_of(a.reshape(shape))).size == 0


def test_positions_before_samples_may_be_merged():
    a = drawn(3, 4, 5)
    assert measure(tensor_of(a), tensor_of(a.swapaxes(0, 1).reshape(12, 5))).size == 0


def test_other_sizes_are_not_compared():
    assert measure(tensor_of(drawn(4)), tensor_of(drawn(5))) is None


@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_on_one_side_is_infinitely_far(stored, bad):
    a = drawn(4, 4)
    b = a.copy()
    b[1, 2] = bad
    assert math.isinf(measure(tensor_of(a, stored=stored), tensor_of(b, stored=stored)).size)


@pytest.mark.parametrize("stored", STORED)
def test_of_integers_the_share_that_differs(stored):
    a = np.arange(400).reshape(20, 20) % 7
    b = a.copy()
    b[:, 0] += 1
    error = measure(tensor_of(a, "int64", stored=stored), tensor_of(b, "int64", stored=stored))
    assert error.view is View.INTEGERS
    assert error.size == pytest.approx(20 / 400, rel=0 if stored else 0.9)


@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("fill", [-1e9, -math.inf, np.finfo(np.float32).min])
def test_masks_of_two_notations_are_compared_by_what_they_hide(stored, fill):
    shown = np.tril(np.ones((6, 6), bool))
    additive = np.where(shown, 0.0, fill)
    same = measure(tensor_of(shown, "bool", stored=stored), tensor_of(additive, stored=stored))
    assert (same.size, same.view) == (0, View.MASK)
    shown[0, 1] = True
    assert measure(tensor_of(shown, "bool", stored=stored), tensor_of(additive, stored=stored)).size > 0


def test_parts_are_one_tensor_with_exact_statistics():
    parts = [drawn(3, 4, seed=seed) for seed in range(2)]
    whole = np.concatenate(parts)
    made = joined([[tensor_of(part) for part in parts]], Fusion(0), whole.shape)
    assert measure(made, tensor_of(whole)).size < 1e-7
    assert made.norm == pytest.approx(tensor_of(whole).norm)
    assert made.mean == pytest.approx(tensor_of(whole).mean)


def test_terms_are_added_by_their_sketches():
    terms = [drawn(8, 9, seed=seed) for seed in range(3)]
    total = tensor_of(np.sum([term.astype(np.float32) for term in terms], axis=0), stored=False)
    assert measure(added([tensor_of(term) for term in terms]), total).size < 1e-6


def test_terms_of_a_sum_may_have_other_axes_of_size_1() -> None:
    one, other = drawn(4, 1, 9, 9), drawn(1, 4, 9, 9, seed=1)
    terms = tensor_of(one), tensor_of(other)
    total = replace(added(terms), parts=(terms,))
    np.testing.assert_allclose(total.values(), one[:, 0] + other[0], atol=1e-6)


@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize(
    "function", [lambda x: 1 / (1 + np.exp(-x)), np.tanh, lambda x: np.maximum(x, 0)], ids=["sigmoid", "tanh", "relu"]
)
def test_a_fused_activation_is_another_representation(function, stored):
    a = drawn(8, 9).astype(np.float32)
    pair = tensor_of(function(a.astype(np.float64)), stored=stored), tensor_of(a, stored=stored)
    assert activation_between(*pair, limit=1e-6)
    assert activation_between(*pair[::-1], limit=1e-6)
    assert not activation_between(tensor_of(1.01 * a, stored=stored), pair[1], limit=1e-6)
    assert not activation_between(tensor_of(0.01 * a, stored=stored), tensor_of(0.02 * a, stored=stored), limit=0.03)


def test_only_rows_with_a_gradient_count():
    a, gradient = drawn(5, 4), drawn(5, 4, seed=1)
    b = a.copy()
    b[3] += 1
    gradient[3] = 0
    gradients = tensor_of(gradient), tensor_of(gradient)
    assert seen_error(tensor_of(a), tensor_of(b), gradients, error_of).size == 0
    b[2] += 1
    assert seen_error(tensor_of(a), tensor_of(b), gradients, error_of).size > 0.1
