"""Choices of the largest scores that two sides make otherwise: how many, and how many their scores do not explain."""

from __future__ import annotations

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


def call(path: str, *pairs: tuple[np.ndarray, np.ndarray], has_values: bool = True) -> Any:
    """Return a call of both sides that returns these tensors."""
    sides = [[Named(has_values=has_values, form=each.shape, values=lambda each=each: each) for each in pair] for pair in pairs]  # fmt: skip
    return Named(a=Named(path=path), outputs=[Named(is_paired=True, both=both, a=both[0], b=both[1]) for both in sides])


WORST = np.argsort(SCORES, axis=1)[:, :CHOSEN]


@pytest.mark.parametrize(
    ("chosen", "scores", "beyond"),
    [(top(NOISY), NOISY, 0), (top(NOISY)[:, ::-1], NOISY, 0), (WORST, NOISY, TOKENS)],
    ids=["by rounding", "in another order", "the worst ones"],
)
def test_flips_are_counted_and_held_against_the_scores(chosen: np.ndarray, scores: np.ndarray, beyond: int) -> None:
    (said,) = flips([call("mlp.gate", (SCORES, scores), (top(SCORES), chosen))])
    share = np.mean([[each not in there for each in here] for here, there in zip(top(SCORES), chosen, strict=True)])
    (text,) = said.facts["layers"]
    assert text == f"mlp.gate: {100 * share:.3g} % of 1,024 choices differ, {beyond} by more than the margin of their scores"  # fmt: skip
    assert str(said) == f"routing: {text}"


def test_what_is_equal_or_has_no_values_is_not_said() -> None:
    same = call("a", (SCORES, NOISY), (top(SCORES), top(SCORES)[:, ::-1]))
    assert flips([same, call("b", (top(SCORES), WORST), has_values=False)]) == []


def test_choices_without_scores_are_counted() -> None:
    (said,) = flips([call("a", (top(SCORES), top(NOISY))), call("b", (top(SCORES), WORST))])
    assert [text.endswith("choices differ") for text in said.facts["layers"]] == [True, True]
