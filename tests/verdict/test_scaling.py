"""Gradients that are a multiple of the other side's; factors hardly larger than rounding, norms that tell them; losses that are rounded."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import probe
from probe.answer.result import Kind, Verdict
from probe.records import Phase
from probe.report.words.forms import written
from tests.toy import nn
from tests.toy.tensor import Tensor
from tests.toys import (
    MLP,
    batch,
    gpt,
    loss_of,
    module,
    plain_step,
    record,
    replaced,
    rounding_otherwise,
    scaled_gradient,
)
from tests.verdict.planted import MODEL_FAULTS, TASKS, UP, Clean, Model, Recorder, changed, in_micro_batches, step_of

# ---- Gradients that are one multiple of the other side's.


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
@pytest.mark.parametrize("factor", [65536.0, -1.0, 3.0])
def test_a_loss_scale_that_the_optimizer_used(clean: Clean, run: Recorder, task: str, factor: float) -> None:
    found = probe.compare(clean(task), run(step=_scaled(factor, undone=False), task=task))
    first = found.first_divergence
    assert first is not None and (first.phase, first.path) == (Phase.LOSS, "")
    assert factor < 0 or first.evidence == ("the model's outputs agree", f"B's gradients are {factor:.6g} times A's")
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
    assert first is not None and (first.phase, first.path) == (Phase.GRADIENT, "")
    assert first.evidence[1] == "all by the same factor: B is 65536 times A"


def test_accumulation_that_is_divided_on_one_side_only(run: Recorder) -> None:
    a, b = run(step=in_micro_batches(4)), run(step=in_micro_batches(4, scale=4.0))
    for pair, factor in (((a, b), "4"), ((b, a), "0.25")):
        found = probe.compare(*pair)
        first = found.first_divergence
        assert first is not None and first.phase is Phase.LOSS
        assert first.evidence[1] == f"B's gradients are {factor} times A's"
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
@pytest.mark.parametrize(("factors", "left"), [((1.0, 1024.0), "1024"), ((1024.0, 1.0), "1/1024")])
def test_gradients_that_are_clipped_before_the_scale_is_taken_out(
    run: Recorder, task: str, factors: tuple[float, float], left: str
) -> None:
    a, b = (run(step=_clipping(factor, late=factor == 1), task=task) for factor in factors)
    found = probe.compare(a, b)
    first = found.first_divergence
    assert first is not None and (first.phase, first.path) == (Phase.LOSS, "")
    assert first.evidence[1] == f"B's gradients are {left} times A's"
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
    assert first.path == "" and first.kind is Kind.INTRODUCED
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
    assert first is not None and first.phase is Phase.LOSS
    assert not any("in each micro-batch" in text for text in first.evidence)


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


# ---- Factors in backward that are hardly larger than rounding: a multiple of the value is no rounding.

FACTOR = 1 + 3e-6
UP_SMALL = "layers.1.mlp.up"


def _step(factor: float) -> Callable[..., Tensor]:
    def step(model: nn.Module, optimizer: nn.Optimizer, number: int) -> Tensor:
        loss = loss_of(model(batch(number)), batch(number))
        scaled_gradient(loss, factor).backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize(
    ("path", "forward", "phase", "named"),
    [
        (UP_SMALL, lambda m, x: nn.Linear.forward(m, scaled_gradient(x, FACTOR)), Phase.BACKWARD, UP_SMALL),
        ("layers.1.mlp", lambda m, x: scaled_gradient(MLP.forward(m, x), FACTOR), Phase.BACKWARD, "layers.1.mlp"),
        (
            UP_SMALL,
            lambda m, x: x @ scaled_gradient(m.weight, FACTOR).swapaxes(0, 1) + m.bias,
            Phase.GRADIENT,
            UP_SMALL,
        ),
        ("", None, Phase.LOSS, ""),
    ],
    ids=["gradient of an input", "gradient of an output", "gradient of a weight", "gradient of the loss"],
)
def test_a_factor_of_fifty_roundings_is_named(
    tmp_path: Path, task: str, path: str, forward: Callable[..., Tensor] | None, phase: Phase, named: str
) -> None:
    a = record(tmp_path / "a.h5", gpt(), task=task)
    clean, faulty = rounding_otherwise(gpt()), rounding_otherwise(gpt())
    if forward is not None:
        replaced(faulty, path, forward=forward)
    b = record(tmp_path / "clean.h5", clean, task=task)
    assert probe.compare(a, b).verdict is Verdict.ALIGNED
    b = record(tmp_path / "b.h5", faulty, task=task, step=_step(FACTOR if forward is None else 1.0))
    first = probe.compare(a, b).first_divergence
    assert first is not None and (first.step, first.phase, first.path) == (0, phase, named)


def _with_weight(factor: float) -> Callable[[MLP, Tensor], Tensor]:
    """An MLP that uses a weight of a module that it does not call."""

    def forward(mlp: MLP, x: Tensor) -> Tensor:
        return mlp.down(mlp.act(x @ scaled_gradient(mlp.up.weight, factor).swapaxes(0, 1) + mlp.up.bias))

    return forward


def test_a_gradient_whose_way_was_not_compared_may_be_off_in_one_direction(tmp_path: Path) -> None:
    """What leads to the weight of a module that is not called is larger than anything else that was compared may show."""

    def run(name: str, model: nn.Module, factor: float) -> Path:
        replaced(model, "layers.1.mlp", forward=_with_weight(factor))
        return record(tmp_path / f"{name}.h5", model)

    a = run("a", gpt(), 1.0)
    small = probe.compare(a, run("small", rounding_otherwise(gpt()), 1 + 4e-6))
    assert small.verdict is Verdict.ALIGNED, small.first_divergence
    first = probe.compare(a, run("large", rounding_otherwise(gpt()), 1 + 1e-3)).first_divergence
    assert first is not None and (first.phase, first.path) == (Phase.GRADIENT, UP_SMALL)
    text = "the gradient of this parameter differs, what leads to it was not compared: its module is not called, its caller uses the weight"
    assert first.evidence[0] == text


# ---- What makes a value larger or smaller as a whole, by less than its elements are off: its norm tells, or its mean.

UP_NORMS = "layers.1.mlp.up"
BY = 5.6e-7
"""9 unit roundoffs of float32: the norm may be off by 6, elements by 22 behind what is off by 3"""
FACTORS = (1 + BY * (1 + 1.2 * (-1.0) ** np.arange(32))).astype(np.float32)
"""off by 1.6 times as much in all, up and down"""


def scaling(since: int = 0) -> nn.Module:
    """Return a model with another order of sums, of which one layer returns too much from a call on."""
    model, calls = rounding_otherwise(gpt()), []
    forward = type(module(model, UP_NORMS)).forward

    def scaled(self: nn.Module, x: Tensor) -> Tensor:
        calls.append(None)
        return forward(self, x) * Tensor(FACTORS if len(calls) > since else np.ones_like(FACTORS))

    replaced(model, UP_NORMS, forward=scaled)
    return model


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_a_small_factor_of_a_module_is_named(tmp_path: Path, task: str) -> None:
    a, b = record(tmp_path / "a.h5", gpt(), task=task), record(tmp_path / "b.h5", scaling(), task=task)
    first = probe.compare(a, b).first_divergence
    assert first is not None and (first.step, first.phase, first.path) == (0, Phase.FORWARD, UP_NORMS)
    assert first.measure == "of the norm" and first.error == pytest.approx(BY, rel=0.3)
    assert first.error > first.limit


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize("is_constant", [True, False])
def test_a_small_constant_is_named(tmp_path: Path, task: str, is_constant: bool) -> None:
    """14 unit roundoffs, where elements may be off by 22; up and down they are noise."""
    faulty = rounding_otherwise(gpt())
    forward = type(module(faulty, UP_NORMS)).forward

    def shifted(self: nn.Module, x: Tensor) -> Tensor:
        y = forward(self, x)
        by = 14 * 2.0**-24 * np.sqrt(np.mean(y.data**2)) * np.ones_like(y.data)
        return y + (by if is_constant else by * (-1.0) ** np.arange(y.data.shape[-1])).astype(np.float32)

    replaced(faulty, UP_NORMS, forward=shifted)
    a, b = record(tmp_path / "a.h5", gpt(), task=task), record(tmp_path / "b.h5", faulty, task=task)
    first = probe.compare(a, b).first_divergence
    assert (first and first.path) == (UP_NORMS if is_constant else None)


def test_behind_a_fault_norms_are_consequences(tmp_path: Path) -> None:
    a, b = record(tmp_path / "a.h5", gpt()), record(tmp_path / "b.h5", scaling())
    assert [each.path for each in probe.compare(a, b).divergences] == [UP_NORMS]


def test_weights_that_updates_have_moved_apart_change_norms_too(tmp_path: Path) -> None:
    """So such a factor is only seen where the step is known to begin with the same weights."""
    a, b = record(tmp_path / "a.h5", gpt(), steps=2), record(tmp_path / "b.h5", scaling(since=1), steps=2)
    assert probe.compare(a, b).verdict is Verdict.ALIGNED


def scaled_loss(model: nn.Module, optimizer: nn.Optimizer, number: int) -> Tensor:
    loss = loss_of(model(batch(number)), batch(number))
    scaled_gradient(loss, 1 + 2e-6).backward()
    optimizer.step()
    return loss


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_a_small_factor_of_the_loss_is_named(tmp_path: Path, task: str) -> None:
    a = record(tmp_path / "a.h5", gpt(), task=task)
    b = record(tmp_path / "b.h5", rounding_otherwise(gpt()), task=task, step=scaled_loss)
    first = probe.compare(a, b).first_divergence
    assert first is not None and first.phase is Phase.LOSS
    clean = record(tmp_path / "c.h5", rounding_otherwise(gpt()), task=task, step=plain_step)
    assert probe.compare(a, clean).verdict is Verdict.ALIGNED


def test_a_factor_in_few_elements_is_not_charged_to_what_is_made_of_them(tmp_path: Path) -> None:
    """192 elements say little of themselves, and 384 behind them say no more."""
    model = rounding_otherwise(gpt())
    replaced(model, "layers.1.norm2", forward=lambda self, x: nn.RMSNorm.forward(self, x) * (1 + 6e-7))
    a, b = record(tmp_path / "a.h5", gpt()), record(tmp_path / "b.h5", model)
    first = probe.compare(a, b).first_divergence
    assert first is None or first.path == "layers.1.norm2"


# ---- A loss that one side rounds to 16 bits is wrong there; where both do, it is how they train.


def record_loss(path: Path, dtype: type | None, factor: float = 1.0) -> Path:
    model = gpt()
    optimizer = nn.AdamW(model.parameters(), lr=1e-3)
    with probe.capture(model, path):
        loss = loss_of(model(batch(0)), batch(0))
        loss.backward()
        optimizer.step()
        value = float(loss.data) * factor
        probe.step(loss=float(dtype(value)) if dtype else value)
    return path


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, "float16"])
@pytest.mark.parametrize("rounded", ["A", "B"])
def test_one_side_alone(tmp_path: Path, dtype: object, rounded: str) -> None:
    kind = np.dtype(dtype).type
    a, b = (record_loss(tmp_path / f"{side}.h5", kind if side == rounded else None) for side in "AB")
    first = probe.compare(a, b).first_divergence
    assert first is not None and first.phase is Phase.LOSS
    assert first.path == "" and first.evidence[0].startswith("the loss differs: ")


def test_both_sides(tmp_path: Path) -> None:
    a = record_loss(tmp_path / "a.h5", ml_dtypes.bfloat16)
    b = record_loss(tmp_path / "b.h5", ml_dtypes.bfloat16, 1 + 2.0**-9)
    assert probe.compare(a, b).verdict is Verdict.ALIGNED
