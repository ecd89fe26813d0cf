"""When the next step is to be recorded in full."""

from __future__ import annotations

import math

import pytest

from probe.recorder.triggers import LEAST, WINDOW, Triggers


def after(triggers: Triggers, losses: list[float], first: int = 0) -> list[str]:
    """Return what is said after each step."""
    return [triggers.ended(first + i, {"loss": loss}) for i, loss in enumerate(losses)]


def jumps(losses: list[float], factor: float = 3.0) -> list[int]:
    return [i for i, text in enumerate(after(Triggers(on_loss_jump=factor), losses)) if text]


def test_nothing_is_asked_for() -> None:
    triggers = Triggers()
    triggers.saw_nonfinite("output 0 of net")
    assert not triggers.look_at_values and not triggers.needs_loss
    assert after(triggers, [1.0] * 40 + [math.nan, 1e9]) == [""] * 42


# Something is not finite


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_scalar_that_is_not_finite(value: float) -> None:
    triggers = Triggers(on_nonfinite=True)
    assert triggers.ended(0, {"loss": 1.0, "lr": 0.1}) == ""
    assert triggers.ended(1, {"loss": 1.0, "grad_norm": value}) == f"grad_norm is {value}"


def test_a_tensor_that_is_not_finite_counts_for_its_step_only() -> None:
    triggers = Triggers(on_nonfinite=True)
    assert triggers.look_at_values
    triggers.saw_nonfinite("output 0 of net has NaN")
    assert not triggers.look_at_values  # one is enough
    triggers.saw_nonfinite("the gradient of w has NaN")
    assert triggers.ended(0, {}) == "output 0 of net has NaN"
    assert triggers.look_at_values
    assert Triggers(on_nonfinite=True).ended(1, {}) == ""
    assert triggers.ended(WINDOW, {}) == "" and triggers.ended(WINDOW + 1, {"loss": math.nan}) == "loss is nan"


def test_a_loss_that_stays_nan_is_told_once() -> None:
    texts = after(Triggers(on_nonfinite=True), [1.0, *[math.nan] * 200])
    assert texts == ["", "loss is nan", *[""] * 199]


def test_one_that_comes_and_goes_is_told_again_after_a_rest() -> None:
    texts = after(Triggers(on_nonfinite=True), [math.nan if step % 2 else 1.0 for step in range(100)])
    assert [step for step, text in enumerate(texts) if text] == [1, 1 + WINDOW + 2, 1 + 2 * (WINDOW + 2)]


# The loss jumps


def test_a_jump_above_the_median() -> None:
    losses = [2.0] * 10 + [5.9, 6.0, 6.1]
    texts = after(Triggers(on_loss_jump=3.0), losses)
    assert texts == [""] * 12 + ["loss is 6.1, the median of the 12 before 2"]
    assert jumps(losses, factor=2.9) == [10]


def test_a_median_needs_some_losses() -> None:
    assert jumps([1.0] * (LEAST - 1) + [100.0]) == []
    assert jumps([1.0] * LEAST + [100.0]) == [LEAST]


def test_the_window_slides() -> None:
    rising = [1.0] * WINDOW + [2.9] * (WINDOW // 2 + 1) + [8.0, 8.8]
    assert jumps(rising) == [len(rising) - 1]
    texts = after(Triggers(on_loss_jump=3.0), rising)
    assert texts[-1] == f"loss is 8.8, the median of the {WINDOW} before 2.9"


def test_a_loss_that_falls_or_is_not_finite_is_no_jump_and_spoils_no_median() -> None:
    assert jumps([10.0 - 0.1 * step for step in range(90)]) == []
    assert jumps([1.0] * 10 + [math.nan] * 40 + [1.0, 3.1]) == [51]
    assert jumps([1.0] * 10 + [math.inf]) == [10]


def test_negative_losses() -> None:
    assert jumps([-1.0] * 10 + [-0.9, -3.0, 0.0, 0.9]) == []
    assert jumps([-1.0] * 10 + [1.1]) == [10]
    assert jumps([0.0] * 10 + [1.0]) == []


def test_both_reasons_and_steps_without_a_loss() -> None:
    triggers = Triggers(on_nonfinite=True, on_loss_jump=3.0)
    assert triggers.needs_loss
    after(triggers, [1.0] * 10)
    assert triggers.ended(10, {"lr": 1.0}) == ""
    text = triggers.ended(11, {"loss": 4.0, "grad_norm": math.inf})
    assert text == "grad_norm is inf and loss is 4, the median of the 10 before 1"
