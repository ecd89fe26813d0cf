"""How many elements may differ by chance, and what a loss was rounded to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from probe.comparison.noise import tolerance


def test_integers_that_rounding_hardly_reaches_may_not_differ() -> None:
    assert tolerance.integer_limit(1e-7, 128) < 1 / 128
    assert tolerance.integer_limit(0.0, 10**6) == 0.0


def test_a_few_more_integers_than_expected_may_differ() -> None:
    expected = 20 * 6e-4 * 128  # one and a half
    assert 4 / 128 < tolerance.integer_limit(6e-4, 128) < 8 / 128
    assert tolerance.integer_limit(6e-4, 128) > expected / 128
    assert tolerance.integer_limit(6e-4, 10**7) == pytest.approx(20 * 6e-4, rel=0.02)  # chance averages out


def test_few_elements_at_a_kink_are_a_larger_share_of_few() -> None:
    assert tolerance.kink_limit(6e-3, 512) > 0.22 > tolerance.kink_limit(6e-3, 10**6)
    assert tolerance.kink_limit(1e-7, 4096) < 0.05


@pytest.mark.parametrize(
    ("loss", "u"),
    [(2.5, 2.0**-8), (12.375, 2.0**-8), (12.3671875, 2.0**-11), (12.367395401, 2.0**-24), (0.0, 2.0**-8)],
)
def test_the_precision_of_a_loss_is_seen_from_its_number(loss: float, u: float) -> None:
    assert tolerance.precision_of(loss) == u


def test_a_loss_that_is_not_finite_is_no_narrow_number() -> None:
    assert tolerance.precision_of(float("nan")) == tolerance.precision_of(float("inf")) == 2.0**-24


@pytest.mark.parametrize(
    ("error", "ratio", "shift", "size", "rule"),
    [
        (1e-2, 1 - 0.98e-2, 0.0, 256, tolerance.COHERENT),  # all of it makes the value smaller
        (1e-2, 1 + 0.98e-2, 0.0, 256, tolerance.COHERENT),
        (1e-2, 1.0, 0.98e-2, 256, tolerance.COHERENT),  # a constant was added
        (1e-2, 1 - 0.5e-2, 0.5e-2, 256, tolerance.FORWARD),  # half of it does
        (1e-2, 1 - 0.98e-2, 0.0, 255, tolerance.FORWARD),  # few elements have a direction by chance
        (0.0, 1.0, 0.0, 256, tolerance.FORWARD),
        (1.0, float("nan"), float("nan"), 256, tolerance.FORWARD),  # A is zero
    ],
)
def test_an_error_in_one_direction_is_held_against_less(
    error: float, ratio: float, shift: float, size: int, rule: tolerance.Rule
) -> None:
    assert tolerance.forward_rule(error, ratio, shift, size, 64, alike=False) is rule
    assert tolerance.COHERENT.limit(2.0**-24, 1e-6) < tolerance.FORWARD.limit(2.0**-24, 1e-6)


@pytest.mark.parametrize(
    ("ratio", "size", "peaks", "alike", "has_scale"),
    [
        (1 + 0.3e-2, 256, 100, True, True),  # errors up and down leave 0.1e-2 of it
        (1 - 0.3e-2, 256, 100, True, True),
        (1 + 0.3e-2, 255, 100, True, False),
        (1 + 0.3e-2, 4096, 15, True, False),  # a massive activation: its own rounding
        (1 + 0.3e-2, 4096, 36, True, False),  # chance
        (1 + 0.3e-2, 256, 100, False, False),  # updates have a direction
        (float("nan"), 256, float("nan"), True, False),  # A is zero
    ],
)
def test_whose_norm_says_something(ratio: float, size: int, peaks: float, alike: bool, has_scale: bool) -> None:
    rule = tolerance.forward_rule(1e-2, ratio, 0.0, size, peaks, alike=alike)
    assert rule == replace(tolerance.FORWARD, scale=tolerance.SCALE if has_scale else None)


def test_an_element_that_is_most_of_a_norm_is_seen_in_it() -> None:
    """A Mamba's state after some steps: rounding of 2 elements made 0.8 of all errors an error of the norm."""
    assert tolerance.forward_rule(1e-2, 1 + 0.98e-2, 0.0, 4096, 2.2, alike=True) == tolerance.FORWARD
    assert tolerance.peaks_of(4096, 1.0, 43.0) == pytest.approx(2.2, rel=0.01)
    assert tolerance.peaks_of(4096, 0.0, 0.0) == 0.0


def test_what_16_bits_round_away_where_a_source_was_written_is_no_error_to_be_amplified() -> None:
    """A scale of attention 2.8 times too small gave 10.6 unit roundoffs behind 1.6 of its sources: more than noise."""
    u = 2.0**-8
    assert tolerance.FORWARD.limit(u, 0.5 * u) == tolerance.FORWARD.limit(u, 1.5 * u) == 8 * u
    assert 8.5 * u < tolerance.FORWARD.limit(u, 1.58 * u) < 10.6 * u
    assert 28 * u < tolerance.FORWARD.limit(u, 4.3 * u)  # an attention without a scale makes 22.5 of it
    assert tolerance.FORWARD.limit(2.0**-24, 10 * 2.0**-24) == 80 * 2.0**-24


def test_four_deviations_of_flips_at_a_kink_are_chance() -> None:
    assert tolerance.kink_limit(1e-2, 400) == pytest.approx(2 * ((4 + 4 * 2 + 2) / 400) ** 0.5)
