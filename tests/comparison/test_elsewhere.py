"""Weights whose values stand at another place in the other model, joined ones too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import probe
from probe.adapters.numpy import nn
from probe.adapters.numpy.tensor import Tensor
from probe.comparison.result import Divergence, Kind
from tests.comparison.planted import Recorder
from tests.fusing import apart, mapping, together
from tests.toys import GPT, gpt, module


def loaded(order: Sequence[int]) -> Any:
    """Return the model with q, k and v together, each layer's of which has the values of another layer's."""
    model, source = together(), together()
    for layer, number in enumerate(order):
        for slot in ("weight", "bias"):
            mine, theirs = (module(each, f"layers.{n}.attn.qkv") for each, n in ((model, layer), (source, number)))
            getattr(mine, slot).data[...] = getattr(theirs, slot).data
    return model


def first_of(run: Recorder, a: Any, b: Any, task: str) -> Divergence:
    rules = mapping(2) if a.__class__ is not b.__class__ or hasattr(module(a, "layers.0.attn"), "q") else None
    first = probe.compare(run(a, task=task), run(b, task=task), mapping=rules).first_divergence
    assert first is not None and first.kind is Kind.INIT
    return first


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_joined_weights_of_swapped_layers(run: Recorder, task: str) -> None:
    first = first_of(run, apart(), loaded([1, 0, 2]), task)
    assert first.hint == (
        "what layers.0.attn.q, k and v has in A, layers.1.attn.qkv has in B: look at the order of the layers"
    )
    assert first.hints == ()


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_joined_weights_of_a_layer_that_was_left_out(run: Recorder, task: str) -> None:
    first = first_of(run, apart(), loaded([0, 2, 2]), task)
    assert first.hint == (
        "what layers.2.attn.q, k and v has in A, layers.1.attn.qkv has in B, and what layers.1.attn.q, k and v has in A is "
        "nowhere in B: look at which layers were left out, and which weights were loaded into which"
    )
    assert first.hints == ()


def test_a_copy_of_another_weight_tells_no_place(run: Recorder) -> None:
    """All layers of A have one value: that B has it in layers 0 and 2 does not make layer 1 theirs."""
    a, b = together(), together()
    for model in (a, b):
        for number in (1, 2):
            module(model, f"layers.{number}.attn.qkv").weight.data[...] = module(model, "layers.0.attn.qkv").weight.data
    module(b, "layers.1.attn.qkv").weight.data[...] = np.random.default_rng(3).standard_normal((32, 16), np.float32)
    first = first_of(run, a, b, "tensor")
    assert "has in" not in first.hint, first.hint


@pytest.mark.parametrize("bits", [0, 16])
def test_a_weight_is_drawn_anew_only_if_its_values_are_nowhere_else(run: Recorder, bits: int) -> None:
    """Values that were rounded when they were loaded elsewhere are no other seed either."""

    def model(seeds: Sequence[int], keep: int = 0) -> Any:
        made = together()
        nn.manual_seed(5)
        for number, seed in enumerate(seeds):
            values = np.random.default_rng(seed).standard_normal((64, 16), np.float32)
            if keep and number == 1:
                values = (values.view(np.uint32) + np.uint32(0x8000) & np.uint32(0xFFFF0000)).view(np.float32)
            module(made, f"layers.{number}").mlp = nn.Sequential(nn.Linear(16, 64), nn.Linear(64, 16))
            module(made, f"layers.{number}.mlp.0").weight.data[...] = values
        return made

    (drawn,) = first_of(run, model((0, 1, 2)), model((0, 5, 2)), "tensor").hints
    assert (drawn["name"], drawn["grade"]) == ("drawn anew", "weak")
    moved = first_of(run, model((0, 1, 2)), model((0, 2, 2), bits), "tensor")
    assert "drawn anew" not in [hint["name"] for hint in moved.hints]


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_a_head_that_is_tied_in_one_model_is_no_padding(run: Recorder, task: str, turned: bool) -> None:
    """Where the tied model has no module for the head, the embedding's gradient has more zero rows on the other side."""

    def forward(self: Any, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for _, layer in self.layers.children():
            x = layer(x)
        return self.norm(x) @ self.embed.weight.swapaxes(0, 1)

    def model(is_tied: bool) -> GPT:
        made = gpt()
        made.head.weight.data[...] = made.embed.weight.data
        if is_tied:
            made.__class__ = type("GPT", (GPT,), {"forward": forward})
            del made.head
        return made

    files = [run(model(is_tied), task=task) for is_tied in (not turned, turned)]
    found = probe.compare(*files)
    first = found.first_divergence
    assert first is not None and (first.path, first.kind) == ("embed", Kind.INTRODUCED), first
    mine, other = "BA" if turned else "AB"
    assert first.hint == (
        f"weight is tied on {mine}, not on {other}: its gradient on {mine} is that of embed.weight and head.weight together"
    )
