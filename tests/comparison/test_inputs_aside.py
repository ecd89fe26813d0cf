"""Integers that only the loss is made of: labels that one side shifts outside of the model, the other inside."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import probe
from probe.adapters.numpy import nn
from probe.adapters.numpy.tensor import Tensor, cross_entropy
from probe.comparison.result import Kind, Verdict
from probe.comparison.run import Comparison
from probe.records import Phase
from tests.comparison.planted import TASKS, Model, said
from tests.toys import GPT, batch, gpt, module, record

LABELS = np.arange(12).reshape(2, 6)
SHIFTED = np.roll(LABELS, -1, axis=1)
OTHER = np.where(LABELS == 7, 3, LABELS)


class Shifting(GPT):
    def forward(self, ids: Tensor, labels: Tensor) -> Any:
        return cross_entropy(super().forward(ids), Tensor(np.roll(labels.data, -1, axis=1)))


class Shifted(GPT):
    times = 1.0

    def forward(self, ids: Tensor, labels: Tensor) -> Any:
        return cross_entropy(super().forward(ids), labels) * self.times


def run(path: Path, kind: type[GPT], change: Callable[[Model], object] | None = None, *, task: str = "statistics",
        **given: Any) -> Path:  # fmt: skip
    model = gpt()
    model.__class__ = kind
    if change is not None:
        change(model)

    def step(model: nn.Module, optimizer: nn.Optimizer, number: int) -> Any:
        loss = model(batch(number), **{name: Tensor(array) for name, array in given.items()})
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return record(path, model, steps=2, step=step, task=task)


def compared(
    folder: Path, change: Callable[[Model], object] | None = None, labels: Any = SHIFTED, task: str = "statistics",
    **options: Any,
) -> Comparison:  # fmt: skip
    a = run(folder / "a.h5", Shifting, labels=LABELS, task=task)
    return probe.compare(a, run(folder / "b.h5", Shifted, change, labels=labels, task=task), **options)


@pytest.mark.parametrize("task", TASKS)
def test_labels_that_are_shifted_outside_of_the_model(tmp_path: Path, task: str) -> None:
    found = compared(tmp_path, task=task)
    assert found.verdict is Verdict.ALIGNED
    assert found.inputs.different == ("labels",), "that they differ stays said"
    move = ": those of B are A's shifted by one position (verified)" if task == "tensor" else ""
    assert (
        f"the model's input labels differs{move}; the loss and the gradients agree, and nothing else is made of it"
        in (found.warnings)
    )


@pytest.mark.parametrize("task", TASKS)
def test_a_fault_behind_labels_that_are_shifted_outside(tmp_path: Path, task: str) -> None:
    found = compared(tmp_path, lambda m: setattr(module(m, "layers.1.norm2"), "eps", 1e-3), task=task)
    first = found.first_divergence
    assert first is not None and (first.phase, first.path) == (Phase.FORWARD, "layers.1.norm2")
    assert said(found, "what is wrong first was not made of it")


def test_a_wrong_loss_behind_labels_that_are_known_to_be_shifted(tmp_path: Path) -> None:
    first = compared(tmp_path, lambda m: setattr(m, "times", 1.25), task="tensor").first_divergence
    assert first is not None and (first.phase, first.kind) == (Phase.LOSS, Kind.INTRODUCED)
    assert first.evidence[1] == (
        "what the model's own code makes of the output of head before that was not compared: a factor or a cap, say"
    )
    assert first.hint.startswith(
        "look at what is done to the output of head before the loss, and at the loss function: "
    )


def test_labels_that_are_shifted_twice(tmp_path: Path) -> None:
    """A's loss shifts them by one position, and B's are shifted by two: what is left of them is said with the loss."""
    labels = np.concatenate([LABELS[:, 2:], np.full((2, 2), -100)], axis=1)

    class Leaving(Shifted):
        def forward(self, ids: Tensor, labels: Tensor) -> Any:
            return super().forward(ids, Tensor(np.maximum(labels.data, 0)))

    a = run(tmp_path / "a.h5", Shifting, labels=LABELS, task="tensor")
    found = probe.compare(a, run(tmp_path / "b.h5", Leaving, labels=labels, task="tensor"))
    first, move = found.first_divergence, "those of B are A's shifted by 2 positions (verified)"
    assert first is not None and (first.phase, first.kind) == (Phase.LOSS, Kind.INTRODUCED)
    assert f"of labels, {move}" in first.evidence
    assert first.hint.endswith(f"; or at how far each side's loss shifts its labels: {move}")
    assert said(found, f"labels differs: {move}; that is right if the loss of the other side shifts them as far itself")


@pytest.mark.parametrize("task", TASKS)
def test_labels_that_are_others(tmp_path: Path, task: str) -> None:
    found = compared(tmp_path, labels=OTHER, task=task)
    first = found.first_divergence
    assert first is not None and (first.kind, first.a[0].slot) == (Kind.INPUTS, "labels")
    told = "whether they are the same labels, shifted by a position, statistics do not tell: record with task='tensor'"
    assert (told in first.evidence) is (task == "statistics")
    assert found.divergences == (first,)
    assert "introduced" not in {slot.verdict for slot in found.slots if slot.slot_a != "labels"}


def test_an_input_that_the_models_own_code_uses_comes_first(tmp_path: Path) -> None:
    """As a padding mask that is made into another one before a module gets it."""
    ones = np.ones((2, 6), np.int64)
    some = ones.copy()
    some[1, 4:] = 0

    class Masking(Shifting):
        def forward(self, ids: Tensor, labels: Tensor, kept: Tensor) -> Any:
            y = self.embed(ids) * kept.data[..., None].astype(np.float32)
            for _, layer in self.layers.children():
                y = layer(y)
            return cross_entropy(self.head(self.norm(y)), labels)

    files = [run(tmp_path / f"{i}.h5", Masking, labels=LABELS, kept=kept) for i, kept in enumerate((ones, some))]
    first = probe.compare(*files).first_divergence
    assert first is not None and (first.kind, first.a[0].slot) == (Kind.INPUTS, "kept")


@pytest.mark.parametrize("path", ["Shift*", ""])
def test_a_rule_leaves_an_input_of_the_model_unjudged(tmp_path: Path, path: str) -> None:
    rule = {"path": path, "role": "input", "ignore": True}
    found = compared(tmp_path, labels=OTHER, rules=[rule])
    assert found.first_divergence is not None and found.first_divergence.phase is Phase.LOSS
    assert found.inputs.different == ("labels",)
    assert said(found, "pairs of tensors are not judged, as rules say")


def test_a_rule_that_fits_no_input(tmp_path: Path) -> None:
    found = compared(tmp_path, labels=OTHER, rules=[{"path": "Shift", "role": "input", "ignore": True}])
    assert found.first_divergence is not None and found.first_divergence.kind is Kind.INPUTS
    assert said(found, "nothing that was compared fits Shift")
