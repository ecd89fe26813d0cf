"""Recordings of whole runs: norms, and steps that are recorded in full because of what was seen."""

from __future__ import annotations

import inspect
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import probe
from probe.adapters.numpy import nn
from probe.adapters.numpy.adapter import NumpyAdapter
from probe.adapters.numpy.tensor import Tensor, backward_hooks, no_grad
from probe.errors import ProbeWarning
from probe.numbers.statistics import measure
from probe.recorder.triggers import LEAST, WINDOW
from probe.records import HashKind
from probe.store.reading.reader import Reader
from probe.testing import Recording, sample
from tests.long_runs import Net, Training, alone, recorded  # noqa: F401


def rows(path: str = "a.h5") -> list[SimpleNamespace]:
    """Return every record with all of its columns."""
    with Reader(path) as reader:
        return [
            SimpleNamespace(
                **{name: row[name].item() for name in row.dtype.names},
                path=reader.modules[row["module"]].path,
                name=reader.slots[row["slot"]],
                sketch=np.array(sketch),
            )
            for row, sketch in zip(reader.records, reader.sketches, strict=True)
        ]


FULL = {"init", "forward", "backward", "gradient", "update"}


def in_full(run: Recording) -> list[int]:
    """Return the steps that were recorded in full, and check that the others were not."""
    phases: dict[int, set[str]] = {}
    for seen in run.seen:
        phases.setdefault(seen.step, set()).add(seen.phase)
    assert all(found >= FULL - {"init"} or found == {"forward", "update"} for found in phases.values())
    return [step for step, found in phases.items() if "backward" in found]


# Norms


def test_norms_are_of_gradients_as_used_and_of_the_outputs_of_main_blocks() -> None:
    training = Training()
    probe.start(training.net, "a.h5", task="norms")
    for step in range(3):
        training.step(loss=1.0, lr=0.1 * step)
    probe.stop()
    run = Recording(Path("a.h5"))
    outputs = {("forward", "output", path, "0") for path in ("", "layers.0", "layers.1")}
    gradients = {("update", "param_grad", *name.rsplit(".", 1)) for name in training.gradients}
    assert run.keys() == outputs | gradients and len(run.seen) == 3 * len(run.keys())
    assert run.steps["step"].tolist() == [0, 1, 2]
    assert [scalar for scalar in run.scalars if scalar[0] == 2] == [(2, "loss", 1.0), (2, "lr", 0.2)]
    assert not len(run.optimizer) and run.info.config["task"] == "norms"
    assert run.called() == [(0, path, 0) for path in ("", "layers.0", "layers.1")] * 3
    assert [int(c["caller"]) for c in run.calls] == [-1, 0, 0, -1, 3, 3, -1, 6, 6]


def hooked(net: nn.Module) -> set[str]:
    assert all(len(module.pre_hooks) == len(module.post_hooks) <= 1 for _, module in net.modules())
    return {path for path, module in net.modules() if len(module.pre_hooks)}


def test_only_chosen_modules_have_hooks_but_in_a_step_in_full() -> None:
    training = Training()
    everything = {path for path, _ in training.net.modules()}
    blocks = {"", "layers.0", "layers.1"}
    before = len(backward_hooks)
    probe.start(training.net, "a.h5", task="norms", on_nonfinite=True)
    assert hooked(training.net) == blocks and len(backward_hooks) == before
    with pytest.warns(ProbeWarning, match="step 1 is recorded in full"):
        training.step(math.nan)
    assert hooked(training.net) == everything and len(backward_hooks) == before + 1
    training.step(math.nan)
    assert hooked(training.net) == blocks and len(backward_hooks) == before
    probe.stop()
    assert hooked(training.net) == set()
    probe.start(training.net, "b.h5", task="norms", on_nonfinite=True)
    with pytest.warns(ProbeWarning, match="step 1 is recorded in full"):
        training.step(math.nan)
    probe.stop()
    assert hooked(training.net) == set() and len(backward_hooks) == before


def test_norms_keep_no_copy_of_the_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[Any] = []
    monkeypatch.setattr(NumpyAdapter, "snapshot", lambda self, tensor: copied.append(tensor))
    training = Training()
    probe.start(training.net, "a.h5", task="norms")
    training.step()
    assert not copied


def test_norms_have_statistics_but_neither_hash_nor_sketch() -> None:
    training = Training()
    probe.start(training.net, "a.h5", task="norms")
    training.step()
    probe.stop()
    found = {(row.path, row.name): row for row in rows()}
    expected = {("", "0"): training.output.data}
    expected |= {tuple(name.rsplit(".", 1)): gradient for name, gradient in training.gradients.items()}
    for key, array in expected.items():
        row, stats = found[key], measure(array)
        for name in ("min", "max", "mean", "rms", "norm", "nan", "posinf", "neginf", "zeros"):
            assert getattr(row, name) == pytest.approx(getattr(stats, name), rel=1e-12), (key, name)
        assert (row.hash_kind, row.hash_lo, row.hash_hi, row.tensor) == (HashKind.NONE, 0, 0, -1)
        assert not row.sketch.any()


@pytest.mark.parametrize(
    "options, expected",
    [
        ({"modules": ["head"]},
         {("forward", "head")} | {("update", path) for path in ("embed", "layers.0.0", "layers.0.1", "layers.1.0", "layers.1.1", "head")}),
        ({"modules": "Linear", "phases": "forward"},
         {("forward", path) for path in ("embed", "layers.0.0", "layers.0.1", "layers.1.0", "layers.1.1", "head")}),
        ({"phases": "update"}, {("update", path) for path in ("embed", "layers.0.0", "layers.0.1", "layers.1.0", "layers.1.1", "head")}),
    ],
)  # fmt: skip
def test_norms_of_chosen_modules(options: dict[str, Any], expected: set[tuple[str, str]]) -> None:
    training = Training()
    with probe.capture(training.net, "a.h5", task="norms", **options):
        training.step()
    assert {(seen.phase, seen.path) for seen in Recording(Path("a.h5")).seen} == expected


def test_norms_count_micro_batches() -> None:
    net = Net()
    probe.start(net, "a.h5", task="norms", modules="layers.1", phases="forward")
    with no_grad():
        net(Tensor(sample((5, 4))))
    for _ in range(2):
        net(Tensor(sample((5, 4))))
    probe.step()
    net(Tensor(sample((5, 4))))
    probe.stop()
    run = Recording(Path("a.h5"))
    assert [(s.step, s.micro, s.call) for s in run.seen] == [(0, -1, 0), (0, 0, 0), (0, 1, 0), (1, 0, 0)]


def test_norms_of_some_steps() -> None:
    training = Training()
    probe.start(training.net, "a.h5", task="norms", steps=[1, "every 3"])
    for _ in range(5):
        training.step()
    probe.stop()
    assert Recording(Path("a.h5")).steps["step"].tolist() == [0, 1, 3]


def test_a_module_that_raises_does_not_disturb_norms() -> None:
    def forward(module: nn.Module, x: Tensor) -> Tensor:
        if module.broken:
            raise KeyError("planted")
        return x * 2.0

    fragile = type("Fragile", (nn.Module,), {"forward": forward})(broken=True)
    net = nn.Sequential(nn.Linear(4, 4), fragile)
    probe.start(net, "a.h5", task="norms")
    with pytest.raises(KeyError):
        net(Tensor(sample((5, 4))))
    fragile.broken = False
    net(Tensor(sample((5, 4))))
    probe.step()
    probe.stop()
    run = Recording(Path("a.h5"))
    assert [(s.micro, s.path) for s in run.find(phase="forward")] == [(0, "0"), (1, "0"), (1, "1"), (1, "")]
    assert run.calls["raised"].tolist() == [True, False, True, False, False, False]


def test_two_norms_recordings_are_not_called_equal() -> None:
    for path in ("a.h5", "b.h5"):
        nn.manual_seed(0)
        training = Training()
        with probe.capture(training.net, path, task="norms"):
            training.step(loss=1.0)
    assert probe.compare("a.h5", "b.h5").verdict == "undecided"


def test_the_step_after_a_jump_is_recorded_in_full() -> None:
    losses = [1.0] * LEAST + [4.0, 1.0, 1.0]
    text = f"step {LEAST + 1} is recorded in full: loss is 4, the median of the {LEAST} before 1"
    with pytest.warns(ProbeWarning) as caught:
        run = recorded(losses, steps=[0], on_loss_jump=True)
    assert [str(one.message) for one in caught] == [f"probe: {text}"]
    assert caught[0].filename == inspect.getfile(Training)
    assert in_full(run) == [0, LEAST + 1] == run.steps["step"].tolist()
    assert {s.phase for s in run.find(step=LEAST + 1)} == FULL
    assert [(int(step), note) for step, _, note in run.notes] == [(LEAST + 1, text)]


@pytest.mark.parametrize("task", ["norms", "statistics", "tensor"])
def test_a_loss_that_is_not_finite(task: str) -> None:
    with pytest.warns(ProbeWarning, match="step 2 is recorded in full: loss is nan"):
        run = recorded([1.0, math.nan, math.nan, math.nan, 1.0], task=task, steps=[0, 4], on_nonfinite=True)
    assert run.steps["step"].tolist() == [0, 2, 4]
    assert in_full(run) == ([2] if task == "norms" else [0, 2, 4])
    assert {s.phase for s in run.find(step=2)} == FULL
    assert all((s.values is not None) == (task == "tensor") for s in run.find(step=2, role="output"))
    assert len(run.find(step=2, phase="forward", role="input")) == 9


def test_norms_before_and_after_a_full_step() -> None:
    with pytest.warns(ProbeWarning, match="step 1 is recorded in full"):
        run = recorded([math.inf, 1.0, 1.0], task="norms", on_nonfinite=True)
    assert in_full(run) == [1] and {s.phase for s in run.find(step=1)} == FULL
    thin = [{(s.phase, s.role, s.path, s.slot) for s in run.find(step=step)} for step in (0, 2)]
    assert thin[0] == thin[1] and len(thin[0]) == 3 + 12
    full = run.one(step=1, phase="update", role="param_grad", path="head", slot="weight")
    assert full.hash_kind != HashKind.NONE and full.hash != (0, 0)


@pytest.mark.parametrize(
    "options, seen",
    [
        ({"task": "norms"}, "output 0 of layers.0 has NaN"),
        ({"modules": "head"}, "output 0 of head has NaN"),
        ({"phases": "update"}, "the gradient of embed.weight, as the optimizer used it, has NaN or Inf"),
        (
            {"task": "norms", "phases": "update"},
            "the gradient of embed.weight, as the optimizer used it, has NaN or Inf",
        ),
    ],
)
def test_what_is_recorded_is_looked_at(options: dict[str, Any], seen: str) -> None:
    training = Training()
    probe.start(training.net, "a.h5", on_nonfinite=True, **options)
    training.step()
    x = sample((5, 4))
    x[2, 1] = math.nan
    with pytest.warns(ProbeWarning) as caught:
        training.step(x=Tensor(x))
    assert [str(one.message) for one in caught] == [f"probe: step 2 is recorded in full: {seen}"]
    training.step()


def test_masked_outputs_are_fine_and_infinite_gradients_are_not() -> None:
    mask = type(
        "Mask", (nn.Module,), {"forward": lambda self, x: x * Tensor(np.float32([1, -math.inf, math.inf, 1]))}
    )()
    net = nn.Sequential(nn.Linear(4, 4), mask)
    optimizer = nn.SGD(net.parameters(), 0.1)
    probe.start(net, "a.h5", task="norms", on_nonfinite=True)
    with no_grad():
        net(Tensor(np.float32(np.abs(sample((5, 4))) + 1)))
    probe.step()
    for parameter in net.parameters():
        parameter.grad = Tensor(np.full(parameter.shape, math.inf, np.float32))
    optimizer.step()
    with pytest.warns(ProbeWarning, match="the gradient of 0.weight, as the optimizer used it, has NaN or Inf"):
        probe.step()


def test_a_loss_that_is_never_given_is_asked_for_once() -> None:
    training = Training()
    probe.start(training.net, "a.h5", task="norms", on_loss_jump=5)
    with pytest.warns(ProbeWarning) as caught:
        training.step(lr=1.0)
        training.step(lr=1.0)
    assert [str(one.message) for one in caught] == [
        "probe: on_loss_jump looks at the loss, but probe.step() was given none: probe.step(loss=...)"
    ]


def test_a_loss_that_stays_nan_does_not_fill_the_disk() -> None:
    with pytest.warns(ProbeWarning, match="step 1 is recorded in full"):
        run = recorded([math.nan] * (2 * WINDOW), steps=[0], on_nonfinite=True)
    assert run.steps["step"].tolist() == [0, 1]


def test_a_step_that_never_comes_is_not_in_the_file() -> None:
    with pytest.warns(ProbeWarning, match="step 1 is recorded in full"):
        run = recorded([math.nan], on_nonfinite=True)
    assert run.steps["step"].tolist() == [0] and not run.notes
