"""A model that is given labels and makes its inputs of them, against one that is given those inputs: the same form, other names."""

from __future__ import annotations

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
from tests.comparison.planted import TASKS, Model
from tests.toys import GPT, batch, gpt, module, record

LABELS = np.asarray(batch(0).data)


def shifted(labels: np.ndarray) -> np.ndarray:
    return np.concatenate([np.zeros_like(labels[:, :1]), labels[:, :-1]], axis=1)


class OfLabels(GPT):
    """Makes what it embeds of its labels, as encoder-decoders of transformers do."""

    def forward(self, labels: Tensor) -> Any:
        return cross_entropy(super().forward(Tensor(shifted(labels.data))), labels)


class OfInputs(GPT):
    """Is given what it embeds; the loss is made outside."""

    def forward(self, ids: Tensor) -> Any:
        return super().forward(ids)


def run(
    path: Path, kind: type[GPT], task: str, change: Any = None, given: np.ndarray = LABELS, loss: np.ndarray = LABELS
) -> Path:
    model = gpt()
    model.__class__ = kind
    if change is not None:
        change(model)

    def step(model: Model, optimizer: nn.Optimizer, number: int) -> Any:
        if kind is OfLabels:
            value = model(labels=Tensor(given))
        else:
            value = cross_entropy(model(Tensor(shifted(given))), Tensor(loss))
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        return value

    return record(path, model, steps=2, step=step, task=task)


def compared(folder: Path, task: str = "statistics", *, swapped: bool = False, **options: Any) -> Comparison:
    files = run(folder / "a.h5", OfLabels, task), run(folder / "b.h5", OfInputs, task, **options)
    return probe.compare(*(files[::-1] if swapped else files))


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("swapped", [False, True])
def test_labels_are_not_held_against_inputs_that_are_made_of_them(tmp_path: Path, task: str, swapped: bool) -> None:
    found = compared(tmp_path, task, swapped=swapped)
    assert found.verdict is Verdict.ALIGNED, found
    ours, theirs = (found.inputs.only_b, found.inputs.only_a) if swapped else (found.inputs.only_a, found.inputs.only_b)
    assert (ours, theirs) == (("labels",), ("0",))


@pytest.mark.parametrize("task", TASKS)
def test_a_fault_behind_them_is_named(tmp_path: Path, task: str) -> None:
    first = compared(
        tmp_path, task, change=lambda m: setattr(module(m, "layers.1.norm2"), "eps", 1e-3)
    ).first_divergence
    assert first is not None and (first.phase, first.path) == (Phase.FORWARD, "layers.1.norm2")


def test_other_labels_are_a_wrong_loss(tmp_path: Path) -> None:
    first = compared(tmp_path, loss=np.where(LABELS == LABELS[0, 0], LABELS[0, 1], LABELS)).first_divergence
    assert first is not None and first.phase is Phase.LOSS


def test_inputs_that_are_made_of_other_labels_are_other_inputs(tmp_path: Path) -> None:
    first = compared(tmp_path, given=np.roll(LABELS, 2, axis=1)).first_divergence
    assert first is not None and first.kind is Kind.INPUTS


class Both(GPT):
    def forward(self, ids: Tensor, labels: Tensor) -> Any:
        return cross_entropy(super().forward(ids), labels)


class ByAnotherName(Both):
    def forward(self, ids: Tensor, targets: Tensor) -> Any:
        return super().forward(ids, targets)


def test_labels_that_are_what_both_sides_are_given_are_still_held_against_others(tmp_path: Path) -> None:
    """What B is given as labels is handed on, too: A hands the same on, but was given it."""
    files = []
    for name, kind, slot, labels in (
        ("a", Both, "labels", np.roll(LABELS, 2, axis=1)),
        ("b", ByAnotherName, "targets", LABELS),
    ):
        model = gpt()
        model.__class__ = kind

        def step(
            model: Model, optimizer: nn.Optimizer, number: int, slot: str = slot, labels: np.ndarray = labels
        ) -> Any:
            loss = model(Tensor(LABELS), **{slot: Tensor(labels)})
            loss.backward()
            return loss

        files.append(record(tmp_path / f"{name}.h5", model, steps=1, step=step))
    first = probe.compare(*files).first_divergence
    assert first is not None and first.kind is Kind.INPUTS
