"""Inputs and labels: said to be equal where they are, and the first thing that is said where they are not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import probe
from probe.adapters.numpy import nn
from probe.adapters.numpy.tensor import Tensor, cross_entropy, no_grad
from probe.comparison.result import Kind, Verdict
from probe.comparison.run import Comparison
from probe.records import Role
from probe.report.text import render
from probe.reproducibility import origins
from tests.comparison.planted import TASKS, said
from tests.toys import GPT, batch, gpt, loss_of, record

LABELS = np.arange(12).reshape(2, 6)
OTHER = np.where(LABELS == 7, 3, LABELS)
IMAGE = np.random.default_rng(0).normal(size=(2, 6)).astype("float32")


class WithLabels(GPT):
    """A model that is given its labels, and computes its loss itself."""

    def forward(self, ids: Tensor, labels: Tensor | None = None) -> Any:
        logits = super().forward(ids)
        return logits if labels is None else (cross_entropy(logits, labels), logits)


def run(
    path: Path, *, before: dict[str, np.ndarray] | None = None, after: dict[str, np.ndarray] | None = None,
    labels: np.ndarray | None = None, evaluate: bool = False, model: nn.Module | None = None, **options: Any,
) -> Path:  # fmt: skip
    """Record two steps in which arrays are logged before and after the model ran, or labels are given to it."""
    model = gpt() if model is None else model
    model.__class__ = WithLabels

    def step(model: nn.Module, optimizer: nn.Optimizer, number: int) -> Any:
        for name, array in (before or {}).items():
            probe.log(name, Tensor(array))
        if evaluate:
            with no_grad():
                model(batch(number))
            return 0.0
        given = {} if labels is None else {"labels": Tensor(labels)}
        output = model(batch(number), **given)
        for name, array in (after or {}).items():
            probe.log(name, Tensor(array))
        loss = loss_of(output, batch(number)) if labels is None else output[0]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return record(path, model, steps=2, step=step, **options)


def compared(tmp_path: Path, a: dict[str, Any], b: dict[str, Any], **options: Any) -> Comparison:
    return probe.compare(run(tmp_path / "a.h5", **a, **options), run(tmp_path / "b.h5", **b, **options))


def line(found: Comparison) -> str:
    return next(each for each in render(found).plain.splitlines() if each.startswith("Inputs: "))


@pytest.mark.parametrize("task", TASKS)
def test_equal_inputs_are_said_to_be(tmp_path: Path, task: str) -> None:
    logged: dict[str, Any] = {"before": {"image": IMAGE}, "after": {"targets": LABELS}}
    found = compared(tmp_path, logged, logged, task=task)
    assert found.verdict is Verdict.ALIGNED
    assert set(found.inputs.equal) == {"image", "targets", "0"}
    assert found.as_json()["inputs"] == {
        "equal": ["image", "0", "targets"], "close": [], "different": [], "not_comparable": [], "only_a": [], "only_b": []
    }  # fmt: skip
    assert line(found) == "Inputs: image, argument 0, targets equal on both sides"


def test_inputs_that_were_rounded_otherwise(tmp_path: Path) -> None:
    rounded = IMAGE * np.float32(1 + 2**-23)
    found = compared(tmp_path, {"before": {"image": IMAGE}}, {"before": {"image": rounded}})
    assert (found.verdict, found.inputs.close) == (Verdict.ALIGNED, ("image",))
    assert line(found) == "Inputs: argument 0 equal on both sides; image equal but for rounding"


def assert_input(found: Comparison, slot: str, role: Role, text: str, more: str = "") -> None:
    first = found.first_divergence
    assert first is not None
    assert (first.kind, first.path, first.role, first.a[0].slot) == (Kind.INPUTS, "", role, slot)
    assert first.evidence[0] == text
    assert first.hint == f"feed both sides the same batch before looking at anything else{more}"
    assert found.divergences == (first,), "what comes behind other inputs is a consequence"
    assert slot in found.inputs.different


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(
    ("where", "name", "a", "b"),
    [
        ("before", "image", IMAGE, IMAGE[::-1].copy()),
        ("before", "labels", LABELS, OTHER),
        ("after", "labels", LABELS, OTHER),
    ],
    ids=["floats before", "integers before", "integers after"],
)
def test_a_logged_batch_that_differs(tmp_path: Path, task: str, where: str, name: str, a: Any, b: Any) -> None:
    found = compared(tmp_path, {where: {name: a}}, {where: {name: b}}, task=task)
    is_turned = name == "image" and task == "tensor"
    more = "; B has the indices of axis 0 of A in another order, the last first (verified)" if is_turned else ""
    assert_input(found, name, Role.VALUE, f"{name}, which the program logged beside the model, differs", more)
    assert line(found) == f"Inputs: argument 0 equal on both sides; {name} different"


def test_a_logged_batch_of_another_size(tmp_path: Path) -> None:
    found = compared(tmp_path, {"before": {"y": LABELS}}, {"before": {"y": LABELS[:, :3].copy()}})
    first = found.first_divergence
    assert first is not None and first.kind is Kind.INPUTS
    assert "[2, 6]" in first.evidence[0] and found.inputs.not_comparable == ("y",)


def test_floats_that_are_logged_behind_the_model_are_computed_from_it(tmp_path: Path) -> None:
    """They are no inputs: what the program does with the outputs is wrong."""
    found = compared(tmp_path, {"after": {"probabilities": IMAGE}}, {"after": {"probabilities": IMAGE[::-1].copy()}})
    assert found.first_divergence is not None and found.first_divergence.kind is Kind.INTRODUCED
    assert found.inputs.equal == ("0",) and not found.inputs.different


@pytest.mark.parametrize("task", TASKS)
def test_labels_that_are_given_by_keyword(tmp_path: Path, task: str) -> None:
    equal = compared(tmp_path, {"labels": LABELS}, {"labels": LABELS}, task=task)
    assert equal.verdict is Verdict.ALIGNED and set(equal.inputs.equal) == {"0", "labels"}
    for file in tmp_path.iterdir():
        file.unlink()
    found = compared(tmp_path, {"labels": LABELS}, {"labels": OTHER}, task=task)
    assert_input(found, "labels", Role.INPUT, "the model is given different inputs")


def test_labels_that_one_side_gives_to_the_model_and_the_other_logs(tmp_path: Path) -> None:
    for labels, kind in ((LABELS, None), (OTHER, Kind.INPUTS)):
        for one_is_a in (True, False):
            folder = tmp_path / f"{kind}-{one_is_a}"
            folder.mkdir()
            sides: list[dict[str, Any]] = [{"labels": LABELS}, {"before": {"labels": labels}}]
            found = compared(folder, *(sides if one_is_a else sides[::-1]))
            first = found.first_divergence
            if kind is None:
                assert "labels" in found.inputs.equal and (first is None or first.kind is not Kind.INPUTS)
            else:
                assert first is not None and (first.kind, first.a[0].slot) == (Kind.INPUTS, "labels")


def test_an_input_that_one_side_alone_has(tmp_path: Path) -> None:
    found = compared(tmp_path, {"labels": LABELS}, {})
    assert found.inputs.only_a == ("labels",) and "labels only in A" in line(found)


def test_an_input_that_differs_in_a_later_step_is_not_called_equal(tmp_path: Path) -> None:
    def other_step(number: int) -> Callable[..., Any]:
        def step(model: nn.Module, optimizer: nn.Optimizer, at: int) -> Any:
            with no_grad():
                model(batch(at if at < 1 else number))
            return 0.0

        return step

    found = probe.compare(
        record(tmp_path / "a.h5", steps=2, step=other_step(1)), record(tmp_path / "b.h5", steps=2, step=other_step(5))
    )
    assert found.first_divergence is not None and found.first_divergence.step == 1
    assert (found.inputs.equal, found.inputs.different) == ((), ("0",))


def test_an_input_that_was_rounded_otherwise_in_one_step_is_not_called_equal(tmp_path: Path) -> None:
    def rounded(factor: float) -> Callable[..., Any]:
        def step(model: nn.Module, optimizer: nn.Optimizer, at: int) -> Any:
            probe.log("image", Tensor(IMAGE * np.float32(factor if at == 0 else 1.0)))
            with no_grad():
                model(batch(at))
            return 0.0

        return step

    a = record(tmp_path / "a.h5", steps=2, step=rounded(1.0))
    found = probe.compare(a, record(tmp_path / "b.h5", steps=2, step=rounded(1 + 2**-23)))
    assert (found.inputs.equal, found.inputs.close) == (("0",), ("image",))


def test_what_is_logged_where_nothing_is_trained(tmp_path: Path) -> None:
    a = run(tmp_path / "a.h5", before={"labels": LABELS}, evaluate=True)
    found = probe.compare(a, run(tmp_path / "b.h5", before={"labels": OTHER}, evaluate=True))
    assert_input(found, "labels", Role.VALUE, "labels, which the program logged beside the model, differs")
    found = probe.compare(a, run(tmp_path / "c.h5", before={"labels": LABELS}, evaluate=True))
    assert found.verdict is Verdict.ALIGNED and set(found.inputs.equal) == {"labels", "0"}


class DistributedDataParallel(nn.Module):
    """A wrapper, by its name."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module=module)

    def forward(self, ids: Tensor) -> Tensor:
        return self.module(ids)


@pytest.mark.parametrize("labels", [LABELS, OTHER], ids=["equal", "other"])
def test_what_is_logged_where_one_side_is_wrapped(tmp_path: Path, labels: np.ndarray) -> None:
    def step(model: nn.Module, optimizer: nn.Optimizer, at: int) -> Any:
        probe.log("labels", Tensor(labels if isinstance(model, DistributedDataParallel) else LABELS))
        loss = loss_of(model(batch(at)), batch(at))
        loss.backward()
        return loss

    a = record(tmp_path / "a.h5", step=step)
    found = probe.compare(a, record(tmp_path / "b.h5", DistributedDataParallel(gpt()), step=step))
    if labels is LABELS:
        assert found.verdict is Verdict.ALIGNED and "labels" in found.inputs.equal
    else:
        assert found.first_divergence is not None and found.first_divergence.kind is Kind.INPUTS


def test_where_no_inputs_were_recorded(tmp_path: Path) -> None:
    found = compared(tmp_path, {}, {}, phases=["update"])
    assert line(found) == "Inputs: none were compared"


def test_other_seeds_and_origins_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def recorded(name: str, seed: int, inputs: int) -> Path:
        monkeypatch.setattr(origins, "_facts", {})
        origins.note(seed=seed)
        probe.make_inputs({"x": "float32[2]"}, seed=inputs)
        return record(tmp_path / name)

    a = recorded("a.h5", 1, 1)
    found = probe.compare(a, recorded("b.h5", 2, 3))
    assert said(found, "the seeds are not the same: 1 in A, 2 in B")
    only = ("make_inputs, seed 1: x float32[2] normal only in A", "make_inputs, seed 3: x float32[2] normal only in B")
    assert said(found, f"the inputs do not come from the same: {', '.join(only)}")
    assert not probe.compare(a, recorded("c.h5", 1, 1)).warnings
    monkeypatch.setattr(origins, "_facts", {})
    assert not probe.compare(a, record(tmp_path / "d.h5")).warnings
