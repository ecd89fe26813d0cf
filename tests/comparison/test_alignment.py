"""Calls are aligned by what they were given: one too many, or another order, shifts nothing behind it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import probe
from probe.adapters.numpy import nn
from probe.adapters.numpy.tensor import Tensor
from probe.comparison.result import Verdict
from tests.comparison.planted import Recorder
from tests.toys import plain_step

WIDTH = 6


class Reused(nn.Module):
    """One layer, run several times; what it is given is scaled before each."""

    def __init__(self, factors: tuple[float, ...], extra: int | None = None) -> None:
        nn.manual_seed(0)
        super().__init__(layer=nn.Linear(WIDTH, WIDTH), head=nn.Linear(WIDTH, WIDTH))
        self.factors, self.extra = factors, extra

    def forward(self, x: Tensor) -> Tensor:
        total = x
        for n, factor in enumerate(self.factors):
            if n == self.extra:
                self.layer(x * 7.0)  # nobody uses it
            total = total + self.layer(x * factor)
        return self.head(total)


def step(model: Any, optimizer: Any, number: int) -> Tensor:
    x = Tensor(np.random.default_rng(number).standard_normal((4, WIDTH)).astype(np.float32))
    loss = model(x).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def test_an_extra_call_in_the_middle_shifts_nothing(run: Recorder) -> None:
    a = run(Reused((1.0, 2.0, 3.0)), step=step)
    b = run(Reused((1.0, 2.0, 3.0), extra=1), step=step)
    for pair, name, whose in (((a, b), "B", ""), ((b, a), "A", "A's ")):
        found = probe.compare(*pair)
        assert found.verdict is Verdict.ALIGNED, found.first_divergence
        text = (
            f"B calls layer (Linear) one time {'more' if name == 'B' else 'less'} in step 0: {whose}call 1 of 4, "
            "between call 0 of layer and call 2 of layer, has no counterpart"
        )
        assert text in found.warnings
        kind, places = ("called more often", ([], ["layer"])) if name == "B" else ("called less often", (["layer"], []))
        (change,) = found.as_json()["changes"]
        told = {"kind": kind, "a": places[0], "b": places[1], "code": "other-number-of-calls", "text": text}
        assert change == told | {"facts": change["facts"]}
        assert (found.only_a, found.only_b) == ((), ()), "the module has a counterpart, this one call has none"
        inputs = [slot for slot in found["layer"] if slot.role.label == "input"]
        assert len(inputs) == 3 and {slot.metrics.status.value for slot in inputs} == {"equal"}


def test_calls_in_another_order_are_paired_by_what_they_are_given(run: Recorder) -> None:
    a = run(Reused((1.0, 2.0, 3.0)), step=step)
    b = run(Reused((3.0, 1.0, 2.0)), step=step)
    found = probe.compare(a, b)
    assert found.verdict is Verdict.ALIGNED, found.first_divergence
    assert "B calls in another order than A in step 0, told by what they are given and return: layer" in found.warnings


def test_as_many_calls_that_nothing_contradicts_keep_their_order(run: Recorder) -> None:
    a = run(Reused((1.0, 2.0, 3.0)), step=step)
    b = run(Reused((1.0, 2.5, 3.0)), step=step)
    found = probe.compare(a, b)
    assert found.verdict is Verdict.DIVERGED
    assert [slot.call for slot in found["layer"] if slot.role.label == "input"] == [0, 1, 2]
    assert not any("order" in text or "more often" in text for text in found.warnings)


def test_the_extra_call_is_the_odd_one_even_without_hashes(run: Recorder) -> None:
    a = run(Reused((1.0, 2.0, 3.0)), step=step)
    close = Reused((1.0 + 1e-6, 2.0 + 1e-6, 3.0 + 1e-6), extra=2)
    found = probe.compare(a, run(close, step=step))
    text = "call 2 of 4, between call 1 of layer and call 3 of layer, has no counterpart"
    assert f"B calls layer (Linear) one time more in step 0: {text}" in found.warnings


def test_a_model_whose_calls_agree_is_told_nothing(run: Recorder) -> None:
    found = probe.compare(run(step=plain_step), run(step=plain_step))
    assert found.verdict is Verdict.ALIGNED and not found.warnings


class Kinds(nn.Module):
    """Positions of several kinds, made by one module that is given the same each time, as Gemma 3 does over a set of names."""

    def __init__(self, kinds: tuple[float, ...], wrong: float = 1.0) -> None:
        nn.manual_seed(0)
        super().__init__(positions=Positions(), head=nn.Linear(WIDTH, WIDTH))
        self.kinds, self.wrong = kinds, wrong

    def forward(self, x: Tensor) -> Tensor:
        made = {}
        for kind in self.kinds:
            self.positions.kind = kind * (self.wrong if kind == 2.0 else 1.0)
            made[kind] = self.positions(x)
        total = x
        for kind in sorted(made):
            total = total + made[kind]
        return self.head(total)


class Positions(nn.Module):
    kind = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return x * self.kind


@pytest.mark.parametrize("rounding", [1.0, 1.0 + 1e-7])
def test_calls_that_are_given_the_same_are_told_by_what_they_return(run: Recorder, rounding: float) -> None:
    a, b = Kinds((1.0, 2.0, 3.0)), Kinds((3.0, 1.0, 2.0), rounding)
    found = probe.compare(run(a, step=step), run(b, step=step))
    assert found.verdict is Verdict.ALIGNED, found.first_divergence
    assert (
        "B calls in another order than A in step 0, told by what they are given and return: positions" in found.warnings
    )


def test_a_wrong_result_is_no_other_order(run: Recorder) -> None:
    a, b = Kinds((1.0, 2.0, 3.0)), Kinds((1.0, 2.0, 3.0), 1.5)  # what is wrong is what the next call returns
    first = probe.compare(run(a, step=step), run(b, step=step)).first_divergence
    assert first is not None and first.path == "positions"
