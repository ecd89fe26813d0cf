"""The noise rule and the reasons for more noise."""

from __future__ import annotations

import pytest

from probe.records import Phase, Role
from probe.verdict.noise import model, terms
from probe.verdict.steps.events import Event
from tests.verdict.tensors import drawn, tensor_of

U32, U16 = 2.0**-24, 2.0**-8


def event_of(a, b, role=Role.OUTPUT) -> Event:
    return Event(Phase.FORWARD, role, None, None, "0", "0", a, b, 0)


def test_a_limit_is_a_floor_or_a_multiple_of_the_sources():
    assert model.FORWARD.limit(U32, 0) == 16 * U32
    assert model.FORWARD.limit(U16, 0) == 8 * U16
    assert model.FORWARD.limit(U32, 1e-3) == 8e-3


def test_choices_from_equal_scores_are_exact():
    assert terms.routing_limit(128, 0.0) == 0
    assert 0 < terms.routing_limit(128, 1e-3) < 0.2


def test_few_elements_as_large_as_the_largest_are_no_mean_of_many():
    plain, peaked = drawn(64, 64), drawn(64, 64)
    peaked[0, 0] = 1e4
    assert terms.peaks_of(tensor_of(plain)) > model.FEW
    assert terms.peaks_of(tensor_of(peaked)) < model.FEW


def test_numbers_below_the_range_of_a_dtype_may_vanish():
    small = tensor_of(1e-7 * drawn(8, 8), "float16")
    large = tensor_of(drawn(8, 8), "float16")
    assert terms.subnormal_limit(event_of(small, small)) > 0.1 > 1e-5 > terms.subnormal_limit(event_of(large, large))


@pytest.mark.parametrize("gradient", [0.0, 1e-6, 1e-3])
def test_an_update_is_as_noisy_as_the_root_of_its_gradient(gradient):
    noise, limit = model.update_limit(gradient, U32, 1.0, 1e-2, 10_000)
    assert noise >= gradient**0.5
    assert limit > 4 * noise
