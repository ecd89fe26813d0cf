"""Choices of the largest scores that two sides make otherwise: how many, and how many their scores do not explain."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace as Named
from typing import Any

import numpy as np
import pytest

from probe.numbers.choices import flips

TOKENS, EXPERTS, CHOSEN = 256, 16, 4
SCORES = np.random.default_rng(0).standard_normal((TOKENS, EXPERTS)).astype(np.float32)
NOISY = SCORES + np.random.default_rng(1).standard_normal(SCORES.shape).astype(np.float32) * 0.02


def top(scores: np.ndarray) -> np.ndarray:
    return np.argsort(-scores, axis=1)[:, :CHOSEN]


def tensor(values: np.ndarray, has_values: bool = True) -> Any:
    kind = "float" if values.dtype.kind == "f" else "integer"
    return Named(has_values=has_values, form=values.shape, values=lambda: values, kind=kind)


def call(path: str, *pairs: tuple[np.ndarray, np.ndarray], has_values: bool = True, **own: np.ndarray) -> Any:
    """Return a call of both sides that returns these tensors; ``own``: what B recorded beside what it took of A."""
    sides = [[tensor(each, has_values) for each in pair] for pair in pairs]
    a = Named(path=path, of=lambda role: {})
    b = Named(path=path, of=lambda role: {name.replace("_", " "): tensor(each) for name, each in own.items()})
    outputs = [Named(is_paired=True, both=both, a=both[0], b=both[1], u=2.0**-24) for both in sides]
    return Named(a=a, b=b, outputs=outputs, inputs=[])


WORST = np.argsort(SCORES, axis=1)[:, :CHOSEN]


@pytest.mark.parametrize(
    ("chosen", "scores", "beyond_margin"),
    [(top(NOISY), NOISY, 0), (top(NOISY)[:, ::-1], NOISY, 0), (WORST, NOISY, TOKENS)],
    ids=["by rounding", "in another order", "the worst ones"],
)
def test_flips_are_counted_and_held_against_the_scores(
    chosen: np.ndarray, scores: np.ndarray, beyond_margin: int
) -> None:
    said, *beyond = flips([call("mlp.gate", (SCORES, scores), (top(SCORES), chosen))])
    assert [each.code for each in beyond] == ["choices-beyond-margin"] * bool(beyond_margin)
    share = np.mean([[each not in there for each in here] for here, there in zip(top(SCORES), chosen, strict=True)])
    (text,) = said.facts["layers"]
    assert text == f"mlp.gate: {100 * share:.3g} % of 1,024 choices differ, {beyond_margin} by more than the margin of their scores"  # fmt: skip
    assert str(said) == f"routing: {text}"


def test_what_is_equal_or_has_no_values_is_not_said() -> None:
    same = call("a", (SCORES, NOISY), (top(SCORES), top(SCORES)[:, ::-1]))
    assert flips([same, call("b", (top(SCORES), WORST), has_values=False)]) == []


def test_choices_without_scores_are_counted() -> None:
    (said,) = flips([call("a", (top(SCORES), top(NOISY))), call("b", (top(SCORES), WORST))])
    assert [text.endswith("choices differ") for text in said.facts["layers"]] == [True, True]


BIAS = np.linspace(0, 3, EXPERTS).astype(np.float32)


@pytest.mark.parametrize(
    ("own", "by", "beyond"),
    [(top(NOISY), NOISY, 0), (WORST, NOISY, 1), (top(NOISY + BIAS), NOISY + BIAS, 1), (top(-NOISY), -NOISY, 1)],
    ids=["by rounding", "worst of right scores", "with a bias of its own", "from other scores"],
)
def test_what_b_would_have_chosen_counts_where_it_took_a_s_choices(
    own: np.ndarray, by: np.ndarray, beyond: int
) -> None:
    """Both sides have the same choices: a router that chooses wrongly would be hidden."""
    replayed = call("gate", (SCORES, NOISY), (top(SCORES), top(SCORES)), own_choices=own, own_scores=by)
    assert sum(each.code == "choices-beyond-margin" for each in flips([replayed])) == beyond

    replayed.a.of, replayed.b.of = replayed.b.of, replayed.a.of  # A took B's
    assert sum(each.code == "choices-beyond-margin" for each in flips([replayed])) == beyond


@pytest.mark.parametrize(("of_b", "beyond"), [(WORST, 1), (np.vstack([WORST[:3], top(SCORES)[3:]]), 0)])
def test_equal_inputs_leave_room_for_the_rounding_of_their_dtype(of_b: np.ndarray, beyond: int) -> None:
    x = tensor(SCORES)
    replayed = call("gate", (top(SCORES), top(SCORES)), own_choices=of_b, own_scores=SCORES)
    replayed.inputs.append(Named(is_paired=True, both=(x, x), a=x, b=x, u=2.0**-8))
    assert sum(each.code == "choices-beyond-margin" for each in flips([replayed])) == beyond


def test_wide_integers_are_masks() -> None:
    assert flips([call("mask", (np.tri(80, dtype=int), 1 - np.tri(80, dtype=int)))]) == []


@pytest.mark.parametrize("change", [lambda ids: np.where(ids == ids[:1], -100, ids), lambda ids: np.tile(ids, 5)])
def test_integers_that_are_no_experts_tell_no_margin(change: Callable[[np.ndarray], np.ndarray]) -> None:
    """Padding, or more columns than there are scores."""
    (said,) = flips([call("gate", (SCORES, NOISY), (change(top(SCORES)), change(top(NOISY))))])
    assert said.facts["layers"][0].endswith("choices differ")


def test_scores_that_were_not_chosen_by_tell_no_margin() -> None:
    """A bias or groups had a part in the choice: the recorded scores are others."""
    said = flips([call("gate", (SCORES, NOISY), (top(SCORES + BIAS), top(NOISY + BIAS)))])
    assert all(each.code == "choices-flipped" and "margin" not in each.facts["layers"][0] for each in said)
