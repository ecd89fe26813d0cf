"""An input that A's model alone is given, though what is wrong was not made of it: labels, where B computes its loss outside."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import probe
from probe.adapters.numpy import nn
from probe.adapters.numpy.tensor import Tensor, cross_entropy
from probe.comparison.result import Kind, Verdict
from probe.comparison.run import Comparison
from tests.comparison.planted import Recorder
from tests.toys import GPT, batch, gpt, replaced

LABELS = np.arange(12).reshape(2, 6)
KEPT = np.array([[1, 1, 1, 1, 0, 0]] * 2)


class Angles(nn.Module):
    """Made anew by A, as cosines are, and handed to its layers."""

    def forward(self, x: Tensor) -> Tensor:
        return Tensor(np.ones(x.data.shape[1], np.float32))


class Mine(GPT):
    """Hands its layers something that B's do not get, and computes its loss itself."""

    names = ("labels",)

    def forward(self, ids: Tensor, **given: Tensor) -> Any:
        x, kept = self.embed(ids), given.get("kept")
        mask = {} if kept is None else {"mask": Tensor(kept.data.astype(np.float32)[..., None])}
        angles = self.angles(x)
        for layer in self.layers:
            x = layer(x, angles=angles, **mask)
        logits, labels = self.head(self.norm(x)), next((given[name] for name in ("labels", "y") if name in given), None)
        return logits if labels is None else cross_entropy(logits, labels)


def of_a(self: Any, x: Tensor, angles: Tensor, mask: Tensor | None = None) -> Tensor:
    x = x + self.attn(self.norm1(x))
    return x + self.mlp(self.norm2(x)) * (np.float32(1) if mask is None else mask)


def behind_the_norm(self: Any, x: Tensor) -> Tensor:
    x = self.norm1(x) + self.attn(self.norm1(x))
    return x + self.mlp(self.norm2(x))


def scaled(self: Any, x: Tensor) -> Tensor:
    x = x + self.attn(self.norm1(x))
    return (x + self.mlp(self.norm2(x))) * np.float32(1.25)


def compared(run: Recorder, wrong: Any = None, **given: Any) -> Comparison:
    mine, theirs = gpt(), gpt()
    mine.__class__ = Mine
    mine.angles = Angles()
    for number in range(3):
        replaced(mine, f"layers.{number}", forward=of_a)
    if wrong is not None:
        replaced(theirs, "layers.1", forward=wrong)

    def step_of_a(model: nn.Module, optimizer: nn.Optimizer, number: int) -> Any:
        loss = model(batch(number), **{name: Tensor(array) for name, array in given.items()})
        loss = loss if {"labels", "y"} & given.keys() else cross_entropy(loss, Tensor(LABELS))
        loss.backward()
        return loss

    def step_of_b(model: nn.Module, optimizer: nn.Optimizer, number: int) -> Any:
        loss = cross_entropy(model(batch(number)), Tensor(LABELS))
        loss.backward()
        return loss

    return probe.compare(run(mine, step=step_of_a), run(theirs, step=step_of_b))


@pytest.mark.parametrize("name", ["labels", "y"])
@pytest.mark.parametrize(("wrong", "slot"), [(behind_the_norm, ""), (scaled, "0")], ids=["input inside", "output"])
def test_labels_that_one_side_alone_is_given_are_not_behind_a_wrong_layer(
    run: Recorder, name: str, wrong: Any, slot: str
) -> None:
    found = compared(run, wrong, **{name: LABELS})
    first = found.first_divergence
    assert first is not None and (first.kind, first.path, first.a[0].slot) == (Kind.INTRODUCED, "layers.1", slot)
    assert found.inputs.only_a == (name,)


def test_labels_that_are_the_ids_are_not_handed_to_what_gets_the_ids(run: Recorder) -> None:
    first = compared(run, scaled, labels=np.asarray(batch(0).data)).first_divergence
    assert first is not None and (first.kind, first.path) == (Kind.INTRODUCED, "layers.1")


def test_labels_that_one_side_alone_is_given_are_no_difference(run: Recorder) -> None:
    assert compared(run, labels=LABELS).verdict is Verdict.ALIGNED


def test_an_integer_mask_that_one_side_makes_into_another_is_behind_a_wrong_layer(run: Recorder) -> None:
    first = compared(run, labels=LABELS, kept=KEPT).first_divergence
    assert first is not None and (first.kind, first.path, first.a[0].slot) == (Kind.INPUTS, "", "kept")
    assert first.evidence == ("the model is given kept on A only", "the output 0 of layers.0 differs first")
