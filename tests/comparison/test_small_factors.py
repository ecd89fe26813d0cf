"""Factors in backward that are hardly larger than rounding: a multiple of the value is no rounding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import probe
from probe.adapters.numpy import nn
from probe.adapters.numpy.tensor import Tensor
from probe.comparison.noise import tolerance
from probe.comparison.noise.tolerance import BACKWARD, COHERENT, Rule
from probe.comparison.result import Verdict
from probe.comparison.steps.side import Metrics, Status
from probe.records import Phase
from tests.toys import MLP, batch, gpt, loss_of, record, replaced, rounding_otherwise, scaled_gradient

FACTOR = 1 + 3e-6
UP = "layers.1.mlp.up"


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
        (UP, lambda m, x: nn.Linear.forward(m, scaled_gradient(x, FACTOR)), Phase.BACKWARD, UP),
        ("layers.1.mlp", lambda m, x: scaled_gradient(MLP.forward(m, x), FACTOR), Phase.BACKWARD, "layers.1.mlp"),
        (UP, lambda m, x: x @ scaled_gradient(m.weight, FACTOR).swapaxes(0, 1) + m.bias, Phase.GRADIENT, UP),
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


@pytest.mark.parametrize(
    ("error", "ratio", "coherence", "size", "peaks", "has_direction"),
    [
        (1e-2, 1 + 0.97e-2, 0.97, 32, 4, True),
        (1e-2, 1 - 0.97e-2, -0.97, 32, 4, True),
        (1e-2, 1 + 0.97e-2, 0.97, 31, 4, False),  # few elements have a direction by chance
        (1e-2, 1 + 0.97e-2, 0.97, 4096, 3.9, False),  # and so has what few elements are most of
        (1e-2, 1 + 0.97e-2, 0.97, 4096, float("nan"), True),  # of a sum that is not known
        (1e-2, 1 + 0.85e-2, 0.85, 4096, 99, False),  # a router's logits in 16 bits
        (0.7, 1.72, 0.2, 4096, 99, False),  # another length, and another direction
        (0.0, 1.0, 0.0, 4096, 99, False),
        (1.0, float("nan"), float("nan"), 4096, 99, False),  # A is zero
    ],
)
def test_what_has_a_direction(
    error: float, ratio: float, coherence: float, size: int, peaks: float, has_direction: bool
) -> None:
    metrics = Metrics(Status.COMPARED, error, coherence=coherence, norm_a=1.0, norm_b=ratio)
    rule = tolerance.backward_rule(metrics, size, lambda: peaks, BACKWARD)
    assert rule == (Rule(COHERENT.k, COHERENT.k16, COHERENT.gain, plain=BACKWARD) if has_direction else BACKWARD)
    of_loss = tolerance.backward_rule(
        metrics, size, lambda: peaks, replace(BACKWARD, scale=tolerance.LOSS_SCALE), has_scale=True
    )
    plain = replace(BACKWARD, scale=tolerance.LOSS_SCALE) if has_direction else BACKWARD
    assert of_loss == replace(
        rule, scale=tolerance.LOSS_SCALE if size >= 32 else None, plain=plain if rule.plain else None
    )


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
    small = probe.compare(a, run("small", rounding_otherwise(gpt()), 1 + 8e-6))
    assert small.verdict is Verdict.ALIGNED, small.first_divergence
    first = probe.compare(a, run("large", rounding_otherwise(gpt()), 1 + 1e-3)).first_divergence
    assert first is not None and (first.phase, first.path) == (Phase.GRADIENT, UP)
    text = "the gradient of this parameter differs, what leads to it was not compared: its module is not called, its caller uses the weight"
    assert first.evidence[0] == text
