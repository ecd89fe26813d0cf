"""Tokens whose inputs differ least: they tell a module, whatever rounding routed otherwise does to the others."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace as Named
from typing import Any, cast

import numpy as np
import pytest

from probe.answer.comparison import Comparison, deciding
from probe.answer.result import Verdict
from probe.notes import Note, note
from probe.numbers import tokens
from tests.verdict.tensors import drawn, tensor_of

COUNT, WIDTH, EXPERTS, NOISE = 256, 12, 8, 1e-3
FAR = np.arange(COUNT) % 10 == 3
"""tokens that were routed otherwise before"""


@dataclass(frozen=True)
class Both:
    a: Any
    b: Any
    is_paired: bool = True

    @property
    def both(self) -> tuple[Any, Any]:
        return self.a, self.b


def event(a: np.ndarray, b: np.ndarray, *, stored: bool = True) -> Both:
    dtype = "int64" if a.dtype.kind == "i" else "float32"
    return Both(tensor_of(a, dtype, stored=stored), tensor_of(b, dtype, stored=stored))


def noisy(values: np.ndarray, far: np.ndarray = FAR) -> np.ndarray:
    """Return values with some noise, and others for some tokens."""
    return np.where(far[:, None], drawn(*values.shape, seed=7), values + NOISE * drawn(*values.shape, seed=8))


X = drawn(COUNT, WIDTH)
GIVEN = event(X, noisy(X))
CHOSEN = np.argsort(drawn(COUNT, EXPERTS, seed=2), axis=1)[:, :2]
FLIPPED = np.arange(COUNT) % 16 == 0


def near(made: Both, *, choices: Any = (), made_of: Any = (GIVEN,), count: int = COUNT) -> tokens.Near | None:
    return tokens.near(made, made_of, choices, count, 2.0**-24)


def test_tokens_that_are_far_off_already_tell_nothing() -> None:
    found = near(event(2 * X, 2 * noisy(X)))
    assert found is not None and not FAR[found.at].any() and len(found.at) >= (~FAR).sum() / 4
    assert NOISE / 2 < found.error < 2 * NOISE and found.off < found.error
    np.testing.assert_allclose(found.x, 2 * X[found.at], rtol=1e-6)
    assert found.event.a.shape == found.x.shape and found.event.a.norm == pytest.approx(np.linalg.norm(found.x))


@pytest.mark.parametrize("order", [1, -1], ids=["the same experts", "in another order"])
def test_tokens_that_are_routed_otherwise_tell_nothing(order: int) -> None:
    other = np.where(FLIPPED[:, None], (CHOSEN + 1) % EXPERTS, CHOSEN)[:, ::order]
    found = near(event(X, noisy(X)), choices=[event(CHOSEN, other)])
    assert found is not None and not (FLIPPED | FAR)[found.at].any()


def test_gradients_of_weights_stand_in_the_order_of_the_experts() -> None:
    turned = event(CHOSEN, np.where(FLIPPED[:, None], CHOSEN[:, ::-1], CHOSEN))
    alike, in_order = (tokens.near(GIVEN, [GIVEN], [turned], COUNT, 0.0, in_order=each) for each in (False, True))
    assert alike is not None and in_order is not None
    assert FLIPPED[alike.at].any() and not FLIPPED[in_order.at].any()


def test_what_differs_least_is_known_of_the_sources_alone() -> None:
    """What a module returns, right or wrong, chooses no tokens."""
    right, wrong = near(event(X, noisy(X))), near(event(X, 1.5 * noisy(X)))
    assert right is not None and wrong is not None and np.array_equal(right.at, wrong.at)


def test_the_worst_of_several_sources_counts() -> None:
    other = noisy(X, np.arange(COUNT) >= COUNT // 2)
    found = near(event(X, noisy(X)), made_of=(GIVEN, event(X, other)))
    assert found is not None and found.at.max() < COUNT // 2 and not FAR[found.at].any()


def test_axes_before_that_of_the_features_are_tokens() -> None:
    shape = (4, COUNT // 4, 3, WIDTH // 3)
    found = near(event(X.reshape(shape), noisy(X).reshape(shape)))
    assert found is not None and found.x.shape[1:] == (WIDTH,) and not FAR[found.at].any()


@pytest.mark.parametrize(
    ("made", "known"),
    [
        (event(X, noisy(X), stored=False), {}),
        (event(X.T, noisy(X).T), {}),
        (event(X, noisy(X)), {"made_of": [event(X.T, noisy(X).T)]}),
        (event(X, noisy(X)), {"choices": [event(CHOSEN, (CHOSEN + (np.arange(COUNT) >= 20)[:, None]) % EXPERTS)]}),
    ],
    ids=["no values", "no rows", "no rows of what it is made of", "too few alike"],
)
def test_nothing_is_told(made: Both, known: dict[str, Any]) -> None:
    assert near(made, **known) is None


@pytest.mark.parametrize(("shape", "count"), [((COUNT, 2), COUNT), ((4, COUNT // 4, 2), COUNT), ((COUNT,), COUNT)])
def test_choices_are_of_as_many_tokens_as_they_are_made_of(shape: tuple[int, ...], count: int) -> None:
    assert tokens.count_of(event(np.zeros(shape, np.int64), np.zeros(shape, np.int64)), [GIVEN]) == count


@pytest.mark.parametrize("reason", [note("behind-other-routing", is_replayed=False), note("different-models")])
def test_what_decides_names_routing_first_where_routing_hides_it(reason: Note) -> None:
    slots = [Named(dtype_a="float32", dtype_b="bfloat16")]
    open_ = Named(slots=slots, verdict=Verdict.UNDECIDED, reasons=[reason], replayed=None, path_a="a.h5")
    said = str(deciding(cast(Comparison, open_)))
    assert ("--routing a.h5" in said) == (reason.code == "behind-other-routing")
    assert said.index("probe replay a.h5") > said.find("--routing")
