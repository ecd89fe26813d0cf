"""Several faults in one run: all that are wrong by themselves are listed in the order of cause, what they cause is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import probe
from probe.adapters.numpy import nn
from probe.report.text import render
from tests.comparison.planted import DOWN, MODEL_FAULTS, TASKS, Clean, Model, Recorder
from tests.toys import gpt, module, replaced, scaled_gradient

Plant = Callable[[Model], object]


def _eps(path: str, size: float = 1e-3) -> Plant:
    return lambda m: setattr(module(m, path), "eps", size)


def _bias(path: str) -> Plant:
    def plant(model: Model) -> None:
        module(model, path).bias.data += 0.01

    return plant


def _scaled(path: str, size: float) -> Plant:
    def plant(model: Model) -> None:
        module(model, path).weight.data *= size

    return plant


def _gelu(path: str) -> Plant:
    return lambda m: setattr(module(m, path), "__class__", nn.GELU)


def _gradient(path: str) -> Plant:
    return lambda m: replaced(m, path, forward=lambda s, x: nn.Linear.forward(s, scaled_gradient(x, 1.5)))


class Dropout(nn.Module):
    """Takes every third element away while it is trained."""

    def __init__(self, active: bool) -> None:
        super().__init__(active=active)

    def forward(self, x: Any) -> Any:
        kept = (np.arange(x.data.size).reshape(x.shape) % 3 > 0) | (not self.active)
        return x * kept.astype(np.float32)


def _dropout(active: bool) -> Plant:
    def plant(model: Model) -> None:
        layer = module(model, "layers.2.mlp")
        layer.dropout = Dropout(active)
        forward = type(layer).forward
        replaced(model, "layers.2.mlp", forward=lambda s, x: s.dropout(forward(s, x)))

    return plant


SEVERAL: dict[str, tuple[list[Plant], float, list[tuple[str, str]]]] = {
    "eps and a bias of a later layer": (
        [_eps("layers.0.norm1"), _bias("layers.2.mlp.up")], 1e-3, [("init", "layers.2.mlp.up"), ("forward", "layers.0.norm1")],
    ),
    "two of the forward pass": (
        [_eps("layers.0.norm1"), _gelu("layers.2.mlp.act")], 1e-3,
        [("forward", "layers.0.norm1"), ("forward", "layers.2.mlp.act")],
    ),
    "three of the forward pass": (
        [_eps("layers.0.norm1", 1e-5), _eps("layers.1.norm1", 1e-3), _gelu("layers.2.mlp.act")], 1e-3,
        [("forward", "layers.0.norm1"), ("forward", "layers.1.norm1"), ("forward", "layers.2.mlp.act")],
    ),
    "forward and learning rate": ([_eps("layers.1.norm2")], 1.1e-3, [("forward", "layers.1.norm2"), ("update", "")]),
    "forward and backward": (
        [_eps("layers.1.norm2", 1e-5), _gradient("layers.0.mlp.up")], 1e-3,
        [("forward", "layers.1.norm2"), ("backward", "layers.0.mlp.up")],
    ),
    "a weight and a frozen one": (
        [_scaled("layers.0.mlp.gate", 1.01), MODEL_FAULTS["frozen"][0]], 1e-3,
        [("init", "layers.0.mlp.gate"), ("gradient", DOWN)],
    ),
    "weight, activation and learning rate": (
        [_scaled("layers.0.mlp.gate", 1.0001), _gelu("layers.1.mlp.act")], 1.1e-3,
        [("init", "layers.0.mlp.gate"), ("forward", "layers.1.mlp.act"), ("update", "")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("name", SEVERAL)
def test_all_are_listed_and_nothing_else(clean: Clean, run: Recorder, name: str, task: str) -> None:
    plants, rate, wanted = SEVERAL[name]
    model = gpt()
    for plant in plants:
        plant(model)
    found = probe.compare(clean(task), run(model, optimizer=nn.AdamW(model.parameters(), lr=rate), task=task))
    assert [(each.phase.label, each.path) for each in found.divergences] == wanted
    assert all(0.3 < each.confidence <= 1 for each in found.divergences)


def test_how_sure_each_is_stands_beside_it(clean: Clean, run: Recorder) -> None:
    plants, rate, wanted = SEVERAL["two of the forward pass"]
    model = gpt()
    for plant in plants:
        plant(model)
    found = probe.compare(clean("tensor"), run(model, task="tensor"))
    first, second = found.divergences
    assert second.confidence < 0.8 * first.confidence, "its inputs differ already"
    assert second.evidence[-1].startswith("what it is made from differs already, and its error is ")
    text = render(found).plain
    assert "Also wrong by itself, in the order of cause (1 of 1)" in text
    assert (
        f"forward   layers.2.mlp.act  output 0  rel {second.metrics.rel_l2:.1e}  confidence {second.confidence:.2f}"
        in text
    )
    assert "layers.2.mlp.act" not in render(found, top=0).plain.partition("Compared ")[0].replace(first.path, "")


def test_an_active_dropout_behind_another_fault(run: Recorder) -> None:
    def model(active: bool, eps: float) -> Model:
        made = gpt()
        _dropout(active)(made)
        _eps("layers.0.norm1", eps)(made)
        return made

    found = probe.compare(run(model(False, 1e-6)), run(model(True, 1e-3)))
    assert [(each.phase.label, each.path) for each in found.divergences] == [
        ("forward", "layers.0.norm1"), ("forward", "layers.2.mlp.dropout"),
    ]  # fmt: skip
    assert "this Dropout is active in B only: it takes away 33% of its elements in B" in found.divergences[1].evidence
