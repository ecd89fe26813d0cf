"""Which argument or result of a call of A is which of B's."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from probe.verdict.steps.slots import pair_slots
from tests.verdict.tensors import drawn, tensor_of

X, Y, IDS = tensor_of(drawn(3, 4)), tensor_of(drawn(3, 4, seed=1)), tensor_of(np.arange(6).reshape(2, 3), "int64")


def test_names_come_first():
    assert pair_slots({"x": X, "y": Y}, {"y": X, "x": Y}) == [("x", "x"), ("y", "y")]


def test_then_equal_bytes():
    assert set(pair_slots({"0": X, "1": Y}, {"a": Y, "b": X})) == {("0", "b"), ("1", "a")}


def test_then_a_form_that_one_alone_has():
    assert set(pair_slots({"0": X, "1": IDS}, {"hidden": Y, "ids": IDS})) == {("0", "hidden"), ("1", "ids")}


def test_positions_pair_with_names_in_order():
    others = {"first": tensor_of(drawn(3, 4, seed=2)), "second": tensor_of(drawn(3, 4, seed=3))}
    assert pair_slots({"0": X, "1": Y}, others) == [("0", "first"), ("1", "second")]


def test_masks_of_two_notations_are_a_pair():
    shown = np.tril(np.ones((4, 4), bool))
    found = pair_slots({"mask": tensor_of(shown, "bool")}, {"bias": tensor_of(np.where(shown, 0, -1e9))})
    assert found == [("mask", "bias")]


def test_what_cannot_be_compared_is_still_a_pair_of_one_name():
    assert pair_slots({"x": X}, {"x": tensor_of(drawn(7))}) == [("x", "x")]


@given(st.permutations(range(5)), st.integers(0, 5))
@settings(max_examples=40, deadline=None)
def test_each_slot_is_in_one_pair_at_most(order, count):
    tensors = [tensor_of(drawn(2, 3 + at % 2, seed=at)) for at in range(5)]
    a = {str(at): tensors[at] for at in range(5)}
    b = {f"n{at}": tensors[at] for at in order[:count]}
    found = pair_slots(a, b)
    assert len({x for x, _ in found}) == len({y for _, y in found}) == len(found)
    assert all(tensors[int(x)] is b[y] for x, y in found)
