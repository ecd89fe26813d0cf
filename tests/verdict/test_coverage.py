"""What keeps an answer from being `ALIGNED`, or stands beside it: what was recorded, and what is said."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import probe
from probe.adapters.numpy import nn
from probe.adapters.numpy.tensor import Tensor, no_grad
from probe.comparison.answer import Comparison
from probe.verdict.run import compare
from tests.toys import VOCABULARY, WIDTH, batch, evaluate, gpt, loss_of, module, plain_step, record

Step = Callable[[nn.Module, nn.Optimizer, int], Any]


def beside(name: str, values: np.ndarray) -> Step:
    def step(model: nn.Module, optimizer: nn.Optimizer, number: int) -> Tensor:
        probe.log(name, Tensor(values))
        return plain_step(model, optimizer, number)

    return step


def times(factor: float) -> Step:
    return lambda model, optimizer, number: plain_step(model, optimizer, number) * factor


def in_parts(count: int, order: list[int] | None = None, *, other: bool = False) -> Step:
    def step(model: nn.Module, optimizer: nn.Optimizer, number: int) -> float:
        ids = np.concatenate([batch(number).data, batch(number + (70 if other else 50)).data])[order or [0, 1, 2, 3]]
        for part in np.split(ids, count):
            (loss_of(model(Tensor(part)), Tensor(part)) / count).backward()
        optimizer.step()
        optimizer.zero_grad()
        return 1.0

    return step


def twice_evaluated(model: nn.Module, optimizer: nn.Optimizer, number: int) -> Tensor:
    with no_grad():
        model(batch(number + 9))
    return plain_step(model, optimizer, number)


def wide(model: nn.Module, optimizer: nn.Optimizer, number: int) -> Tensor:
    ids = Tensor(np.concatenate([batch(number).data] * 2))
    loss = loss_of(model(ids), ids)
    loss.backward()
    return loss


def evaluating(path: str) -> nn.Module:
    model = gpt()
    module(model, path).training = False
    return model


def frozen(path: str) -> nn.Module:
    model = gpt()
    module(model, path).weight.requires_grad = False
    return model


def nan_in(path: str) -> nn.Module:
    model = gpt()
    module(model, path).weight.data[0] = math.nan
    return model


IMAGE = np.arange(6, dtype=np.float32)
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], str, set[str]]] = {
    "the same": ({}, {}, "aligned", set()),
    "no numbers": ({"task": "structure"}, {"task": "structure"}, "undecided", {"nothing-compared"}),
    "norms alone": ({"task": "norms"}, {"task": "norms"}, "undecided", {"nothing-compared"}),
    "rate of 0": ({"lr": 0.0}, {"lr": 0.0}, "undecided", {"no-parameter-changed"}),
    "losses of NaN": ({"step": times(math.nan)}, {"step": times(math.nan)}, "undecided", {"not-judged-behind-nan"}),
    "infinite losses": ({"step": times(math.inf)}, {"step": times(-math.inf)}, "diverged", set()),
    "NaN on both sides": (
        {"model": lambda: nan_in("layers.1.norm1")},
        {"model": lambda: nan_in("layers.1.norm1")},
        "undecided",
        {"not-judged-behind-nan"},
    ),
    "training and evaluation": ({}, {"step": evaluate}, "undecided", {"gradients-off-on-one-side"}),
    "another batch": ({}, {"step": wide}, "diverged", set()),
    "the same samples in parts": (
        {"step": in_parts(1)}, {"step": in_parts(2)}, "aligned", {"micro-batches-joined"},
    ),
    "samples strided over parts": (
        {"step": in_parts(1)}, {"step": in_parts(2, [0, 2, 1, 3])}, "aligned", {"micro-batches-joined"},
    ),
    "other samples in parts": ({"step": in_parts(1)}, {"step": in_parts(2, other=True)}, "diverged", set()),
    "an evaluation on one side": ({}, {"step": twice_evaluated}, "aligned", {"other-number-of-forwards"}),
    "one module in another mode": ({}, {"model": lambda: evaluating("layers.1.mlp")}, "aligned", {"modes-differ"}),
    "one weight that does not learn": (
        {"phases": ["init", "forward"]},
        {"phases": ["init", "forward"], "model": lambda: frozen("layers.1.norm1")},
        "aligned",
        {"weights-learn-on-one-side"},
    ),
    "another image beside the model": (
        {"step": beside("image", IMAGE)}, {"step": beside("image", IMAGE[::-1].copy())}, "diverged", set(),
    ),
    "a value on one side": ({"step": beside("seen", IMAGE)}, {}, "aligned", {"recorded-without-counterpart"}),
    "gradients alone": ({}, {"phases": ["gradient"]}, "aligned", {"recorded-parts-differ"}),
}  # fmt: skip
"""how A and B are recorded, the verdict, and the codes of what is said, among others"""


def recorded(path: Path, model: Callable[[], nn.Module] = gpt, lr: float = 1e-3, **options: Any) -> Path:
    made = model()
    options = {"task": "tensor", **options}
    return record(path, made, optimizer=nn.AdamW(made.parameters(), lr=lr), **options)


def said(answer: Comparison) -> set[str]:
    return {each.code for each in answer.notes}


@pytest.mark.parametrize("case", CASES)
def test_what_an_answer_says_of_itself(tmp_path: Path, case: str) -> None:
    a, b, verdict, codes = CASES[case]
    answer = compare(recorded(tmp_path / "a.h5", **a), recorded(tmp_path / "b.h5", **b))
    assert (answer.verdict.value, codes - said(answer)) == (verdict, set()), (answer.divergences, answer.warnings)


def test_one_recording_against_itself(tmp_path: Path) -> None:
    path = recorded(tmp_path / "a.h5")
    answer = compare(path, path)
    assert answer.verdict.value == "undecided" and "same-run" in said(answer)


def test_two_models_are_no_pair(tmp_path: Path) -> None:
    other = nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY))
    answer = compare(recorded(tmp_path / "a.h5"), record(tmp_path / "b.h5", other), min_confidence=1)
    assert answer.verdict.value != "aligned" and answer.reasons[0].code == "different-models"


@pytest.mark.parametrize("changed", [False, True])
def test_a_run_that_was_recorded_later_begins_with_what_the_step_before_left(tmp_path: Path, changed: bool) -> None:
    def trained(name: str, eps: float, steps: list[int] | None) -> Path:
        model = gpt()
        module(model, "layers.1.norm2").eps = eps
        optimizer = nn.AdamW(model.parameters(), lr=1e-3)
        with probe.capture(model, tmp_path / name, steps=steps):
            for number in range(4):
                probe.step(loss=plain_step(model, optimizer, number))
        return tmp_path / name

    answer = compare(trained("a.h5", 1e-6, None), trained("b.h5", 0.1 if changed else 1e-6, [2, 3]))
    first = answer.first_divergence
    assert (first is not None) is changed and sum(row.phase.label == "init" for row in answer.slots) == 39
    assert first is None or (first.phase.label, first.step, first.path) == ("init", 2, "")
