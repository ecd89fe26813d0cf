"""Gradients that are one multiple of the other side's."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

import probe
from probe.adapters.numpy import nn
from probe.adapters.numpy.tensor import Tensor
from probe.comparison.result import Verdict
from probe.comparison.steps.side import Metrics, Status
from probe.comparison.steps.step_half import Event
from probe.comparison.walk.scaled_gradients import carry_factor
from probe.comparison.walk.scaling import AVERAGED
from probe.records import Phase, Role
from probe.report.words.hints import written
from tests.comparison.planted import MODEL_FAULTS, TASKS, UP, Clean, Model, Recorder, changed, in_micro_batches, step_of
from tests.toys import batch, loss_of


def _update(model: Model, optimizer: nn.Optimizer, factor: float) -> None:
    """Take a factor out of the gradients and use them."""
    for parameter in model.parameters():
        parameter.grad.data /= np.float32(factor)
    optimizer.step()
    optimizer.zero_grad()


def _scaled(factor: float, *, undone: bool) -> Callable[..., Tensor]:
    def step(model: Model, optimizer: nn.Optimizer, number: int) -> Tensor:
        loss = loss_of(model(batch(number)), batch(number))
        (loss * factor).backward()
        _update(model, optimizer, factor if undone else 1.0)
        return loss

    return step


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("factor", [65536.0, 1024.0, 1 / 256])
def test_a_loss_scale_that_is_undone_is_said_and_no_fault(run: Recorder, task: str, factor: float) -> None:
    found = probe.compare(run(steps=2, task=task), run(step=_scaled(factor, undone=True), steps=2, task=task))
    assert found.verdict is Verdict.ALIGNED, found.first_divergence
    text = f"B's gradients are {factor:.6g} times A's, the optimizer used them without that factor: loss scaling"
    assert found.warnings == (text,)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(
    ("factor", "hint"),
    [
        (65536.0, "loss scaling"),
        (-1.0, "one side goes up where the other goes down: the sign of the loss, or maximize="),
        (3.0, "look at the loss scale, and at how the loss is reduced: sum or mean, number of micro-batches or ranks"),
    ],
)
def test_a_loss_scale_that_the_optimizer_used(clean: Clean, run: Recorder, task: str, factor: float, hint: str) -> None:
    found = probe.compare(clean(task), run(step=_scaled(factor, undone=False), task=task))
    first = found.first_divergence
    assert first is not None and (first.phase, first.path) == (Phase.LOSS, "")
    assert first.evidence == (
        "the model's outputs agree", f"B's gradients are {factor:.6g} times A's", "the optimizer used them so",
    )  # fmt: skip
    assert first.hint == hint
    assert first.metrics is not None and first.metrics.cosine == pytest.approx(math.copysign(1, factor))
    assert found.divergences == (first,)


def test_a_fault_beside_a_loss_scale_is_found(clean: Clean, run: Recorder) -> None:
    wrong = changed(MODEL_FAULTS["gradient of one of two consumers"][0])
    found = probe.compare(clean(), run(wrong, step=_scaled(1024.0, undone=True)))
    first = found.first_divergence
    assert first is not None and (first.phase, first.path) == (Phase.BACKWARD, UP)


def test_a_loss_scale_where_only_parameter_gradients_were_recorded(run: Recorder) -> None:
    phases = ["forward", "gradient"]
    found = probe.compare(run(phases=phases), run(step=_scaled(65536.0, undone=True), phases=phases))
    first = found.first_divergence
    assert first is not None and (first.phase, first.path, first.hint) == (Phase.GRADIENT, "", "loss scaling")
    assert first.evidence[1] == "all by the same factor: B is 65536 times A"
    assert first.evidence[-1] == "whether the optimizer used them so was not recorded"


def test_accumulation_that_is_divided_on_one_side_only(run: Recorder) -> None:
    a, b = run(step=in_micro_batches(4)), run(step=in_micro_batches(4, scale=4.0))
    for pair, factor, names in (((a, b), "4", "AB"), ((b, a), "0.25", "BA")):
        found = probe.compare(*pair)
        first = found.first_divergence
        assert first is not None and first.phase is Phase.LOSS
        assert first.evidence[1] == f"B's gradients are {factor} times A's"
        assert first.hint == (
            f"accumulation is divided on {names[0]} only: {names[1]} does not divide the loss by its 4 micro-batches"
        )
        assert found.divergences == (first,), "not once for every micro-batch"


def test_no_common_factor_where_noise_has_the_same_size(run: Recorder) -> None:
    """Every tensor shorter by the same part in a thousand, and pointing elsewhere: the length says nothing."""

    def turned(model: Model, ids: Tensor, number: int) -> Tensor:
        loss = loss_of(model(ids), ids)
        loss.backward()
        for place, parameter in enumerate(model.parameters()):
            g = parameter.grad.data
            side = np.random.default_rng(place).standard_normal(g.shape)
            side -= g * ((side * g).sum() / (g * g).sum())
            turned = g + 0.05 * side * np.linalg.norm(g) / np.linalg.norm(side)
            g[...] = turned * (0.9999 * np.linalg.norm(g) / np.linalg.norm(turned))
        return loss

    first = probe.compare(run(task="tensor"), run(step=step_of(turned), task="tensor")).first_divergence
    assert first is not None and first.phase is Phase.UPDATE
    assert not any("factor" in text for text in first.evidence)


@pytest.mark.parametrize(
    ("ratios", "factor", "is_carried"),
    [
        ((1.0201, 1.0196, 0.9), 1.02, True),  # each of them within 16-bit noise of A's
        ((1.0001, 0.9996, 1.02), 1.02, False),  # the optimizer undid it, as a loss scale
        ((1.5, 1.49), -1.5, True),
        ((), 1.02, False),
        ((math.nan,), 1.02, False),
    ],
)
def test_a_factor_that_noise_could_hide_is_seen_in_all_of_them(
    ratios: tuple[float, ...], factor: float, is_carried: bool
) -> None:
    events = [Event(0, 0, Phase.UPDATE, Role.PARAM_GRAD, 0, 0, "weight", "weight", 0, 0) for _ in ratios]
    for event, ratio in zip(events, ratios, strict=True):
        event.metrics = Metrics(Status.COMPARED, 0.02, norm_a=1.0, norm_b=ratio)
    assert carry_factor(events, factor) is is_carried


def _clipping(factor: float, *, late: bool) -> Callable[..., Tensor]:
    """A loss scale, and gradients clipped together to a small norm, before the scale is taken out or behind that."""

    def divide(model: Model) -> None:
        for parameter in model.parameters():
            parameter.grad.data /= np.float32(factor)

    def step(model: Model, optimizer: nn.Optimizer, number: int) -> Tensor:
        loss = loss_of(model(batch(number)), batch(number))
        (loss * factor).backward()
        if late:
            divide(model)
        norm = math.hypot(*(float(np.linalg.norm(parameter.grad.data)) for parameter in model.parameters()))
        for parameter in model.parameters():
            parameter.grad.data *= np.float32(0.01 / norm)
        if not late:
            divide(model)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(("factors", "used", "side"), [((1.0, 1024.0), "1/1024", "B"), ((1024.0, 1.0), "1024", "A")])
def test_gradients_that_are_clipped_before_the_scale_is_taken_out(
    run: Recorder, task: str, factors: tuple[float, float], used: str, side: str
) -> None:
    a, b = (run(step=_clipping(factor, late=factor == 1), task=task) for factor in factors)
    found = probe.compare(a, b)
    first = found.first_divergence
    assert first is not None and (first.phase, first.path) == (Phase.UPDATE, "")
    left = "1024" if side == "B" else "1/1024"
    assert first.evidence[1] == (
        f"B's gradients are {left} times A's as backward left them (loss scaling), {used} times as the optimizer used them: "
        "the factor was not taken out before they were clipped"
    )
    assert (
        first.hint
        == f"{side} clips gradients that are still 1024 times as large: divide them by the loss scale, then clip"
    )
    assert not any("used them so" in text for text in first.evidence)
    assert found.divergences == (first,)
    assert probe.compare(a, run(step=_clipping(factors[0], late=factors[0] == 1), task=task)).verdict is Verdict.ALIGNED


def _averaged(weights: tuple[float, float]) -> Callable[..., float]:
    def step(model: Model, optimizer: nn.Optimizer, number: int) -> float:
        total = 0.0
        for at, weight in enumerate(weights):
            ids = batch(number + 50 * at)
            loss = loss_of(model(ids), ids) * weight
            loss.backward()
            total += float(loss.data)
        optimizer.step()
        optimizer.zero_grad()
        return total

    return step


@pytest.mark.parametrize("task", TASKS)
def test_another_factor_in_each_micro_batch_is_a_loss_that_is_averaged_over_each(run: Recorder, task: str) -> None:
    a, b = (run(step=_averaged(weights), task=task) for weights in ((0.75, 0.25), (0.5, 0.5)))
    found = probe.compare(a, b)
    first = found.first_divergence
    assert first is not None and first.phase is Phase.LOSS
    text = (
        "B's gradients are another multiple of A's in each micro-batch: 0.666667 in micro-batch 0, 2 in micro-batch 1"
    )
    assert first.evidence[-1] == text and first.advice == AVERAGED
    assert found.divergences == (first,)
    assert not any("the optimizer used them" in text for text in found.warnings)


def _masked(factor: float, kept: int) -> Callable[..., float]:
    """Two micro-batches with a loss scale, which is taken out; the loss of the second is that of some rows."""

    def step(model: Model, optimizer: nn.Optimizer, number: int) -> float:
        total = 0.0
        for ids, rows in ((batch(number), None), (batch(number + 50), kept)):
            loss = loss_of(model(ids)[:rows], Tensor(ids.data[:rows]))
            (loss * factor).backward()
            total += float(loss.data)
        _update(model, optimizer, factor)
        return total

    return step


@pytest.mark.parametrize("task", TASKS)
def test_a_wrong_loss_of_one_micro_batch_has_no_other_factor(run: Recorder, task: str) -> None:
    found = probe.compare(run(step=_masked(1.0, 2), task=task), run(step=_masked(1024.0, 1), task=task))
    first = found.first_divergence
    assert first is not None and first.phase is Phase.LOSS and first.advice != AVERAGED
    assert not any("in each micro-batch" in text for text in first.evidence)
    assert max(slot.metrics.norm_ratio for slot in found.slots if slot.phase is Phase.BACKWARD) < 10
    assert (
        "B's gradients are 1024 times A's, the optimizer used them without that factor: loss scaling" in found.warnings
    )


@pytest.mark.parametrize("task", TASKS)
def test_a_loss_scale_behind_another_fault_is_taken_out(run: Recorder, task: str) -> None:
    faulty = changed(MODEL_FAULTS["eps"][0])
    found = probe.compare(run(task=task), run(faulty, step=_scaled(1024.0, undone=True), task=task))
    first = found.first_divergence
    assert first is not None and (first.phase, first.path) == (Phase.FORWARD, "layers.1.norm2")
    assert (
        "B's gradients are 1024 times A's, the optimizer used them without that factor: loss scaling" in found.warnings
    )
    verdicts = {(slot.phase, slot.verdict) for slot in found.slots}
    assert (Phase.BACKWARD, "introduced") not in verdicts and (Phase.BACKWARD, "inherited") in verdicts
    assert max(slot.metrics.norm_ratio for slot in found.slots if slot.phase is Phase.BACKWARD) < 2


@pytest.mark.parametrize(
    ("factor", "text"), [(1 / 1024, "1/1024"), (0.000976563, "1/1024"), (-1 / 3, "-1/3"), (0.25, "0.25"), (1024.0, "1024"),
                         (0.698276, "0.698276"), (1.0, "1"), (0.0, "0")]
)  # fmt: skip
def test_a_factor_is_written_as_one_over_a_number_where_it_is(factor: float, text: str) -> None:
    assert written(factor) == text
