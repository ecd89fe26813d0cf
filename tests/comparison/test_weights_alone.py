"""Modules that a mapping pairs by their weights alone: one side calls them, the other side's own code uses the weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import probe
from probe.adapters.numpy import nn
from probe.adapters.numpy.tensor import Tensor, softmax
from probe.comparison.result import Kind, Verdict
from probe.comparison.run import Comparison
from tests.comparison.planted import Recorder
from tests.toys import WIDTH, gpt, module

EXPERTS = 4
MAPPING = {"Calling": {"params": {"score.weight": "weight"}}}


class Routed(nn.Module):
    """Adds what it is given as often as its gate says."""

    def forward(self, x: Tensor) -> Tensor:
        scores, shares = self.gate(x)
        return x * shares.sum(-1, keepdims=True) + scores.sum(-1, keepdims=True)


class Gate(nn.Module):
    """Uses its weight in its own code."""

    def forward(self, x: Tensor) -> Any:
        scores = x @ self.weight.swapaxes(0, 1)
        return scores, softmax(scores) * softmax(scores)


class Calling(nn.Module):
    """Calls a module that has the weight."""

    fault, calls = "", 0

    def forward(self, x: Tensor) -> Any:
        self.calls += 1
        scores = self.score(x * np.float32(1.1) if self.fault == "before" else x)
        is_faulty = self.fault == "behind" or (self.fault == "later" and self.calls == 2)
        return scores, softmax(scores) * softmax(scores) * np.float32(1.1 if is_faulty else 1)


def model(*, calls: bool, fault: str = "") -> nn.Module:
    made = gpt()
    for number in range(3):
        weight = np.random.default_rng(number).normal(size=(EXPERTS, WIDTH)).astype(np.float32)
        gate = Calling(score=nn.Linear(WIDTH, EXPERTS, bias=False)) if calls else Gate(weight=nn.Parameter(weight))
        if calls:
            gate.score.weight.data[...] = weight
            gate.fault = fault if number == 1 else ""
        module(made, f"layers.{number}").mlp = Routed(gate=gate)
    return made


def compared(run: Recorder, fault: str = "", *, turned: bool = False, steps: int = 1) -> Comparison:
    files = [run(model(calls=False), steps=steps), run(model(calls=True, fault=fault), steps=steps)]
    return probe.compare(*(files[::-1] if turned else files), mapping=MAPPING)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("fault", "steps"), [("behind", 1), ("later", 2)])
def test_the_code_around_it_is_named(run: Recorder, fault: str, steps: int, turned: bool) -> None:
    assert compared(run, turned=turned, steps=steps).verdict is Verdict.ALIGNED
    found = compared(run, fault, turned=turned, steps=steps)
    first, side = found.first_divergence, "A" if turned else "B"
    assert first is not None and (first.step, first.kind) == (steps - 1, Kind.INTRODUCED)
    assert [(ref.path, ref.slot) for ref in (*first.a, *first.b)] == [("layers.1.mlp.gate", "1")] * 2
    assert first.evidence == (
        "the output 1 of layers.1.mlp.gate differs, what was there before it agrees",
        f"it is made between its input and what it returns; not compared there: layers.1.mlp.gate.score (in {side} only)",
    )
    assert "layers.1.mlp.gate.score" in (found.unneeded_a if turned else found.unneeded_b)


@pytest.mark.parametrize("turned", [False, True])
def test_it_is_named_itself_where_what_it_returns_is_wrong(run: Recorder, turned: bool) -> None:
    first = compared(run, "before", turned=turned).first_divergence
    here, there = "AB" if turned else "BA"
    assert first is not None and first.kind is Kind.INTRODUCED
    assert [ref.path for ref in (*first.a, *first.b)] == ["layers.1.mlp.gate.score"]
    assert first.evidence[0] == (
        f"{here} calls layers.1.mlp.gate.score; only its weights are compared, with layers.1.mlp.gate of {there}"
    )
    assert first.hint == (
        f"look at what {there} has in the place of layers.1.mlp.gate.score, of which the weights alone are compared"
    )
