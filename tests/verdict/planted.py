"""Faults that are planted into a small model, and what they must be found as."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from probe.answer.comparison import Comparison
from probe.answer.result import Verdict
from tests.toy import nn
from tests.toy.tensor import Tensor
from tests.toys import GPT, MLP, batch, gpt, loss_of, module, replaced, scaled_gradient

TASKS = ["statistics", "tensor"]
Model = nn.Module
Recorder = Callable[..., Path]
Clean = Callable[[str], Path]
Faulty = Callable[[str, str], Path]


def mostly_statistics(names: Iterable[str | None], *with_values: str) -> list[tuple[str | None, str]]:
    """Return (name, task) for each name from statistics, and for some of them from values too, which is slower."""
    return [*((name, "statistics") for name in names), *((name, "tensor") for name in with_values)]


def changed(change: Callable[[Model], object]) -> GPT:
    model = gpt()
    change(model)
    return model


def said(comparison: Comparison, text: str) -> bool:
    return any(text in warning for warning in comparison.warnings)


def _dropped(model: Model) -> None:
    members = vars(model.layers)
    del members["1"]
    members["1"] = members.pop("2")


def _half_block(self: Any, x: Tensor) -> Tensor:
    y = x + self.attn(self.norm1(x))
    return y + self.mlp(self.norm2(y)) * 1.1


def _nan(self: Any, x: Tensor) -> Tensor:
    y = nn.RMSNorm.forward(self, x)
    y.data[0, 2, 3] = math.nan
    return y


def _drop_some(self: Any, x: Tensor) -> Tensor:
    kept = np.random.default_rng(5).random(x.shape) > 0.1
    return nn.Attention.forward(self, x) * kept.astype(np.float32)


DOWN, UP = "layers.1.mlp.down", "layers.1.mlp.up"


MODEL_FAULTS: dict[str, tuple[Callable[[Model], object], tuple[str, str, str, str]]] = {
    "eps": (
        lambda m: setattr(module(m, "layers.1.norm2"), "eps", 1e-3),
        ("forward", "introduced", "layers.1.norm2", "0"),
    ),
    "small eps": (
        lambda m: setattr(module(m, "layers.1.norm1"), "eps", 1e-5),
        ("forward", "introduced", "layers.1.norm1", "0"),
    ),
    "activation": (
        lambda m: setattr(module(m, "layers.1.mlp.act"), "__class__", nn.GELU),
        ("forward", "introduced", "layers.1.mlp.act", "0"),
    ),
    "code after all children": (
        lambda m: replaced(m, "layers.2", forward=_half_block),
        ("forward", "introduced", "layers.2", "0"),
    ),
    "code between two children": (
        lambda m: replaced(m, "layers.1.mlp", forward=lambda s, x: s.down(s.act(s.gate(x)) * s.up(x) * 1.001)),
        ("forward", "introduced", "layers.1.mlp", ""),
    ),
    "dropout left on": (
        lambda m: replaced(m, "layers.1.attn", forward=_drop_some),
        ("forward", "introduced", "layers.1.attn", "0"),
    ),
    "NaN": (lambda m: replaced(m, "layers.1.norm2", forward=_nan), ("forward", "nonfinite", "layers.1.norm2", "0")),
    "a layer dropped": (_dropped, ("forward", "missing", "layers.1", "")),
    "one weight": (
        lambda m: np.multiply(module(m, "layers.1.attn.o").weight.data, 1.01, module(m, "layers.1.attn.o").weight.data),
        ("init", "init", "layers.1.attn.o", "weight"),
    ),
    "no bias": (lambda m: delattr(module(m, UP), "bias"), ("init", "missing", UP, "bias")),
    "gradient of one of two consumers": (
        lambda m: replaced(m, UP, forward=lambda s, x: nn.Linear.forward(s, scaled_gradient(x, 1.5))),
        ("backward", "introduced", UP, "0"),
    ),
    "gradient at a container's output": (
        lambda m: replaced(m, "layers.1.mlp", forward=lambda s, x: scaled_gradient(MLP.forward(s, x), 1.5)),
        ("backward", "introduced", "layers.1.mlp", ""),
    ),
    "gradient at a container's input": (
        lambda m: replaced(m, "layers.1.mlp", forward=lambda s, x: MLP.forward(s, scaled_gradient(x, 1.5))),
        ("backward", "introduced", "layers.1.mlp", "0"),
    ),
    "frozen": (
        lambda m: setattr(module(m, DOWN).weight, "requires_grad", False),
        ("gradient", "missing", DOWN, "weight"),
    ),
    "gradient of one weight": (
        lambda m: replaced(m, DOWN, forward=lambda s, x: x @ scaled_gradient(s.weight, 1.5).swapaxes(0, 1) + s.bias),
        ("gradient", "introduced", DOWN, "weight"),
    ),
}


def assert_found(found: Comparison, wanted: tuple[str, str, str, str], path_b: str | None = None) -> None:
    first = found.first_divergence
    assert first is not None, found.warnings
    assert found.verdict is Verdict.DIVERGED
    phase, kind, path, slot = wanted
    assert (first.phase.label, first.kind.value, first.path, first.a[0].slot) == (phase, kind, path, slot)
    assert first.step == 0
    if kind != "missing" or slot:
        assert first.b[0].path == (path if path_b is None else path_b)
    assert 0.5 < first.confidence <= 1
    assert first.evidence and first.hint
    if first.metrics is not None:
        assert first.metrics.rel_l2 > first.limit or math.isnan(first.limit)


def step_of(change: Callable[[Model, Tensor, int], Tensor]) -> Callable[..., Tensor]:
    """Make a training step with something between backward and the optimizer, or another loss."""

    def step(model: Model, optimizer: nn.Optimizer, number: int) -> Tensor:
        loss = change(model, batch(number), number)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def in_micro_batches(count: int, scale: float = 1.0) -> Callable[..., float]:
    def step(model: Model, optimizer: nn.Optimizer, number: int) -> float:
        ids = np.concatenate([batch(number).data, batch(number + 50).data])
        for part in np.array_split(ids, count):
            (loss_of(model(Tensor(part)), Tensor(part)) * (scale * len(part) / len(ids))).backward()
        optimizer.step()
        optimizer.zero_grad()
        return 1.0

    return step
