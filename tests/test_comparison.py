"""Comparing two recordings of small models: clean pairs, planted faults, guards, and what the answer looks like."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import probe
from probe.adapters import numpy_nn as nn
from probe.adapters.numpy_tensor import Tensor, no_grad, operation, softmax
from probe.comparison.divergence import Comparison
from probe.comparison.result import SCHEMA, Kind, Verdict
from probe.errors import ConfigError, NotRecordedError, ProbeWarning, StoreError
from probe.records import Phase, Role
from tests.toys import (
    GPT,
    MLP,
    TO_SEQUENCE_FIRST,
    VOCABULARY,
    WIDTH,
    SequenceFirst,
    batch,
    evaluate,
    gpt,
    loss_of,
    module,
    plain_step,
    record,
    replaced,
    rounding_otherwise,
    scaled_gradient,
    stored_in_out,
)

TASKS = ["statistics", "tensor"]
Model = nn.Module
Recorder = Callable[..., Path]
Clean = Callable[[str], Path]
Faulty = Callable[[str, str], Path]


@pytest.fixture
def run(tmp_path: Path) -> Recorder:
    """Record a run into a new file; it may end by a ZeroDivisionError."""

    def recorded(model: Model | None = None, **options: Any) -> Path:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.h5"
        with contextlib.suppress(ZeroDivisionError):
            record(path, model, **options)
        return path

    return recorded


@pytest.fixture(scope="session")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Clean:
    """The clean run of two steps, by task."""
    folder = tmp_path_factory.mktemp("clean")

    def path(task: str = "statistics") -> Path:
        file = folder / f"{task}.h5"
        return file if file.exists() else record(file, steps=2, task=task)

    return path


@pytest.fixture(scope="session")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Faulty:
    """A run of one step with a fault of MODEL_FAULTS, by its name and the task."""
    folder = tmp_path_factory.mktemp("faulty")

    def path(name: str, task: str = "statistics") -> Path:
        file = folder / f"{list(MODEL_FAULTS).index(name)}-{task}.h5"
        return file if file.exists() else record(file, changed(MODEL_FAULTS[name][0]), task=task)

    return path


def mostly_statistics(names: Iterable[str | None], *with_values: str) -> list[tuple[str | None, str]]:
    """Return (name, task) for each name from statistics, and for some of them from values too, which is slower."""
    return [*((name, "statistics") for name in names), *((name, "tensor") for name in with_values)]


def changed(change: Callable[[Model], object]) -> GPT:
    model = gpt()
    change(model)
    return model


def said(comparison: Comparison, text: str) -> bool:
    return any(text in warning for warning in comparison.warnings)


# Clean pairs

CLEAN: dict[str, tuple[Callable[[Model], Model], dict[str, Any] | None]] = {
    "the same": (lambda model: model, None),
    "other rounding": (rounding_otherwise, None),
    "weights stored as [in, out]": (stored_in_out, None),
    "other names, layout and rounding": (lambda model: rounding_otherwise(SequenceFirst(model)), TO_SEQUENCE_FIRST),
}


@pytest.mark.parametrize(
    ("name", "task"),
    mostly_statistics(CLEAN, "weights stored as [in, out]", "other names, layout and rounding"),
)
def test_clean_pairs_are_aligned(clean: Clean, run: Recorder, name: str, task: str) -> None:
    change, mapping = CLEAN[name]
    there = run(change(gpt()), steps=2, task=task)
    for found in (
        probe.compare(clean(task), there, mapping=mapping),
        probe.compare(there, clean(task), mapping=mapping),
    ):
        assert found.verdict is Verdict.ALIGNED, found.first_divergence
        assert (found.divergences, found.warnings) == ((), ())
        assert found.coverage.paired == 2 * 43
        assert (found.coverage.only_a, found.coverage.only_b, found.coverage.not_comparable) == (0, 0, 0)
        assert (found.coverage.compared == len(found.slots)) and found.coverage.compared > 700
        equal = sum(slot.verdict == "equal" for slot in found.slots)
        assert (equal == len(found.slots)) is (name == "the same")
        assert not any(slot.verdict in ("introduced", "inherited", "not comparable") for slot in found.slots)


# Faults


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
NEEDS_PLACE = {"code after all children", "dropout left on", "a layer dropped", "NaN"}
"""faults in code that the other model does not share, or that know its layout"""


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


@pytest.mark.parametrize(
    ("name", "task"),
    mostly_statistics(MODEL_FAULTS, "eps", "NaN", "a layer dropped", "one weight", "no bias", "frozen",
                      "gradient of one of two consumers", "gradient at a container's input"),
)  # fmt: skip
def test_a_fault_is_found_where_it_is(clean: Clean, faulty: Faulty, name: str, task: str) -> None:
    wanted = MODEL_FAULTS[name][1]
    found = probe.compare(clean(task), faulty(name, task))
    assert_found(found, wanted)
    assert found.first_divergence is not None
    if found.first_divergence.metrics is not None:
        assert found.first_divergence.estimated is (task == "statistics" and name != "NaN") or name == "NaN"


def _path_there(path: str) -> str:
    for here, there in (("layers", "decoder.layers"), ("attn.o", "self_attention.proj"), ("norm1", "before"),
                        ("norm2", "between")):  # fmt: skip
        path = path.replace(here, there)
    return path


@pytest.mark.parametrize(
    ("name", "task"), mostly_statistics(sorted(MODEL_FAULTS.keys() - NEEDS_PLACE), "eps", "frozen")
)
def test_a_fault_is_found_under_noise_in_a_model_with_other_names_and_layout(
    clean: Clean, run: Recorder, name: str, task: str
) -> None:
    change, wanted = MODEL_FAULTS[name]
    there = run(rounding_otherwise(SequenceFirst(changed(change))), task=task)
    assert_found(probe.compare(clean(task), there, mapping=TO_SEQUENCE_FIRST), wanted, _path_there(wanted[2]))


def test_a_layer_that_a_lacks_is_named_by_its_place_in_b(clean: Clean, run: Recorder) -> None:
    first = probe.compare(run(changed(_dropped)), clean("statistics")).first_divergence
    assert first is not None and first.kind is Kind.MISSING
    assert (first.a, first.path) == ((), "layers.1")
    assert first.evidence[0] == "layers.1 is called on B and has no counterpart on A"


def _step(change: Callable[[Model, Tensor, int], Tensor]) -> Callable[..., Tensor]:
    """Make a training step with something between backward and the optimizer, or another loss."""

    def step(model: Model, optimizer: nn.Optimizer, number: int) -> Tensor:
        loss = change(model, batch(number), number)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def _scaled_loss(model: Model, ids: Tensor, number: int) -> Tensor:
    loss = loss_of(model(ids), ids) * 1.1
    loss.backward()
    return loss


def _scaled_backward(model: Model, ids: Tensor, number: int) -> Tensor:
    loss = loss_of(model(ids), ids)
    (loss * 1.1).backward()
    return loss


def _other_ids(model: Model, ids: Tensor, number: int) -> Tensor:
    loss = loss_of(model(batch(number + 7)), ids)
    loss.backward()
    return loss


def _clipped(model: Model, ids: Tensor, number: int) -> Tensor:
    loss = loss_of(model(ids), ids)
    loss.backward()
    for parameter in model.parameters():
        parameter.grad.data *= np.float32(0.5)
    return loss


def _clipped_one(model: Model, ids: Tensor, number: int) -> Tensor:
    loss = loss_of(model(ids), ids)
    loss.backward()
    module(model, UP).weight.grad.data *= np.float32(0.5)
    return loss


RUN_FAULTS: dict[str, tuple[Callable[[Model, Tensor, int], Tensor], tuple[str, str, str, str]]] = {
    "loss": (_scaled_loss, ("loss", "introduced", "", "loss")),
    "gradient of the loss": (_scaled_backward, ("loss", "introduced", "", "0")),
    "input ids": (_other_ids, ("forward", "inputs", "", "0")),
    "all gradients before the optimizer": (_clipped, ("update", "update", "", "")),
    "one gradient before the optimizer": (_clipped_one, ("update", "update", UP, "weight")),
}


@pytest.mark.parametrize(("name", "task"), mostly_statistics(RUN_FAULTS, "input ids"))
def test_a_fault_of_the_training_loop_is_found(clean: Clean, run: Recorder, name: str, task: str) -> None:
    change, wanted = RUN_FAULTS[name]
    assert_found(probe.compare(clean(task), run(step=_step(change), task=task)), wanted)


def _without_decay(model: Model) -> nn.Optimizer:
    named = [(name, parameter) for name, parameter, _ in model.named_tensors(nn.Parameter)]
    groups = [{"params": [p for n, p in named if "norm1" not in n]},
              {"params": [p for n, p in named if "norm1" in n], "weight_decay": 0.0}]  # fmt: skip
    return nn.AdamW(groups, lr=1e-3)


OPTIMIZER_FAULTS: dict[str, tuple[Callable[[Model], nn.Optimizer], tuple[str, str, str, str], str]] = {
    "learning rate": (
        lambda m: nn.AdamW(m.parameters(), lr=1.1e-3),
        ("update", "update", "", ""), "the settings differ: lr 0.001 against 0.0011 (group 0)",
    ),
    "weight decay of norms": (
        _without_decay,
        ("update", "update", "layers.0.norm1", "weight"), "the settings differ: weight_decay 0.01 against 0.0 (group 0)",
    ),
    "beta2": (
        lambda m: nn.AdamW(m.parameters(), lr=1e-3, betas=(0.9, 0.99)),
        ("update", "update", "", ""), "the settings differ: betas [0.9, 0.999] against [0.9, 0.99] (group 0)",
    ),
    "one parameter left out": (
        lambda m: nn.AdamW([p for p in m.parameters() if p is not module(m, UP).weight], lr=1e-3),
        ("update", "missing", UP, "weight"), "B's optimizer was not given this parameter",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("name", "task"), mostly_statistics(OPTIMIZER_FAULTS, "weight decay of norms"))
def test_a_fault_of_the_optimizer_is_found(clean: Clean, run: Recorder, name: str, task: str) -> None:
    make, wanted, hint = OPTIMIZER_FAULTS[name]
    model = gpt()
    found = probe.compare(clean(task), run(model, optimizer=make(model), task=task))
    assert_found(found, wanted)
    assert found.first_divergence is not None and found.first_divergence.hint == hint


def test_an_optimizer_that_does_nothing(clean: Clean, run: Recorder) -> None:
    def backward_only(model: Model, optimizer: nn.Optimizer, number: int) -> Tensor:
        return _step_without(model, number)

    found = probe.compare(clean("statistics"), run(step=backward_only))
    first = found.first_divergence
    assert first is not None and (first.phase, first.path) == (Phase.UPDATE, "")
    assert first.evidence == (
        "the updates of 39 of 39 parameters differ", "the first of them: only A's optimizer updates this parameter",
    )  # fmt: skip


def _step_without(model: Model, number: int) -> Tensor:
    loss = loss_of(model(batch(number)), batch(number))
    loss.backward()
    return loss


def test_other_initial_weights_are_said_once(clean: Clean, run: Recorder) -> None:
    found = probe.compare(clean("statistics"), run(gpt(seed=5)))
    first = found.first_divergence
    assert first is not None and (first.phase, first.kind, first.path) == (Phase.INIT, Kind.INIT, "")
    assert first.evidence[0] == "39 of 39 parameters differ before the first step"
    assert len([d for d in found.divergences if d.phase is Phase.INIT]) == 1


def test_the_first_step_with_a_fault_is_named_and_later_ones_are_not_judged(run: Recorder) -> None:
    def later(model: Model, optimizer: nn.Optimizer, number: int) -> Tensor:
        if number == 1:
            module(model, "layers.1.norm2").eps = 1e-3
        return plain_step(model, optimizer, number)

    found = probe.compare(run(steps=4), run(step=later, steps=4))
    first = found.first_divergence
    assert first is not None
    assert (first.step, first.path) == (1, "layers.1.norm2")
    assert found.warnings == ("2 later steps are not judged: they inherit what is wrong in step 1",)
    assert {slot.step for slot in found.slots} == {0, 1}


def _micro_batches(count: int, scale: float = 1.0) -> Callable[..., float]:
    def step(model: Model, optimizer: nn.Optimizer, number: int) -> float:
        ids = np.concatenate([batch(number).data, batch(number + 50).data])
        for part in np.split(ids, count):
            (loss_of(model(Tensor(part)), Tensor(part)) * (scale / count)).backward()
        optimizer.step()
        optimizer.zero_grad()
        return 1.0

    return step


def test_a_fault_in_the_second_micro_batch(run: Recorder) -> None:
    def second(model: Model, optimizer: nn.Optimizer, number: int) -> float:
        counted = iter(range(9))
        replaced(model, "layers.1.norm2",
                 forward=lambda s, x: nn.RMSNorm.forward(s, x) * (1.01 if next(counted) else 1.0))  # fmt: skip
        return _micro_batches(2)(model, optimizer, number)

    first = probe.compare(run(step=_micro_batches(2)), run(step=second)).first_divergence
    assert first is not None
    assert (first.a[0].micro, first.path, first.phase) == (1, "layers.1.norm2", Phase.FORWARD)


def test_another_split_into_micro_batches(run: Recorder) -> None:
    a = run(step=_micro_batches(4))
    found = probe.compare(a, run(step=_micro_batches(2)))
    assert found.verdict is Verdict.ALIGNED
    assert found.warnings == (
        "step 0: A ran 4 micro-batches, B 2: forward and backward are not compared, sums of gradients are",
    )
    assert {slot.role for slot in found.slots} >= {Role.PARAM_GRAD, Role.DELTA}
    assert not any(slot.role is Role.OUTPUT for slot in found.slots)
    wrong = probe.compare(a, run(step=_micro_batches(2, scale=2.0))).first_divergence
    assert wrong is not None and (wrong.phase, wrong.path) == (Phase.GRADIENT, "")
    assert wrong.evidence == (
        "39 of 39 gradients differ", "all by the same factor: B is 2 times A",
        "the backward pass was not compared, so which of them comes first is not known", "the optimizer used them so",
    )  # fmt: skip
    assert wrong.hint == "accumulation is divided on A only: B does not divide the loss by its 2 micro-batches"


def test_another_split_of_other_data(run: Recorder) -> None:
    def other(model: Model, optimizer: nn.Optimizer, number: int) -> float:
        return _micro_batches(2)(model, optimizer, number + 3)

    first = probe.compare(run(step=_micro_batches(4)), run(step=other)).first_divergence
    assert first is not None and (first.kind, first.path) == (Kind.INPUTS, "")
    assert first.evidence == ("A ran 4 micro-batches, B 2, and their inputs 0 do not add up to the same data",)


def test_evaluation_is_compared_too(run: Recorder) -> None:
    def both(model: Model, optimizer: nn.Optimizer, number: int) -> Tensor:
        loss = plain_step(model, optimizer, number)
        evaluate(model, optimizer, number)
        return loss

    def wrong_then(model: Model, optimizer: nn.Optimizer, number: int) -> Tensor:
        loss = plain_step(model, optimizer, number)
        module(model, "norm").eps = 1e-2
        evaluate(model, optimizer, number)
        return loss

    a = run(step=both)
    assert probe.compare(a, run(step=both)).verdict is Verdict.ALIGNED
    first = probe.compare(a, run(step=wrong_then)).first_divergence
    assert first is not None and (first.path, first.a[0].micro) == ("norm", -1)


# Guards: what is never called aligned


def test_a_run_compared_with_itself(clean: Clean) -> None:
    found = probe.compare(clean("statistics"), clean("statistics"))
    assert found.verdict is Verdict.UNDECIDED
    assert found.warnings == ("both files are the same run: it was compared with itself",)


def only_steps(path: Path, steps: object, count: int = 3) -> Path:
    model = gpt()
    optimizer = nn.AdamW(model.parameters(), lr=1e-3)
    with probe.capture(model, path, steps=steps):
        for number in range(count):
            probe.step(loss=plain_step(model, optimizer, number))
    return path


def test_no_step_in_common(tmp_path: Path) -> None:
    found = probe.compare(only_steps(tmp_path / "a.h5", [0]), only_steps(tmp_path / "b.h5", [1, 2]))
    assert found.verdict is Verdict.UNDECIDED
    assert found.warnings[0] == "no step in common: A has 0, B has 1, 2"
    assert (found.slots, found.first_divergence) == ((), None)


def test_steps_that_only_one_side_has_are_said(tmp_path: Path) -> None:
    found = probe.compare(only_steps(tmp_path / "a.h5", [0, 1]), only_steps(tmp_path / "b.h5", [1, 2]))
    assert found.verdict is Verdict.ALIGNED
    assert found.warnings == ("steps not compared: 0 only in A, 2 only in B",)


def test_no_complete_step(tmp_path: Path, clean: Clean) -> None:
    empty = only_steps(tmp_path / "empty.h5", 7, count=1)
    for pair, name in (((empty, clean("statistics")), "A"), ((clean("statistics"), empty), "B")):
        found = probe.compare(*pair)
        assert found.verdict is Verdict.UNDECIDED
        assert found.warnings[0] == f"{name} has no complete step ({empty})"


@pytest.mark.parametrize("tasks", [("structure", "structure"), ("structure", "statistics")])
@pytest.mark.parametrize("fault", [None, "eps", "NaN"])
def test_without_numbers_nothing_is_called_aligned(run: Recorder, tasks: tuple[str, str], fault: str | None) -> None:
    there = changed(MODEL_FAULTS[fault][0]) if fault else gpt()
    found = probe.compare(run(task=tasks[0]), run(there, task=tasks[1]))
    assert found.verdict is Verdict.UNDECIDED
    assert found.coverage.compared == 0 and found.coverage.not_comparable > 200
    assert said(found, "nothing was compared: no pair of tensors with numbers on both sides")
    assert said(found, "the loss differs (") is (fault is not None)


def test_another_shape_of_a_weight_is_seen_without_numbers(run: Recorder) -> None:
    def widen(model: Model) -> None:
        module(model, DOWN).weight = nn.Parameter(np.zeros((WIDTH, 3 * WIDTH), np.float32))
        for name in ("gate", "up"):
            module(model, f"layers.1.mlp.{name}").weight = nn.Parameter(np.zeros((3 * WIDTH, WIDTH), np.float32))
            module(model, f"layers.1.mlp.{name}").bias = nn.Parameter(np.zeros(3 * WIDTH, np.float32))

    for task in ("structure", "statistics"):
        first = probe.compare(run(task=task), run(changed(widen), task=task)).first_divergence
        assert first is not None and first.kind is Kind.SHAPE
        assert (first.phase, first.path, first.a[0].slot) == (Phase.INIT, "layers.1.mlp.gate", "weight")
        assert first.evidence == ("shape [32, 16] against [48, 16]",)


def test_a_weight_of_another_kind_of_numbers(run: Recorder, clean: Clean) -> None:
    def as_integers(model: Model) -> None:
        weight = module(model, DOWN).weight
        weight.data, weight.requires_grad = np.ones(weight.shape, np.int8), False

    first = probe.compare(clean("statistics"), run(changed(as_integers))).first_divergence
    assert first is not None and (first.kind, first.path) == (Kind.DTYPE, DOWN)
    assert first.evidence == ("float32 against int8",)


def test_a_batch_of_another_shape(clean: Clean, run: Recorder) -> None:
    def twice(model: Model, optimizer: nn.Optimizer, number: int) -> Tensor:
        ids = Tensor(np.concatenate([batch(number).data] * 2))
        loss = loss_of(model(ids), ids)
        loss.backward()
        return loss

    first = probe.compare(clean("statistics"), run(step=twice)).first_divergence
    assert first is not None
    assert (first.phase, first.role, first.kind, first.path) == (Phase.FORWARD, Role.INPUT, Kind.INPUTS, "")
    assert first.evidence == ("shape [2, 6] against [4, 6]",)
    assert first.hint == "feed both sides the same batch before looking at anything else"


@pytest.mark.parametrize("task", TASKS)
def test_nan_on_both_sides_is_not_aligned(faulty: Faulty, run: Recorder, task: str) -> None:
    found = probe.compare(faulty("NaN", task), run(changed(MODEL_FAULTS["NaN"][0]), task=task))
    assert found.verdict is Verdict.UNDECIDED
    assert found.warnings == (
        "step 0: forward output 0 of layers.1.norm2 has NaN on both sides: what is computed from it cannot be judged",
    )


def test_a_loss_that_is_nan(clean: Clean, run: Recorder) -> None:
    def nan(model: Model, optimizer: nn.Optimizer, number: int) -> Tensor:
        return plain_step(model, optimizer, number) * math.nan

    a, b = run(step=nan), run(step=nan)
    found = probe.compare(a, b)
    assert found.verdict is Verdict.UNDECIDED
    assert found.warnings == ("step 0: the loss is NaN on both sides: what is computed from it cannot be judged",)
    first = probe.compare(clean("statistics"), b).first_divergence
    assert first is not None and (first.phase, first.kind) == (Phase.LOSS, Kind.NONFINITE)


def test_infinities_in_a_mask_are_no_reason_to_doubt(run: Recorder) -> None:
    def masked(model: Model, optimizer: nn.Optimizer, number: int) -> Tensor:
        probe.log("mask", Tensor(np.triu(np.full((4, 4), -np.inf, np.float32), 1)))
        return plain_step(model, optimizer, number)

    assert probe.compare(run(step=masked), run(step=masked)).verdict is Verdict.ALIGNED


def test_low_coverage(run: Recorder) -> None:
    def renamed(model: Model) -> None:
        members = vars(model)
        for old, new in (("layers", "blocks"), ("embed", "tokens"), ("head", "output"), ("norm", "final")):
            members[new] = members.pop(old)

    def forward(self: Any, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        for layer in self.blocks:
            x = layer(x)
        return self.output(self.final(x))

    there = changed(renamed)
    there.__class__ = type("GPT", (GPT,), {"forward": forward})
    a, b = run(), run(there)
    found = probe.compare(a, b)
    assert found.verdict is Verdict.UNDECIDED
    assert said(
        found, "only 1 of 43 module calls of A have a counterpart (--min-coverage 50%): give a layer mapping with -lm"
    )
    assert len(found.only_a) == len(found.only_b) == 42
    assert (found.coverage.paired, found.coverage.only_a, found.coverage.only_b) == (1, 42, 42)
    assert probe.compare(a, b, min_coverage=0.01).verdict is Verdict.ALIGNED


def test_training_against_evaluation(clean: Clean, run: Recorder) -> None:
    found = probe.compare(clean("statistics"), run(step=evaluate))
    assert (found.verdict, found.first_divergence) == (Verdict.UNDECIDED, None)
    assert said(found, "step 0: A ran 1 micro-batches, B 0")


def test_two_files_that_are_no_pair_of_models(run: Recorder, clean: Clean) -> None:
    other = nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY))
    found = probe.compare(clean("statistics"), run(other))
    assert found.verdict is not Verdict.ALIGNED
    assert said(found, "only 1 of 3 module calls of B have a counterpart (--min-coverage 50%)")


# Steps that an exception ended


def _breaks(model: Model, optimizer: nn.Optimizer, number: int) -> Tensor:
    if number == 1:
        replaced(model, "layers.1.mlp", forward=lambda s, x: 1 / 0)
    return plain_step(model, optimizer, number)


def test_a_step_that_was_aborted_on_one_side_names_no_module(clean: Clean, run: Recorder) -> None:
    there = run(step=_breaks, steps=2)
    for pair, name in (((clean("statistics"), there), "B"), ((there, clean("statistics")), "A")):
        found = probe.compare(*pair)
        assert found.verdict is Verdict.UNDECIDED
        assert found.first_divergence is None, "what is missing is missing because of the exception"
        assert said(found, f"{name}: step 1 was ended by an exception, on the other side it was not")
        assert {slot.step for slot in found.slots} == {0, 1}


def test_a_step_that_was_aborted_on_both_sides(run: Recorder) -> None:
    found = probe.compare(run(step=_breaks, steps=2), run(step=_breaks, steps=2))
    assert found.verdict is Verdict.ALIGNED
    assert found.warnings == ("A: step 1 was ended by an exception", "B: step 1 was ended by an exception")


# Filters

PHASES = [["forward"], ["backward"], ["gradient"], ["update"], ["init"], ["init", "forward"], ["forward", "backward"]]
MODULES = [["layers.2*"], ["layers.1.mlp*"], ["Linear"], [""], ["!layers.0*"]]


@pytest.mark.parametrize("option", [{"phases": p} for p in PHASES] + [{"modules": m} for m in MODULES], ids=str)
def test_what_was_filtered_on_either_side_is_no_fault(
    clean: Clean, run: Recorder, option: dict[str, list[str]]
) -> None:
    one, two = run(**option), run(**option)
    assert probe.compare(one, two).verdict is Verdict.ALIGNED
    assert probe.compare(one, two).coverage.compared > 0
    full = clean("statistics")
    for pair, sides in (((full, one), "all in A, {} in B"), ((one, full), "{} in A, all in B")):
        found = probe.compare(*pair)
        assert found.first_divergence is None, found.first_divergence
        assert found.verdict in (Verdict.ALIGNED, Verdict.UNDECIDED)
        assert found.verdict is Verdict.ALIGNED or not found.coverage.compared
        ((name, filters),) = option.items()
        text = f"the {name} that were recorded are not the same: {sides.format(', '.join(filters))}"
        assert said(found, text)


@pytest.mark.parametrize(
    ("phases", "verdict"),
    [
        (["forward"], "layers.1.norm2"),
        (["init", "forward"], "layers.1.norm2"),
        (["backward"], "the gradient that comes back to the model's output 0 differs"),
        (["gradient"], "the loss differs ("),
        (["update"], "the gradients that the optimizer used differ"),
        (["init"], "the loss differs ("),
        (["loss"], "the loss differs ("),
    ],
    ids=str,
)
def test_a_forward_fault_is_never_blamed_on_what_was_recorded_instead(
    run: Recorder, phases: list[str], verdict: str
) -> None:
    found = probe.compare(run(phases=phases), run(changed(MODEL_FAULTS["eps"][0]), phases=phases))
    first = found.first_divergence
    if "forward" in phases:
        assert first is not None and first.path == verdict
        return
    assert said(found, verdict)
    if phases == ["gradient"]:
        assert first is not None and (first.path, first.phase) == ("", Phase.GRADIENT)
        assert "the backward pass was not compared, so which of them comes first is not known" in first.evidence
    else:
        assert (found.verdict, first) == (Verdict.UNDECIDED, None)


@pytest.mark.parametrize(
    ("modules", "kind", "path"),
    [
        (["layers.2*"], Kind.INPUTS, "layers.2"),
        (["layers.1.mlp*"], Kind.INPUTS, "layers.1.mlp"),
        (["Linear"], Kind.INTRODUCED, "layers.1"),
        (["layers.1*"], Kind.INTRODUCED, "layers.1.norm2"),
        ([""], Kind.INTRODUCED, ""),
    ],
    ids=str,
)
def test_a_fault_in_a_module_that_was_not_recorded_is_charged_to_none_inside(
    run: Recorder, modules: list[str], kind: Kind, path: str
) -> None:
    wrong = changed(MODEL_FAULTS["eps"][0])
    first = probe.compare(run(modules=modules), run(wrong, modules=modules)).first_divergence
    assert first is not None and (first.kind, first.path) == (kind, path)
    if kind is Kind.INPUTS:
        assert first.evidence == (f"the input 0 of {path} differs already, and nothing before it was compared",)


# What one side lacks


def test_an_input_that_only_one_side_has_lowers_confidence(run: Recorder) -> None:
    def with_mask(self: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return nn.Attention.forward(self, x)

    def block(self: Any, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x), mask=Tensor(np.ones((3, 3), np.float32)))
        return x + self.mlp(self.norm2(x))

    def masked() -> GPT:
        return changed(
            lambda m: (replaced(m, "layers.1.attn", forward=with_mask), replaced(m, "layers.1", forward=block))
        )

    a = run()
    assert probe.compare(a, run(masked())).verdict is Verdict.ALIGNED
    wrong = masked()
    replaced(wrong, "layers.1.attn", forward=lambda s, x, mask: with_mask(s, x) * 1.01)
    surely = probe.compare(a, run(changed(lambda m: replaced(
        m, "layers.1.attn", forward=lambda s, x: nn.Attention.forward(s, x) * 1.01)))).first_divergence  # fmt: skip
    less = probe.compare(a, run(wrong)).first_divergence
    assert surely is not None and less is not None
    assert surely.path == less.path == "layers.1.attn"
    assert less.confidence < surely.confidence
    assert any(text.startswith("not known to agree: mask") for text in less.evidence)


def test_inputs_with_other_names_are_paired_by_their_content(run: Recorder) -> None:
    def by_keyword(name: str) -> GPT:
        model = gpt()
        replaced(model, "layers.1.mlp", forward=lambda s, **given: MLP.forward(s, given[name]))
        replaced(model, "layers.1", forward=lambda s, x: _call_mlp(s, x, name))
        return model

    def _call_mlp(self: Any, x: Tensor, name: str) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(**{name: self.norm2(x)})

    found = probe.compare(run(by_keyword("hidden")), run(by_keyword("x")))
    assert found.verdict is Verdict.ALIGNED
    pairs = {(s.slot_a, s.slot_b) for s in found["layers.1.mlp"] if s.role in (Role.INPUT, Role.GRAD_TOTAL)}
    assert pairs == {("hidden", "x")}


def test_what_could_not_be_recorded_is_passed_on(clean: Clean, run: Recorder) -> None:
    def odd(model: Model, optimizer: nn.Optimizer, number: int) -> Tensor:
        probe.log("odd", Tensor(np.array([None])))
        return plain_step(model, optimizer, number)

    with pytest.warns(ProbeWarning, match="could not be recorded"):
        there = run(step=odd)
    found = probe.compare(clean("statistics"), there)
    assert found.verdict is Verdict.ALIGNED
    assert [text for text in found.warnings if text.startswith("B: loss value odd of the root could not be recorded")]


# The answer


def test_drilling_down(clean: Clean, run: Recorder) -> None:
    found = probe.compare(clean("tensor"), run(SequenceFirst(gpt()), task="tensor"), mapping=TO_SEQUENCE_FIRST)
    here, there = found["layers.1.norm2"], found["decoder.layers.1.between"]
    assert here == there and len(here) > 5
    assert {(s.path_a, s.path_b, s.reason) for s in here} == {("layers.1.norm2", "decoder.layers.1.between", "mapped")}
    assert {s.path_a for s in found["layers.*.norm1"]} == {f"layers.{n}.norm1" for n in range(3)}
    assert {s.path_a for s in found["*self_attention"]} == {f"layers.{n}.attn" for n in range(3)}
    assert {s.path_a for s in found[""]} == {""}
    (output,) = (s for s in here if s.role is Role.OUTPUT)
    assert (output.shape_a, output.shape_b) == ((2, 6, 16), (6, 2, 16))
    assert (output.class_a, output.class_b, output.dtype_a) == ("RMSNorm", "RMSNorm", "float32")
    with pytest.raises(NotRecordedError, match="'layers.9' is in neither recording, or has no counterpart"):
        found["layers.9"]
    with pytest.raises(KeyError):
        found["nothing*"]


def test_slots_stand_in_causal_order(clean: Clean, run: Recorder) -> None:
    found = probe.compare(clean("statistics"), run(steps=2))
    order = [(slot.step, slot.phase) for slot in found.slots]
    assert order == sorted(order)
    forward = [(s.path_a, s.role) for s in found.slots if s.step == 0 and s.phase is Phase.FORWARD]
    places = [forward.index(("layers.0", role)) for role in (Role.INPUT, Role.OUTPUT)]
    assert forward[0] == ("", Role.INPUT) and forward[-1] == ("", Role.OUTPUT)
    assert places[0] < forward.index(("layers.0.mlp.act", Role.OUTPUT)) < places[1]


def test_what_comes_behind_the_fault_is_inherited(clean: Clean, faulty: Faulty) -> None:
    found = probe.compare(clean("tensor"), faulty("eps", "tensor"))
    verdicts = {(s.path_a, s.role): s.verdict for s in found.slots if s.phase is Phase.FORWARD}
    assert verdicts["layers.1.norm2", Role.INPUT] == "equal"
    assert verdicts["layers.1.norm2", Role.OUTPUT] == "introduced"
    assert verdicts["layers.1.mlp.up", Role.INPUT] == "inherited"
    assert verdicts["", Role.OUTPUT] == "inherited"
    assert verdicts["layers.0", Role.OUTPUT] == "equal"


def test_the_table(clean: Clean, faulty: Faulty) -> None:
    pytest.importorskip("pandas")
    found = probe.compare(clean("tensor"), faulty("eps", "tensor"))
    table = found.table()
    assert len(table) == len(found.slots)
    wrong = table[table.verdict == "introduced"]
    assert list(wrong.path_a) == ["layers.1.norm2"]
    row = wrong.iloc[0]
    first = found.first_divergence
    assert first is not None and first.metrics is not None
    assert (row.rel_l2, row.limit, row.max_abs_at) == (
        first.metrics.rel_l2,
        first.limit,
        str(list(first.metrics.max_abs_at)),
    )
    assert (row.phase, row.role, row.status, row.estimated, row.matched_by) == (
        "forward", "output", "compared", False, "same path",
    )  # fmt: skip
    assert table[(table.path_a == "layers.0") & (table.phase == "forward")].rel_l2.max() == 0


NUMBER = (int, float)
NODE = {"step": int, "micro": int, "path": str, "class": str, "call": int, "slot": str}
METRICS = {
    "status": str, "rel_l2": (*NUMBER, None), "cosine": (*NUMBER, None), "coherence": (*NUMBER, None),
    "norm_a": (*NUMBER, None), "norm_b": (*NUMBER, None), "norm_ratio": (*NUMBER, None), "max_abs": (*NUMBER, None),
    "max_abs_at": (list, None), "max_rel": (*NUMBER, None), "mean_abs": (*NUMBER, None), "reason": str,
}  # fmt: skip
DIVERGENCE = {
    "phase": {"init", "forward", "loss", "backward", "gradient", "update"},
    "role": {role.label for role in Role},
    "kind": {"inputs", "init", "introduced", "missing", "nonfinite", "shape", "dtype", "update"},
    "confidence": NUMBER, "a": [NODE], "b": [NODE], "metrics": (METRICS, None), "estimated": bool,
    "limit": (*NUMBER, None), "evidence": [str], "hint": str,
}  # fmt: skip
DOCUMENT = {
    "schema": int, "verdict": {"aligned", "diverged", "undecided"}, "first_divergence": (DIVERGENCE, None),
    "divergences": [DIVERGENCE],
    "coverage": {"paired": int, "only_a": int, "only_b": int, "not_comparable": int, "compared": int},
    "only_a": [str], "only_b": [str], "warnings": [str], "noise": str,
}  # fmt: skip


def conforms(value: object, form: object, where: str = "$") -> None:
    """Check a JSON document against a form: types, sets of words, dicts of exactly these keys, lists of one form."""
    if isinstance(form, tuple):
        if value is None:
            assert None in form, where
            return
        form = form[0] if isinstance(form[0], dict) else tuple(each for each in form if each is not None)
    if isinstance(form, dict):
        assert isinstance(value, dict) and value.keys() == form.keys(), f"{where}: {value}"
        for key, inner in form.items():
            conforms(value[key], inner, f"{where}.{key}")
    elif isinstance(form, list):
        assert isinstance(value, list), where
        for item in value:
            conforms(item, form[0], f"{where}[]")
    elif isinstance(form, set):
        assert value in form, f"{where}: {value}"
    else:
        assert isinstance(value, form) and (form is bool or not isinstance(value, bool)), f"{where}: {value!r}"


@pytest.mark.parametrize(
    ("fault", "task"),
    mostly_statistics([None, "eps", "NaN", "a layer dropped", "no bias", "frozen", "one weight"], "eps"),
)
def test_json_has_the_names_of_the_design(
    clean: Clean, faulty: Faulty, run: Recorder, fault: str | None, task: str
) -> None:
    found = probe.compare(clean(task), faulty(fault, task) if fault else run(task=task))
    text = json.dumps(found.as_json(), allow_nan=False)
    document = json.loads(text)
    conforms(document, DOCUMENT)
    assert document["schema"] == SCHEMA == 1
    assert document["verdict"] == ("diverged" if fault else "aligned")
    assert document["first_divergence"] == (document["divergences"][0] if fault else None)
    if fault == "eps":
        first = document["first_divergence"]
        assert (
            first["a"]
            == first["b"]
            == [{"step": 0, "micro": 0, "path": "layers.1.norm2", "class": "RMSNorm", "call": 0, "slot": "0"}]
        )
        assert first["estimated"] is (task == "statistics")
        assert (first["metrics"]["max_abs"] is None) is (task == "statistics")
    if fault == "a layer dropped":
        assert document["first_divergence"]["b"] == []
        assert document["only_a"][0] == "layers.1"
    if fault == "NaN":
        assert document["first_divergence"]["metrics"]["rel_l2"] is None, "JSON knows no infinity"


def test_the_answer_is_frozen_and_readable(clean: Clean, faulty: Faulty) -> None:
    found = probe.compare(clean("statistics"), faulty("eps", "statistics"))
    assert "layers.1.norm2" in repr(found.first_divergence)
    assert len(repr(found)) < 5000, "the slots are not part of it"
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.verdict = Verdict.ALIGNED  # type: ignore[misc]


def test_progress_is_told(run: Recorder) -> None:
    told: list[tuple[int, int]] = []
    probe.compare(run(steps=3), run(steps=3), progress=lambda done, total: told.append((done, total)))
    assert told == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize("direction", ["sideways", "A-to-B", ""])
def test_a_direction_that_is_none(clean: Clean, run: Recorder, direction: str) -> None:
    message = re.escape(f"direction={direction!r} is not known; expected 'a-to-b' or 'b-to-a'")
    with pytest.raises(ConfigError, match=message):
        probe.compare(clean("statistics"), run(), direction=direction)


def test_a_file_that_is_not_there(tmp_path: Path, clean: Clean) -> None:
    with pytest.raises(StoreError, match=re.escape(f"there is no file {tmp_path / 'none.h5'}")):
        probe.compare(clean("statistics"), tmp_path / "none.h5")


# Batches that are not the same


class Scaled(GPT):
    """A model with a second input, which does not depend on the batch."""

    def forward(self, ids: Tensor, scale: Tensor) -> Tensor:
        x = self.embed(ids) * scale
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def _evaluating(shape: tuple[int, int]) -> Callable[..., float]:
    def step(model: Model, optimizer: nn.Optimizer, number: int) -> float:
        ids = np.random.default_rng(7).integers(0, VOCABULARY, shape)
        with no_grad():
            model(Tensor(ids), Tensor(np.full(WIDTH, 0.5, np.float32)))
        return 0.0

    return step


@pytest.mark.parametrize("task", ["structure", *TASKS])
@pytest.mark.parametrize("shape", [(4, 6), (2, 9), (3, 4)], ids=["batch", "length", "as many elements"])
def test_an_evaluation_of_another_batch_is_not_aligned(run: Recorder, task: str, shape: tuple[int, int]) -> None:
    def scaled() -> GPT:
        return changed(lambda m: setattr(m, "__class__", Scaled))

    found = probe.compare(
        run(scaled(), step=_evaluating((2, 6)), task=task), run(scaled(), step=_evaluating(shape), task=task)
    )
    if task == "structure" and shape == (3, 4):
        assert found.verdict is Verdict.UNDECIDED
        return
    first = found.first_divergence
    assert first is not None and (first.kind, first.path, first.a[0].slot) == (Kind.INPUTS, "", "0")
    assert first.evidence == (f"shape [2, 6] against {list(shape)}",)
    assert found.divergences == (first,)


def test_another_batch_where_the_model_itself_was_not_recorded(run: Recorder) -> None:
    paths = []
    for shape in ((2, 6), (4, 6)):
        model = changed(lambda m: setattr(m, "__class__", Scaled))
        paths.append(run(model, step=_evaluating(shape), modules=["layers.1*"]))
    found = probe.compare(*paths)
    first = found.first_divergence
    assert first is not None and (first.kind, first.path) == (Kind.INPUTS, "layers.1")
    assert first.evidence == (
        "the input 0 of layers.1 differs already, and nothing before it was compared",
        "shape [2, 6, 16] against [4, 6, 16]",
    )
    assert not said(found, "weights that were not compared"), "they were not recorded"


FLIPS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "channels": lambda x: x[:, ::-1],
    "rows": lambda x: x[[2, 0, 3, 1]],
    "height and width": lambda x: x.swapaxes(2, 3),
}


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("flip", FLIPS)
def test_an_input_in_another_order_is_another_input(run: Recorder, task: str, flip: str) -> None:
    def step(change: Callable[[np.ndarray], np.ndarray]) -> Callable[..., Tensor]:
        def made(model: Model, optimizer: nn.Optimizer, number: int) -> Tensor:
            images = np.random.default_rng(3).random((4, 3, 5, 5)).astype(np.float32)
            loss = (model(Tensor(np.ascontiguousarray(change(images)))) ** 2.0).mean()
            loss.backward()
            return loss

        return made

    def net() -> Model:
        nn.manual_seed(0)
        return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))

    found = probe.compare(run(net(), step=step(lambda x: x), task=task), run(net(), step=step(FLIPS[flip]), task=task))
    first = found.first_divergence
    assert first is not None and (first.kind, first.path, first.a[0].slot) == (Kind.INPUTS, "", "0")
    assert found.divergences == (first,)


def test_passes_without_gradients_that_one_side_did_not_make_are_said(run: Recorder) -> None:
    def evaluations(count: int) -> Callable[..., Tensor]:
        def step(model: Model, optimizer: nn.Optimizer, number: int) -> Tensor:
            loss = plain_step(model, optimizer, number)
            for _ in range(count):
                evaluate(model, optimizer, number)
            return loss

        return step

    found = probe.compare(run(step=evaluations(3)), run(step=evaluations(1)))
    assert found.verdict is Verdict.ALIGNED
    text = "A made 3 forward passes without gradients in a step, B 1: those that both made are compared"
    assert found.warnings == (text,)
    assert found.only_a == ()


def test_an_input_that_one_side_alone_is_given_and_that_changes_something(run: Recorder) -> None:
    def masked(self: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return nn.Attention.forward(self, x if mask is None else x * mask)

    def block(self: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = x + (self.attn(self.norm1(x)) if mask is None else self.attn(self.norm1(x), mask=mask))
        return x + self.mlp(self.norm2(x))

    def forward(self: Any, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x) if mask is None else layer(x, mask=mask)
        return self.head(self.norm(x))

    def model() -> GPT:
        made = gpt()
        made.__class__ = type("GPT", (GPT,), {"forward": forward})
        for number in range(3):
            replaced(made, f"layers.{number}", forward=block)
            replaced(made, f"layers.{number}.attn", forward=masked)
        return made

    def step(mask: Tensor | None) -> Callable[..., Tensor]:
        def made(model: Model, optimizer: nn.Optimizer, number: int) -> Tensor:
            loss = loss_of(model(batch(), mask=mask) if mask is not None else model(batch()), batch())
            loss.backward()
            return loss

        return made

    mask = Tensor(np.array([1, 1, 1, 1, 0, 0], np.float32)[:, None])
    found = probe.compare(run(model(), step=step(mask)), run(model(), step=step(None)))
    first = found.first_divergence
    assert first is not None and (first.kind, first.path, first.a[0].slot) == (Kind.INPUTS, "", "mask")
    assert first.evidence == (
        "the model is given mask on A only", "the input 0 of layers.0.attn.q differs first",
    )  # fmt: skip
    assert first.hint == "give B the same mask, or look at its default there"
    assert found.divergences == (first,)
    ones = Tensor(np.ones((6, 1), np.float32))
    assert probe.compare(run(model(), step=step(ones)), run(model(), step=step(None))).verdict is Verdict.ALIGNED


def test_a_state_that_is_handed_in_again_is_no_other_input(run: Recorder) -> None:
    """Its error grows from step to step past what a fresh input may differ by."""

    class Map(nn.Module):
        """1 − 1.9 x²: doubles what its input is off, whatever that is."""

        def forward(self, x: Tensor) -> Tensor:
            return x * x * np.float32(-1.9 * self.factor) + np.float32(1)

    class Recurrent(nn.Module):
        def __init__(self, factor: float) -> None:
            nn.manual_seed(0)
            super().__init__(inner=Map(factor=factor), read=nn.Linear(WIDTH, 3))

        def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
            state = self.inner(state)
            return self.read(state) + x, state

    def step() -> Callable[..., Tensor]:
        kept = [np.linspace(-0.9, 0.95, 2 * WIDTH, dtype=np.float32).reshape(2, WIDTH)]

        def made(model: Model, optimizer: nn.Optimizer, number: int) -> Tensor:
            y, state = model(Tensor(np.full(3, number, np.float32)), Tensor(kept[0]))
            kept[0] = state.data.copy()
            loss = (y * y).mean()
            loss.backward()
            return loss

        return made

    found = probe.compare(run(Recurrent(1.0), step=step(), steps=12), run(Recurrent(1 + 2e-7), step=step(), steps=12))
    states = [slot for slot in found.slots if slot.role is Role.INPUT and (slot.path_a, slot.slot_a) == ("", "1")]
    assert max(slot.error for slot in states) > 16 * 2.0**-24, "else it would pass as a fresh input"
    assert found.verdict is Verdict.ALIGNED, found.first_divergence


# Models that are not seen inside


class OptimizedModule(nn.Module):
    """Runs what it holds without calling its hooks, as a compiled model does."""

    def __init__(self, model: Model) -> None:
        super().__init__(_orig_mod=model)

    def forward(self, ids: Tensor) -> Tensor:
        hooks = [(m, m.pre_hooks, m.post_hooks) for _, m in self._orig_mod.modules()]
        for module_, _, _ in hooks:
            module_.pre_hooks, module_.post_hooks = type(module_.pre_hooks)(), type(module_.post_hooks)()
        try:
            return self._orig_mod(ids)
        finally:
            for module_, before, after in hooks:
                module_.pre_hooks, module_.post_hooks = before, after


class DistributedDataParallel(nn.Module):
    def __init__(self, model: Model) -> None:
        super().__init__(module=model)

    def forward(self, ids: Tensor) -> Tensor:
        return self.module(ids)


def test_a_model_of_which_nothing_inside_was_seen_is_not_aligned(clean: Clean, run: Recorder) -> None:
    compiled = run(OptimizedModule(gpt()), steps=2)
    for pair, names in (((compiled, run(OptimizedModule(gpt()), steps=2)), "AB"), ((clean(), compiled), "B")):
        found = probe.compare(*pair)
        assert found.verdict is Verdict.UNDECIDED
        for name in names:
            assert said(
                found,
                f"{name}: nothing that runs inside _orig_mod was recorded: it is compiled, or calls none of its modules",
            )
        outputs = [slot for slot in found.slots if slot.role is Role.OUTPUT]
        assert len(outputs) == 2, "the wrapper stands for what it holds"


def test_wrappers_are_not_among_what_one_side_lacks(clean: Clean, run: Recorder) -> None:
    wrapped = run(DistributedDataParallel(gpt()), steps=2)
    for pair in ((clean(), wrapped), (wrapped, clean())):
        found = probe.compare(*pair)
        assert found.verdict is Verdict.ALIGNED
        assert (found.only_a, found.only_b, found.coverage.paired) == ((), (), 2 * 43)


def test_a_model_that_was_never_called(run: Recorder) -> None:
    def idle(model: Model, optimizer: nn.Optimizer, number: int) -> float:
        for parameter in model.parameters():
            parameter.grad = Tensor(np.ones_like(parameter.data))
        optimizer.step()
        return 1.0

    found = probe.compare(run(step=idle), run(step=idle))
    assert found.verdict is Verdict.UNDECIDED
    assert said(found, "A: no call of a module was recorded") and said(found, "B: no call of a module was recorded")


def test_a_run_that_was_ended_early_is_said(run: Recorder) -> None:
    a, b = run(steps=3), run(steps=1)
    with h5py.File(b, "r+") as file:
        file.attrs["closed"] = False
    found = probe.compare(a, b)
    assert found.verdict is Verdict.ALIGNED
    text = "steps not compared: 1, 2 only in A (the other was not closed: its process was ended, or is still running)"
    assert said(found, text)


def test_weights_that_stand_in_another_form_on_the_other_side_are_said(clean: Clean, run: Recorder) -> None:
    def fused(self: Any, x: Tensor) -> Tensor:
        y = self.qkv(x)
        q, k, v = (y[:, :, n * WIDTH : (n + 1) * WIDTH] for n in range(3))
        count, length, _ = x.shape
        q, k, v = (z.reshape(count, length, self.heads, -1).swapaxes(1, 2) for z in (q, k, v))
        scores = q @ k.swapaxes(-1, -2) * (WIDTH / self.heads) ** -0.5
        mixed = softmax(scores + np.triu(np.full((length, length), -np.inf), 1)) @ v
        return self.o(mixed.swapaxes(1, 2).reshape(count, length, WIDTH))

    def model() -> GPT:
        made = gpt()
        for number in range(3):
            attention = replaced(made, f"layers.{number}.attn", forward=fused)
            attention.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
            parts = [vars(attention).pop(name).weight.data for name in ("q", "k", "v")]
            attention.qkv.weight = nn.Parameter(np.concatenate(parts))
        return made

    found = probe.compare(clean(), run(model(), steps=2))
    assert found.verdict is Verdict.ALIGNED
    assert said(
        found, "weights that were not compared, for want of a counterpart: layers.*.attn.q.weight ×3, "
        "layers.*.attn.k.weight ×3, layers.*.attn.v.weight ×3 in A; layers.*.attn.qkv.weight ×3 in B"
    )  # fmt: skip


# What is computed in another order


class Sorter(nn.Module):
    """Runs a module over its rows in an order of its own, or in two parts; returns them as they came."""

    def __init__(self, how: str, inner: Model) -> None:
        super().__init__(how=how, inner=inner)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, WIDTH)
        if self.how == "as they are":
            return self.inner(rows).reshape(*x.shape)
        order = np.random.default_rng(1).permutation(rows.shape[0])
        if self.how == "in parts":
            order = np.arange(rows.shape[0])
            parts = [self.inner(rows[order[:5]]).data, self.inner(rows[order[5:]]).data]
            spread = operation(np.concatenate(parts), (x, lambda g: g.reshape(x.shape)))
            return spread.reshape(*x.shape)
        return self.inner(rows[order])[np.argsort(order)].reshape(*x.shape)


def _with_sorter(how: str, inner: Callable[[], Model] = nn.SiLU) -> GPT:
    return changed(lambda m: setattr(module(m, "layers.1.mlp"), "after", Sorter(how, inner()))
                   or replaced(m, "layers.1.mlp", forward=lambda s, x: s.after(MLP.forward(s, x))))  # fmt: skip


@pytest.mark.parametrize("task", TASKS)
def test_rows_in_another_order_inside_a_call_that_returns_the_same(run: Recorder, task: str) -> None:
    a, b = run(_with_sorter("as they are"), task=task), run(_with_sorter("shuffled"), task=task)
    found = probe.compare(a, b)
    assert found.verdict is Verdict.ALIGNED, found.first_divergence
    assert found.warnings == (
        "inside layers.1.mlp.after the elements stand in another order, or are split otherwise: what is returned agrees, "
        "what is inside is not judged",
    )
    inside = {slot.verdict for slot in found["layers.1.mlp.after.inner"]}
    assert inside == {"not judged"}


def test_rows_in_parts_inside_a_call_that_returns_the_same(run: Recorder) -> None:
    def forward_only(model: Model, optimizer: nn.Optimizer, number: int) -> float:
        return evaluate(model, optimizer, number)

    found = probe.compare(
        run(_with_sorter("as they are"), step=forward_only), run(_with_sorter("in parts"), step=forward_only)
    )
    assert found.verdict is Verdict.ALIGNED, found.first_divergence
    assert said(found, "inside layers.1.mlp.after the elements stand in another order, or are split otherwise")


def test_rows_in_another_order_that_are_not_put_back(run: Recorder) -> None:
    wrong = _with_sorter("shuffled")
    replaced(wrong, "layers.1.mlp.after", forward=lambda s, x: s.inner(x.reshape(-1, WIDTH)[::-1]).reshape(*x.shape))
    first = probe.compare(run(_with_sorter("as they are")), run(wrong)).first_divergence
    assert first is not None and first.path == "layers.1.mlp.after"


def test_what_vanishes_behind_a_call_is_found_where_it_is(run: Recorder) -> None:
    class Plus(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + self.much

    def model(much: float) -> GPT:
        made = _with_sorter("as they are", lambda: Plus(much=much))
        replaced(made, "layers.1.mlp.after", forward=lambda s, x: s.inner(x) - s.inner.much)
        return made

    first = probe.compare(run(model(0.5)), run(model(0.25))).first_divergence
    assert first is not None and first.path == "layers.1.mlp.after.inner"


# One multiple of the gradients


def _scaled(factor: float, *, undone: bool) -> Callable[..., Tensor]:
    def step(model: Model, optimizer: nn.Optimizer, number: int) -> Tensor:
        loss = loss_of(model(batch(number)), batch(number))
        (loss * factor).backward()
        if undone:
            for parameter in model.parameters():
                parameter.grad.data /= np.float32(factor)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("factor", [65536.0, 1024.0, 1 / 256])
def test_a_loss_scale_that_is_undone_is_said_and_no_fault(run: Recorder, task: str, factor: float) -> None:
    found = probe.compare(run(steps=2, task=task), run(step=_scaled(factor, undone=True), steps=2, task=task))
    assert found.verdict is Verdict.ALIGNED, found.first_divergence
    text = f"B's gradients are {factor:.6g} times A's, the optimizer used them without that factor: loss scaling"
    assert found.warnings == (text,)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(
    ("factor", "hint"),
    [
        (65536.0, "loss scaling"),
        (-1.0, "one side goes up where the other goes down: the sign of the loss, or maximize="),
        (3.0, "look at the loss scale, and at how the loss is reduced: sum or mean, number of micro-batches or ranks"),
    ],
)
def test_a_loss_scale_that_the_optimizer_used(clean: Clean, run: Recorder, task: str, factor: float, hint: str) -> None:
    found = probe.compare(clean(task), run(step=_scaled(factor, undone=False), task=task))
    first = found.first_divergence
    assert first is not None and (first.phase, first.path) == (Phase.LOSS, "")
    assert first.evidence == (
        "the model's outputs agree", f"B's gradients are {factor:.6g} times A's", "the optimizer used them so",
    )  # fmt: skip
    assert first.hint == hint
    assert first.metrics is not None and first.metrics.cosine == pytest.approx(math.copysign(1, factor))
    assert found.divergences == (first,)


def test_a_fault_beside_a_loss_scale_is_found(clean: Clean, run: Recorder) -> None:
    wrong = changed(MODEL_FAULTS["gradient of one of two consumers"][0])
    found = probe.compare(clean(), run(wrong, step=_scaled(1024.0, undone=True)))
    first = found.first_divergence
    assert first is not None and (first.phase, first.path) == (Phase.BACKWARD, UP)


def test_a_loss_scale_where_only_parameter_gradients_were_recorded(run: Recorder) -> None:
    phases = ["forward", "gradient"]
    found = probe.compare(run(phases=phases), run(step=_scaled(65536.0, undone=True), phases=phases))
    first = found.first_divergence
    assert first is not None and (first.phase, first.path, first.hint) == (Phase.GRADIENT, "", "loss scaling")
    assert first.evidence[1] == "all by the same factor: B is 65536 times A"
    assert first.evidence[-1] == "whether the optimizer used them so was not recorded"


def test_accumulation_that_is_divided_on_one_side_only(run: Recorder) -> None:
    a, b = run(step=_micro_batches(4)), run(step=_micro_batches(4, scale=4.0))
    for pair, factor, names in (((a, b), "4", "AB"), ((b, a), "0.25", "BA")):
        found = probe.compare(*pair)
        first = found.first_divergence
        assert first is not None and first.phase is Phase.LOSS
        assert first.evidence[1] == f"B's gradients are {factor} times A's"
        assert first.hint == (
            f"accumulation is divided on {names[0]} only: {names[1]} does not divide the loss by its 4 micro-batches"
        )
        assert found.divergences == (first,), "not once for every micro-batch"


def test_no_common_factor_where_noise_has_the_same_size(run: Recorder) -> None:
    """Every tensor shorter by the same part in a thousand, and pointing elsewhere: the length says nothing."""

    def turned(model: Model, ids: Tensor, number: int) -> Tensor:
        loss = loss_of(model(ids), ids)
        loss.backward()
        for place, parameter in enumerate(model.parameters()):
            g = parameter.grad.data
            side = np.random.default_rng(place).standard_normal(g.shape)
            side -= g * ((side * g).sum() / (g * g).sum())
            turned = g + 0.05 * side * np.linalg.norm(g) / np.linalg.norm(side)
            g[...] = turned * (0.9999 * np.linalg.norm(g) / np.linalg.norm(turned))
        return loss

    first = probe.compare(run(task="tensor"), run(step=_step(turned), task="tensor")).first_divergence
    assert first is not None and first.phase is Phase.UPDATE
    assert not any("factor" in text for text in first.evidence)


# Settings of the optimizer


class Adam(nn.AdamW):
    """The same under another name: what it does differs only with weight decay."""


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda m: nn.AdamW(m.parameters(), lr=1e-3, eps=1e-10), "eps 1e-08 against 1e-10 (group 0)"),
        (lambda m: Adam(m.parameters(), lr=1e-3), "AdamW against Adam (group 0)"),
        (lambda m: nn.AdamW([{"params": m.parameters()[:9]}, {"params": m.parameters()[9:], "eps": 1e-10}], lr=1e-3),
         "eps 1e-08 against 1e-10 (group 0)"),
    ],
)  # fmt: skip
def test_settings_that_differ_and_do_not_show_are_not_aligned(
    clean: Clean, run: Recorder, make: Callable[[Model], nn.Optimizer], text: str
) -> None:
    model = gpt()
    found = probe.compare(clean(), run(model, steps=2, optimizer=make(model)))
    assert (found.verdict, found.divergences) == (Verdict.UNDECIDED, ())
    (warning,) = found.warnings
    assert warning.startswith("the optimizers are set differently for ")
    assert warning.endswith(f" parameters: {text}; that does not show in the numbers yet")


def test_settings_that_are_blamed_are_not_said_to_leave_no_trace(clean: Clean, run: Recorder) -> None:
    model = gpt()
    found = probe.compare(clean(), run(model, optimizer=nn.AdamW(model.parameters(), lr=1.1e-3)))
    assert found.verdict is Verdict.DIVERGED
    assert not said(found, "set differently")


def test_another_class_of_optimizer_is_named_where_the_updates_differ(clean: Clean, run: Recorder) -> None:
    model = gpt()
    first = probe.compare(clean(), run(model, optimizer=nn.SGD(model.parameters(), lr=1e-3))).first_divergence
    assert first is not None and first.phase is Phase.UPDATE
    assert first.hint == "the settings differ: AdamW against SGD, weight_decay 0.01 against 0.0 (group 0)"


# Hints


def test_a_row_of_an_embedding_without_a_gradient(clean: Clean, run: Recorder) -> None:
    padding = int(batch().data[0, 0])
    keeps = np.ones((VOCABULARY, 1), np.float32)
    keeps[padding] = 0

    def padded(model: Model) -> None:
        replaced(model, "embed", forward=lambda s, ids: operation(
            s.weight.data, (s.weight, lambda g: g * keeps))[ids])  # fmt: skip

    found = probe.compare(clean(), run(changed(padded)))
    assert_found(found, ("gradient", "introduced", "embed", "weight"))
    assert found.first_divergence is not None
    assert found.first_divergence.hint == "1 more row is zero on B: look at padding_idx"


def test_weights_that_differ_because_a_step_before_was_not_recorded(tmp_path: Path) -> None:
    def late(path: Path, lr: float, rough: bool = False) -> Path:
        model = rounding_otherwise(gpt()) if rough else gpt()
        optimizer = nn.AdamW(model.parameters(), lr=1e-3)
        with probe.capture(model, path, steps=[3, 4]):
            for number in range(5):
                optimizer.param_groups[0]["lr"] = lr if number == 0 else 1e-3
                probe.step(loss=plain_step(model, optimizer, number))
        return path

    a = late(tmp_path / "a.h5", 1e-3)
    first = probe.compare(a, late(tmp_path / "b.h5", 2e-3)).first_divergence
    assert first is not None and (first.phase, first.step) == (Phase.INIT, 3)
    assert first.evidence == ("39 of 39 parameters differ before step 3; step 2 was not recorded",)
    assert first.hint == "record the steps before 3 too: the runs part there, or do not start from the same weights"
    found = probe.compare(a, late(tmp_path / "c.h5", 1e-3, rough=True))
    assert found.verdict is Verdict.ALIGNED, "rounding makes weights drift apart"


def test_one_weight_that_differs_before_a_later_step(tmp_path: Path) -> None:
    def late(path: Path, factor: float) -> Path:
        model = gpt()
        module(model, "layers.1.norm2").weight.data[3] *= np.float32(factor)
        optimizer = nn.SGD(model.parameters(), lr=1e-3)
        with probe.capture(model, path, steps=[2]):
            for number in range(3):
                probe.step(loss=plain_step(model, optimizer, number))
        return path

    found = probe.compare(late(tmp_path / "a.h5", 1.0), late(tmp_path / "b.h5", 1.0002))
    assert found.verdict is not Verdict.ALIGNED
    said_ = [*found.warnings, *(text for d in found.divergences for text in (*d.evidence, d.hint))]
    assert any("step 2" in text and "step 1 was not recorded" in text for text in said_), said_


def test_layers_whose_weights_stand_in_another_order(clean: Clean, run: Recorder) -> None:
    def swapped(model: Model) -> None:
        members = vars(model.layers)
        members["0"], members["1"] = members["1"], members["0"]

    first = probe.compare(clean(), run(changed(swapped))).first_divergence
    assert first is not None and (first.phase, first.kind) == (Phase.INIT, Kind.INIT)
    assert first.hint == "what layers.0.norm1 has in A, layers.1.norm1 has in B: look at the order of the layers"


def test_layers_that_run_in_another_order(clean: Clean, run: Recorder) -> None:
    def forward(self: Any, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for number in "102":
            x = getattr(self.layers, number)(x)
        return self.head(self.norm(x))

    there = changed(lambda m: setattr(m, "__class__", type("GPT", (GPT,), {"forward": forward})))
    first = probe.compare(clean(), run(there)).first_divergence
    assert first is not None and (first.path, first.a[0].slot) == ("", "")
    assert first.hint == "B calls layers.1 where A calls layers.0: the order differs"


def test_a_tied_weight_is_not_called_missing_without_saying_that_it_is_tied(clean: Clean, run: Recorder) -> None:
    def tied(model: Model) -> None:
        model.head.weight = model.embed.weight

    first = probe.compare(clean(), run(changed(tied))).first_divergence
    assert first is not None and (first.kind, first.path) == (Kind.MISSING, "head")
    assert first.hint == "weight is tied to embed.weight on B, not on A"


def test_frozen_weights_are_named_and_not_what_is_made_from_them(clean: Clean, run: Recorder) -> None:
    def frozen(model: Model) -> None:
        for path in ("embed", "layers.0.norm1"):
            module(model, path).weight.requires_grad = False

    found = probe.compare(clean(), run(changed(frozen)))
    assert [(d.phase, d.kind, d.path) for d in found.divergences] == [
        (Phase.GRADIENT, Kind.MISSING, "embed"), (Phase.GRADIENT, Kind.MISSING, "layers.0.norm1"),
    ]  # fmt: skip


def test_a_graph_that_is_cut_comes_before_the_gradients_that_follow_from_it(clean: Clean, run: Recorder) -> None:
    def detached(self: Any, x: Tensor) -> Tensor:
        return Tensor(nn.Attention.forward(self, x).data)

    found = probe.compare(clean(), run(changed(lambda m: replaced(m, "layers.1.attn", forward=detached))))
    first = found.first_divergence
    assert first is not None and (first.phase, first.kind, first.path) == (
        Phase.BACKWARD,
        Kind.MISSING,
        "layers.1.attn",
    )
    assert found.divergences == (first,)


# One fault, one place


@pytest.mark.parametrize("name", MODEL_FAULTS)
def test_a_single_fault_is_one_place(clean: Clean, faulty: Faulty, name: str) -> None:
    found = probe.compare(clean(), faulty(name, "statistics"))
    assert found.divergences == (found.first_divergence,)


def test_two_faults_of_which_the_second_does_not_follow_from_the_first_are_both_named(
    clean: Clean, run: Recorder
) -> None:
    def both(model: Model) -> None:
        MODEL_FAULTS["gradient of one weight"][0](model)
        MODEL_FAULTS["frozen"][0](model)
        module(model, "layers.2.mlp.down").weight.requires_grad = False

    found = probe.compare(clean(), run(changed(both)))
    assert {d.path for d in found.divergences} == {DOWN, "layers.2.mlp.down"}


def test_a_gradient_that_is_zero_but_for_rounding_is_shown_beside_a_limit_of_its_own_kind(run: Recorder) -> None:
    class Shift(nn.Module):
        """Adds one number to all features: the norm behind it takes it away again."""

        def __init__(self, up: bool) -> None:
            super().__init__(shift=nn.Parameter(np.zeros(1, np.float32)), norm=nn.LayerNorm(WIDTH), up=up)

        def forward(self, x: Tensor) -> Tensor:
            x = x * np.float32(1 + 2e-7) if self.up else x
            return self.norm(x + self.shift)

    def model(up: bool) -> GPT:
        return changed(lambda m: setattr(m, "norm", Shift(up)))

    found = probe.compare(run(model(False), task="tensor"), run(model(True), task="tensor"))
    assert found.verdict is Verdict.ALIGNED, found.first_divergence
    (slot,) = (s for s in found["norm"] if (s.phase, s.slot_a) == (Phase.GRADIENT, "shift"))
    assert slot.metrics.rel_l2 > 10 * slot.limit > 10 * slot.error
