"""Modules that are given something else on the other side: a residual to add, routing in another form, no call at all for a tied head."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import probe
from probe.adapters.numpy import nn
from probe.adapters.numpy.tensor import Tensor, softmax, tanh
from probe.comparison.result import Verdict
from tests.toys import MLP, VOCABULARY, WIDTH, record, replaced

TASKS = pytest.mark.parametrize("task", ["statistics", "tensor"])


class Plain(nn.Module):
    """Adds, and normalises the sum."""

    def __init__(self) -> None:
        super().__init__(mlp=MLP(WIDTH), norm=nn.RMSNorm(WIDTH), up=nn.Linear(WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mlp(x)
        return x + self.up(self.norm(x))


class AddNorm(nn.RMSNorm):
    """Adds a residual to its input, normalises the sum, and returns both."""

    scale = 1.0

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        x = x + residual
        return nn.RMSNorm.forward(self, x) * self.scale, x


class Fused(Plain):
    """The same with the sum inside the norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm.__class__ = AddNorm

    def forward(self, x: Tensor) -> Tensor:
        normed, x = self.norm(self.mlp(x), x)
        return x + self.up(normed)


class Model(nn.Module):
    """An embedding, two layers, a head."""

    def __init__(self, layer: Callable[[], nn.Module]) -> None:
        super().__init__(embed=nn.Embedding(VOCABULARY, WIDTH), layers=nn.ModuleList(layer(), layer()),
                         head=nn.Linear(WIDTH, VOCABULARY))  # fmt: skip

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.layers(self.embed(ids)))


def _model(layer: Callable[[], nn.Module], change: Callable[[Any], object] = lambda model: None) -> nn.Module:
    nn.manual_seed(5)
    model = Model(layer)
    change(model)
    return model


def _wrong_norm(model: Any) -> None:
    replaced(model, "layers.1.norm", scale=np.float32(1 + 1e-4))


def _wrong_mlp(model: Any) -> None:
    replaced(model, "layers.1.mlp", forward=lambda mlp, x: MLP.forward(mlp, x) * np.float32(1 + 1e-4))


@TASKS
def test_a_norm_that_adds_the_residual_itself_is_right(tmp_path: Path, task: str) -> None:
    a, b = (record(tmp_path / f"{layer.__name__}.h5", _model(layer), steps=3, task=task) for layer in (Plain, Fused))
    for pair in ((a, b), (b, a)):
        found = probe.compare(*pair)
        assert found.verdict is Verdict.ALIGNED, found


@TASKS
@pytest.mark.parametrize(("change", "path"), [(_wrong_norm, "layers.1.norm"), (_wrong_mlp, "layers.1.mlp")])
def test_a_fault_in_or_before_such_a_norm_is_named(
    tmp_path: Path, task: str, change: Callable[[Any], object], path: str
) -> None:
    a = record(tmp_path / "a.h5", _model(Plain), task=task)
    first = probe.compare(a, record(tmp_path / "b.h5", _model(Fused, change), task=task)).first_divergence
    assert first is not None and first.path == path


@TASKS
def test_another_residual_is_a_fault(tmp_path: Path, task: str) -> None:
    class Halved(Fused):
        def forward(self, x: Tensor) -> Tensor:
            normed, x = self.norm(self.mlp(x), x * np.float32(0.5))
            return x + self.up(normed)

    a = record(tmp_path / "a.h5", _model(Plain), task=task)
    first = probe.compare(a, record(tmp_path / "b.h5", _model(Halved), task=task)).first_divergence
    assert first is not None and first.path == "layers.0"


class Chosen(nn.Module):
    """Two experts, of which the weights of each token are given."""

    def __init__(self) -> None:
        super().__init__(one=nn.Linear(WIDTH, WIDTH), two=nn.Linear(WIDTH, WIDTH))

    def forward(self, x: Tensor, weights: Tensor) -> Tensor:
        return self.one(x) * weights[..., :1] + self.two(x) * weights[..., 1:]


class ChosenByRows(Chosen):
    """The same, with the weights in rows."""

    def forward(self, x: Tensor, weights: Tensor) -> Tensor:
        weights = weights.swapaxes(0, 1).reshape(*x.shape[:-1], -1)
        return Chosen.forward(self, x, weights[..., :2])


class Mixture(nn.Module):
    """A gate, and experts that it weighs."""

    def __init__(self) -> None:
        super().__init__(gate=nn.Linear(WIDTH, 2), experts=Chosen())

    def forward(self, x: Tensor) -> Tensor:
        return x + self.experts(x, softmax(self.gate(x)))


class OtherMixture(Mixture):
    """The same in another form: what the experts are given has a row for each expert, and a third one that counts for nothing."""

    temperature = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.experts.__class__ = ChosenByRows

    def forward(self, x: Tensor) -> Tensor:
        weights = softmax(self.gate(x) * np.float32(self.temperature))
        rows = weights.reshape(-1, 2).swapaxes(0, 1)
        return x + self.experts(x, Tensor(np.eye(3, 2, dtype=np.float32)) @ rows)


@TASKS
def test_what_the_caller_makes_in_another_form_is_the_callers(tmp_path: Path, task: str) -> None:
    a = record(tmp_path / "a.h5", _model(Mixture), task=task)
    right = probe.compare(a, record(tmp_path / "right.h5", _model(OtherMixture), task=task))
    assert right.verdict is Verdict.ALIGNED, right
    hot = type("OtherMixture", (OtherMixture,), {"temperature": 1.1})
    first = probe.compare(a, record(tmp_path / "b.h5", _model(hot), task=task)).first_divergence
    assert first is not None and first.path == "layers.0"


class Tied(nn.Module):
    """A head with the embedding's weight, and a cap behind it."""

    def __init__(self) -> None:
        super().__init__(
            embed=nn.Embedding(VOCABULARY, WIDTH), mlp=MLP(WIDTH), head=nn.Linear(WIDTH, VOCABULARY, bias=False)
        )
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        return tanh(self.head(self.mlp(self.embed(ids))))


class ByHand(nn.Module):
    """The same without a module for the head."""

    cap = 1.0

    def __init__(self) -> None:
        super().__init__(embed=nn.Embedding(VOCABULARY, WIDTH), mlp=MLP(WIDTH))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.mlp(self.embed(ids))
        return tanh((x @ self.embed.weight.swapaxes(0, 1)) * np.float32(1 / self.cap)) * np.float32(self.cap)


@TASKS
def test_a_tied_head_by_hand_is_not_to_blame_for_what_stands_behind_it(tmp_path: Path, task: str) -> None:
    def made(kind: type[nn.Module]) -> nn.Module:
        nn.manual_seed(2)
        return kind()

    a = record(tmp_path / "a.h5", made(Tied), task=task)
    assert probe.compare(a, record(tmp_path / "right.h5", made(ByHand), task=task)).verdict is Verdict.ALIGNED
    capped = type("ByHand", (ByHand,), {"cap": 0.5})
    first = probe.compare(a, record(tmp_path / "b.h5", made(capped), task=task)).first_divergence
    assert first is not None and first.path == "" and "not compared there: head (in A only)" in first.evidence[1]


class Images(nn.Module):
    """One layer over the channels of images."""

    def __init__(self, channels_last: bool = False) -> None:
        super().__init__(mix=nn.Linear(3, 3), channels_last=channels_last)

    def forward(self, images: Tensor) -> Tensor:
        last = images if self.channels_last else images.swapaxes(1, 2).swapaxes(2, 3)
        return self.mix(last)


class ImagesLast(Images):
    """The same under another name, given its channels last."""


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize("change", ["", "sides", "channels"])
def test_images_whose_sides_or_channels_are_exchanged_are_other_inputs(tmp_path: Path, task: str, change: str) -> None:
    """Their sides are equal: another order of axes would make them agree, and the first layer that looks at them would be named."""
    images = np.random.default_rng(0).standard_normal((2, 3, 8, 8)).astype(np.float32)
    given = {"": images, "sides": images.swapaxes(2, 3), "channels": images[:, ::-1]}[change].transpose(0, 2, 3, 1)
    files = []
    for name, kind, values in (("a", Images, images), ("b", ImagesLast, np.ascontiguousarray(given))):
        nn.manual_seed(0)
        model = kind(kind is ImagesLast)
        with probe.capture(model, tmp_path / f"{name}.h5", task=task):
            (model(Tensor(values)) ** 2).mean().backward()
            probe.step()
        files.append(tmp_path / f"{name}.h5")
    found = probe.compare(*files)
    first = found.first_divergence
    if not change:
        assert first is None, first
        return
    assert first is not None and (first.kind.value, first.path) == ("inputs", "")
    assert first.evidence[0] == "the model is given different inputs"
