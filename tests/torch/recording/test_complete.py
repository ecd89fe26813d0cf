"""What a training does is in the file, or is said there to be missing: never silently left out."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import probe
from probe.records import Phase, Role
from tests.torch.zoo import ACCUMULATIONS, CASES, STEPS, Result, train

pytestmark = pytest.mark.filterwarnings(
    "ignore::probe.errors.ProbeWarning", "ignore::DeprecationWarning", "ignore:Dynamo", "ignore:The PyTorch API"
)


class Recording:
    """An observer that records statistics of everything."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def start(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        probe.start(model, self.path)

    def step(self, loss: Tensor) -> None:
        probe.step(loss=loss)

    def stop(self) -> None:
        probe.stop()


class File:
    """The tables of a recording, in memory."""

    def __init__(self, path: Path) -> None:
        with h5py.File(path) as file:
            self.records, self.calls = file["records"][:], file["calls"][:]
            self.modules, self.slots = file["modules"]["path"].astype(str)[:], file["slots"].asstr()[:]
            self.notes = [str(text) for text in file["notes"].fields("text")[:]] if "notes" in file else []

    def of(self, phase: Phase, role: Role, step: int) -> np.ndarray:
        rows = self.records
        return rows[(rows["phase"] == phase) & (rows["role"] == role) & (rows["step"] == step)]

    def name(self, row: np.void) -> str:
        return ".".join(part for part in (self.modules[row["module"]], self.slots[row["slot"]]) if part)


Recorded = Callable[[str], tuple[Result, File]]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Give what a training left behind and what was recorded of it; each is trained once."""

    @functools.cache
    def run(name: str) -> tuple[Result, File]:
        path = tmp_path_factory.mktemp(name) / "a.h5"
        return train(CASES[name], Recording(path)), File(path)

    return run


def norm(gradient: Tensor) -> float:
    dense = gradient.to_dense() if gradient.layout is not torch.strided else gradient
    return float(dense.double().norm())


@pytest.mark.parametrize("phase", [Phase.GRADIENT, Phase.UPDATE], ids=lambda phase: phase.label)
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.closure])
def test_the_gradients_of_a_step_are_in_the_file(name: str, phase: Phase, recorded: Recorded) -> None:
    result, file = recorded(name)
    for step in range(STEPS):
        found = {file.name(row): float(row["norm"]) for row in file.of(phase, Role.PARAM_GRAD, step)}
        expected = {n: norm(g) for n, g in result.gradients[step].items() if g is not None}
        if missing := expected.keys() - found.keys():
            assert file.notes, f"step {step}: {sorted(missing)} are not in the file, and no note says why"
        for parameter in expected.keys() & found.keys():
            # user_hooks clip in an optimizer hook of theirs, which runs before or after probe's
            if name != "user_hooks":
                assert found[parameter] == pytest.approx(expected[parameter], rel=1e-9, abs=1e-30), parameter


ALL_USED = (
    "mlp",
    "cnn_in_place",
    "shared_layer",
    "views",
    "tied",
    "checkpoint",
    "checkpoint_reentrant",
    "autocast_bf16",
)


@pytest.mark.parametrize("name", ALL_USED)
def test_every_output_has_a_gradient_or_a_note(name: str, recorded: Recorded) -> None:
    _, file = recorded(name)
    outputs = sum(int(file.of(Phase.FORWARD, Role.OUTPUT, step)["requires_grad"].sum()) for step in range(STEPS))
    gradients = sum(len(file.of(Phase.BACKWARD, Role.GRAD_OUTPUT, step)) for step in range(STEPS))
    if name == "checkpoint_reentrant":  # its first pass is no_grad: nothing requires a gradient there
        assert gradients > outputs
    else:
        assert gradients == outputs or file.notes, f"{outputs - gradients} gradients are missing without a note"


@pytest.mark.parametrize("name", ["checkpoint", "checkpoint_reentrant"])
def test_recomputed_calls_are_marked_and_have_not_raised(name: str, recorded: Recorded) -> None:
    _, file = recorded(name)
    again = file.calls[file.calls["recomputed"] == 1]
    # blocks of three modules: three by themselves, then two of them together
    assert len(again) == STEPS * ACCUMULATIONS * 5 * 4
    assert not file.calls["raised"].any()


@pytest.mark.parametrize("name", ["checkpoint_reentrant", "retain_graph", "mlp"])
def test_gradients_are_recorded_once_for_each_backward(name: str, recorded: Recorded) -> None:
    _, file = recorded(name)
    parameters = {file.name(row) for row in file.of(Phase.GRADIENT, Role.PARAM_GRAD, 0)}
    backwards = ACCUMULATIONS * (2 if name == "retain_graph" else 1)
    assert len(file.of(Phase.GRADIENT, Role.PARAM_GRAD, 0)) == len(parameters) * backwards


@pytest.mark.parametrize("name", ["per_sample_gradients", "copied"])
def test_only_forwards_of_the_model_itself_count_as_micro_batches(name: str, recorded: Recorded) -> None:
    _, file = recorded(name)
    assert file.calls["micro"].max() + 1 == ACCUMULATIONS
