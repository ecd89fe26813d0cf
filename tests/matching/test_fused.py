"""Several tensors in one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probe.numbers.fused import Fusion, fuse, in_blocks, order_of, problem_of, split, whole_shape


@st.composite
def fusions(draw: st.DrawFn) -> tuple[list[list[tuple[int, ...]]], Fusion]:
    """Return shapes of parts that fit, and how they lie."""
    ndim = draw(st.integers(1, 4))
    axis, groups = draw(st.integers(0, ndim - 1)), draw(st.integers(1, 4))
    beside = draw(st.lists(st.integers(1, 3), min_size=ndim, max_size=ndim))
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    row = [tuple(groups * size if k == axis else other for k, other in enumerate(beside)) for size in sizes]
    stacked = draw(st.booleans())
    return [row] * (draw(st.integers(1, 3)) if stacked else 1), Fusion(
        axis - ndim * draw(st.integers(0, 1)), groups, stacked
    )


@given(fusions(), st.sampled_from(["float32", "int8", "bool"]))
@settings(max_examples=80, deadline=None)
def test_putting_together_and_taking_apart_are_inverses(made: tuple[Any, Fusion], dtype: str) -> None:
    shapes, fusion = made
    rng = np.random.default_rng(0)
    parts = [[rng.integers(0, 100, shape).astype(dtype) for shape in row] for row in shapes]
    assert problem_of(shapes, fusion) == ""
    whole = fuse(parts, fusion)
    assert whole.shape == whole_shape(shapes, fusion) and whole.dtype == dtype
    again = split(whole, shapes, fusion)
    assert all(
        np.array_equal(x, y) and x.shape == y.shape
        for a, b in zip(parts, again, strict=True)
        for x, y in zip(a, b, strict=True)
    )
    assert np.array_equal(fuse(again, fusion), whole)
    turned = np.asfortranarray(whole)
    assert all(
        np.array_equal(x, y)
        for a, b in zip(parts, split(turned, shapes, fusion), strict=True)
        for x, y in zip(a, b, strict=True)
    )


def test_groups_lie_as_megatron_has_them() -> None:
    """Per group: its query heads, its key, its value."""
    q, k, v = np.arange(8).reshape(4, 2), 10 + np.arange(4).reshape(2, 2), 20 + np.arange(4).reshape(2, 2)
    whole = fuse([[q, k, v]], Fusion(0, 2))
    assert whole.tolist() == [[0, 1], [2, 3], [10, 11], [20, 21], [4, 5], [6, 7], [12, 13], [22, 23]]
    assert fuse([[q.T, k.T, v.T]], Fusion(-1, 2)).T.tolist() == whole.tolist()
    assert fuse([[q, k, v]], Fusion()).tolist() == np.concatenate([q, k, v]).tolist()
    assert fuse([[q, q], [k[[0, 0, 1, 1]], q]], Fusion(stacked=True)).shape == (2, 8, 2)


@pytest.mark.parametrize(("shapes", "fusion", "text"), [
    ([], Fusion(), "there are no parts"),
    ([[(2, 3)], [(2, 3)]], Fusion(), "several rows of parts are not stacked"),
    ([[(2, 3)], [(2, 4)]], Fusion(stacked=True), "[2, 4] and [2, 3] cannot be stacked"),
    ([[(2, 3), (2, 4)]], Fusion(), "[2, 3], [2, 4] are of different sizes beside axis 0"),
    ([[(2, 3), (4, 3)]], Fusion(0, 4), "[2, 3] cannot be divided into 4 groups"),
    ([[(2,), (4,)]], Fusion(1), "[2], [4] do not all have an axis 1"),
    ([[(2, 3), (2, 4)]], Fusion(1), ""),
    ([[()]], Fusion(), ""),
])  # fmt: skip
def test_what_does_not_fit(shapes: Any, fusion: Fusion, text: str) -> None:
    assert problem_of(shapes, fusion) == text


@pytest.mark.parametrize("axis", [0, -1])
def test_rows_that_rotary_embeddings_turn_together(axis: int) -> None:
    """Neighbours in the part are the two halves of a head in the whole."""
    part = np.arange(8) if axis else np.arange(8).reshape(8, 1)
    fusion = Fusion(axis, rotary=2)
    assert problem_of([[part.shape]], fusion) == "" and whole_shape([[part.shape]], fusion) == part.shape
    whole = fuse([[part]], fusion)
    assert whole.ravel().tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    assert np.array_equal(split(whole, [[part.shape]], fusion)[0][0], part)
    assert problem_of([[(6, 1)]], Fusion(0, rotary=2)) == "[6, 1] cannot be divided into 2 heads of two halves"


@pytest.mark.parametrize(
    ("shares", "here", "there"), [((1, 1, 1), 1, 4), ((1, 1, 1), 4, 2), ((4, 1, 1), 2, 1), ((1, 1), 3, 3)]
)
def test_parts_in_other_groups(shares: tuple[int, ...], here: int, there: int) -> None:
    """What is fused in one number of groups is what is fused in another, block by block."""
    parts = [np.arange(12.0 * share * 3).reshape(-1, 3) + 1000 * k for k, share in enumerate(shares)]
    one, other = (fuse([parts], Fusion(0, groups)) for groups in (here, there))
    order = order_of(shares, here, there)
    assert (order == ()) == (here == there)
    fusion = Fusion(order=order)
    np.testing.assert_array_equal(fuse([[one]], fusion), other)
    np.testing.assert_array_equal(split(other, [[one.shape]], fusion)[0][0], one)
    assert not problem_of([[one.shape]], fusion)
    assert not order or problem_of([[(7, 3)]], fusion) == f"[7, 3] cannot be divided into {len(order)} blocks"


def test_an_order_of_rows_in_the_fewest_blocks() -> None:
    assert in_blocks(np.array([4, 5, 0, 1, 2, 3])) == (2, 0, 1)
    assert in_blocks(np.arange(6)) == ()
    assert in_blocks(np.array([1, 0, 2])) == (1, 0, 2)
