"""What was not recorded, not compared or not judged stands beside ALIGNED: a pair that differs there is never a bare one."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import probe
from probe.adapters.numpy import nn
from probe.comparison.coverage.left_out import What, Why
from probe.comparison.result import Verdict
from probe.records import Phase
from probe.report.left_out import but_for
from tests.comparison.planted import Recorder, changed
from tests.toys import batch, gpt, loss_of, module, record

PHASES = [phase.label for phase in Phase if phase is not Phase.LOSS]
SOME_PHASES = [list(each) for n in range(1, 5) for each in itertools.combinations(PHASES, n)]
MODULES = [None, ["layers.0*"], ["!layers.1*"], ["Linear"]]
STEPS = [None, [0], [1], "every 2"]


def trained(fault: str) -> Any:
    """Return two training steps without a loss that is given; what is wrong is wrong in the second one, or in its backward."""

    def step(model: nn.Module, optimizer: nn.Optimizer, number: int) -> None:
        loss = loss_of(model(batch(number)), batch(number))
        (loss * (7.0 if fault == "loss" and number else 1.0)).backward()
        if fault == "gradient" and number:
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.grad.data[...] *= 1.5
        if fault == "update" and number:
            optimizer.param_groups[0]["lr"] = 5.0
        optimizer.step()
        optimizer.zero_grad()

    return step


def weights_of(fault: str) -> nn.Module:
    """Return the model; one weight that nothing uses may be another one."""
    model = gpt(layers=2)
    module(model, "layers.0").spare = nn.Parameter(np.full((3, 4), 2.0 if fault == "init" else 1.0, np.float32))
    module(model, "layers.0").spare.requires_grad = False
    return model


class Runs:
    """Recordings of the small model, each made once."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._made = folder, {}

    def of(self, fault: str, copy: int, **options: Any) -> Path:
        """Return a recording; of the same one, another copy is another run."""
        key = repr((fault, copy, sorted(options.items())))
        if key not in self._made:
            path = self._folder / f"{len(self._made)}.h5"
            model = weights_of(fault)
            with probe.capture(model, path, **options):
                optimizer = nn.AdamW(model.parameters(), lr=1e-3)
                for number in range(2):
                    trained(fault)(model, optimizer, number)
                    probe.step()
            self._made[key] = path
        return self._made[key]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("runs"))


def is_bare(found: probe.comparison.answer.Comparison) -> bool:
    """Tell whether a pair is said to be aligned, and nothing else."""
    return found.verdict is Verdict.ALIGNED and not found.left_out


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    fault=st.sampled_from(["loss", "gradient", "update", "init"]),
    sides=st.sampled_from(["A", "B", "AB"]),
    phases=st.sampled_from([None, *SOME_PHASES]),
    modules=st.sampled_from(MODULES),
    steps=st.sampled_from(STEPS),
)
def test_filters_that_hide_a_fault_are_said(
    runs: Runs, fault: str, sides: str, phases: list[str] | None, modules: list[str] | None, steps: object
) -> None:
    options = {"phases": phases, "modules": modules, "steps": steps}
    chosen = {name: each for name, each in options.items() if each is not None}
    files = [runs.of(which, copy, **(chosen if side in sides else {}))
             for copy, (side, which) in enumerate([("A", ""), ("B", fault)])]  # fmt: skip
    found = probe.compare(*files)
    assert not is_bare(found)
    if found.verdict is Verdict.ALIGNED:
        wanted = {What.PHASES: phases, What.MODULES: modules, What.STEPS: steps}
        assert {what for what, each in wanted.items() if each is not None} <= {left.what for left in found.left_out}
        assert " ".join(str(found).split()).startswith(f"ALIGNED{but_for(found.left_out)}")


@pytest.mark.parametrize("fault", ["loss", "gradient", "update", "init"])
def test_all_of_these_are_seen_where_all_was_recorded(runs: Runs, fault: str) -> None:
    assert probe.compare(runs.of("", 0), runs.of(fault, 1)).verdict is Verdict.DIVERGED


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_the_default_options_leave_a_bare_answer(run: Recorder, task: str) -> None:
    found = probe.compare(run(gpt(), steps=2, task=task), run(gpt(), steps=2, task=task))
    assert is_bare(found) and str(found).startswith("ALIGNED  A ")


def test_an_evaluation_has_no_loss_to_miss(tmp_path: Path) -> None:
    def evaluate(model: nn.Module, optimizer: nn.Optimizer, number: int) -> None:
        model(batch(number))

    files = [record(tmp_path / f"{name}.h5", step=evaluate) for name in "ab"]
    assert is_bare(probe.compare(*files))


def test_a_loss_that_one_side_has(runs: Runs, tmp_path: Path) -> None:
    with_loss = record(tmp_path / "a.h5", weights_of(""), steps=2)
    (left,) = probe.compare(with_loss, runs.of("", 1)).left_out
    assert (left.what, left.why, left.side) == (What.LOSS, Why.NOT_RECORDED, "B")
    (left,) = probe.compare(runs.of("", 0), runs.of("", 1)).left_out
    assert (left.what, left.why, left.side) == (What.LOSS, Why.NOT_RECORDED, "")


def test_a_chosen_step_of_a_run_of_one_step_leaves_nothing_out(run: Recorder) -> None:
    assert is_bare(probe.compare(run(gpt()), run(gpt())))
    files = [record_of_steps(run, [0], 1), record_of_steps(run, [0], 1)]
    assert is_bare(probe.compare(*files))
    files = [record_of_steps(run, [0], 3), record_of_steps(run, [0], 3)]
    assert but_for(probe.compare(*files).left_out) == " but for 2 of 3 steps (not recorded)"


def record_of_steps(run: Recorder, chosen: list[int], count: int) -> Path:
    """Record some of a run's steps."""
    path = run(gpt())
    path.unlink()
    model = gpt()
    optimizer = nn.AdamW(model.parameters(), lr=1e-3)
    with probe.capture(model, path, steps=chosen):
        for number in range(count):
            loss = loss_of(model(batch(number)), batch(number))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            probe.step(loss=loss)
    return path


def test_steps_before_those_that_are_paired_are_nothing_to_miss(run: Recorder) -> None:
    resumed, whole = record_of_steps(run, [0], 1), record_of_steps(run, [2], 3)
    found = probe.compare(whole, resumed, steps="2:0")
    assert not any(left.what is What.STEPS for left in found.left_out), found.left_out


def with_table(values: np.ndarray) -> nn.Module:
    """Return the model with a buffer that nothing uses."""
    model = gpt()
    model.table = nn.Buffer(values)
    return model


@pytest.mark.parametrize("phases", [None, ["init", "forward"]], ids=["all", "init and forward"])
@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_a_permuted_buffer_is_not_called_noise(run: Recorder, task: str, phases: list[str] | None) -> None:
    values = np.random.default_rng(0).standard_normal(64).astype(np.float32)
    files = [run(with_table(each), task=task, phases=phases) for each in (values, values[::-1].copy())]
    found = probe.compare(*files)
    assert found.verdict is Verdict.ALIGNED
    (left,) = [each for each in found.left_out if each.what is What.BUFFERS]
    assert (left.why, left.names) == (Why.DIFFERS, ("table",))
    assert "buffer table (differs)" in " ".join(str(found).split())  # however the headline breaks
    assert {slot.verdict for slot in found.slots if slot.slot_a == "table"} == {"not judged"}
    assert found.flip is None or found.flip.closest is None or found.flip.closest.limit < 1
    assert but_for(probe.compare(files[0], run(with_table(values), task=task, phases=phases)).left_out) == (
        "" if phases is None else " but for backward, gradient, update (not recorded)"
    )


def test_a_buffer_that_one_side_has(run: Recorder) -> None:
    found = probe.compare(run(with_table(np.ones(4, np.float32))), run(gpt()))
    assert found.verdict is Verdict.ALIGNED
    assert but_for(found.left_out) == " but for buffer table of the root (only in A)"


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_the_sign_of_zeros_is_neither_a_divergence_nor_bit_equal(run: Recorder, task: str) -> None:
    def with_zeros(zero: float) -> nn.Module:
        def change(model: nn.Module) -> None:
            module(model, "layers.1.mlp.up").bias.data[...] = zero

        return changed(change)

    found = probe.compare(run(with_zeros(0.0), task=task), run(with_zeros(-0.0), task=task))
    assert is_bare(found)
    zeros = [slot for slot in found.slots if slot.metrics.other_zeros]
    assert [(slot.path_a, slot.slot_a, slot.verdict) for slot in zeros][0] == ("layers.1.mlp.up", "bias", "equal")
    text = " ".join(str(found).split())
    assert f"{len(zeros)} is equal but for the sign of zeros." in text or f"{len(zeros)} are equal but for" in text
    assert "That is what one program gives twice" not in text


def test_the_headline_stays_short(run: Recorder) -> None:
    options = {"phases": ["forward"], "modules": ["!layers.1*"]}
    values = np.random.default_rng(0).standard_normal(64).astype(np.float32)
    found = probe.compare(run(with_table(values), **options), run(gpt(), **options))
    assert len(str(found).partition("  A ")[0]) <= 110
