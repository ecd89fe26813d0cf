"""Steps that were broken off, that one side began to record later, or did not tell apart."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

import probe
from probe.adapters.numpy import nn
from probe.adapters.numpy.tensor import Tensor
from probe.comparison.result import Verdict
from probe.errors import ProbeWarning
from probe.records import Phase
from tests.comparison.planted import Clean, Model, Recorder, changed, said
from tests.toys import (
    gpt,
    module,
    plain_step,
    replaced,
)


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


def from_a_step_on(path: Path, eps: float = 1e-6, steps: object = None, **options: Any) -> Path:
    model = changed(lambda m: setattr(module(m, "layers.1.norm2"), "eps", eps))
    optimizer = nn.AdamW(model.parameters(), lr=1e-3)
    with probe.capture(model, path, steps=steps, **options):
        for number in range(4):
            probe.step(loss=plain_step(model, optimizer, number))
    return path


@pytest.mark.parametrize("swapped", [False, True])
def test_steps_that_one_side_began_to_record_later(tmp_path: Path, swapped: bool) -> None:
    """What the other side's step before left is what it began with."""
    whole, late = from_a_step_on(tmp_path / "a.h5"), from_a_step_on(tmp_path / "b.h5", 0.1, [2, 3])
    found = probe.compare(late, whole) if swapped else probe.compare(whole, late)
    first = found.first_divergence
    assert first is not None and (first.phase, first.step, first.path) == (Phase.INIT, 2, "")
    assert first.evidence == ("37 of 39 parameters differ before step 2; step 1 was not recorded",)
    assert first.hint == "record the steps before 2 too: the runs part there, or do not start from the same weights"
    clean = from_a_step_on(tmp_path / "c.h5", steps=[2, 3])
    found = probe.compare(clean, whole) if swapped else probe.compare(whole, clean)
    assert found.verdict is Verdict.ALIGNED
    assert sum(slot.phase is Phase.INIT for slot in found.slots) == 39


@pytest.mark.parametrize("swapped", [False, True])
def test_steps_of_which_one_side_did_not_record_how_they_begin(tmp_path: Path, swapped: bool) -> None:
    """Whether the weights were the same then is not known: nothing may be blamed."""
    phases = ["init", "forward", "loss"]  # what the updates made of the weights is not there
    whole = from_a_step_on(tmp_path / "a.h5", phases=phases)
    late = from_a_step_on(tmp_path / "b.h5", 0.1, [2, 3], phases=phases)
    found = probe.compare(late, whole) if swapped else probe.compare(whole, late)
    assert found.verdict is Verdict.UNDECIDED and not found.divergences
    text = f"but {'B' if swapped else 'A'} did not record with what weights it began: record the same steps on both sides, best from 0 on"
    assert [doubt.partition(", ")[2].partition(", ")[2] for doubt in found.doubts] == [text]
    clean = from_a_step_on(tmp_path / "c.h5", steps=[2, 3], phases=phases)
    assert (probe.compare(clean, whole) if swapped else probe.compare(whole, clean)).verdict is Verdict.ALIGNED


@pytest.mark.parametrize("forgotten", ["A", "B"])
def test_steps_that_one_side_did_not_tell_apart(forgotten: str, tmp_path: Path) -> None:
    def recorded(name: str) -> Path:
        model, path = gpt(), tmp_path / f"{name}.h5"
        optimizer = nn.AdamW(model.parameters(), lr=1e-3)
        probe.start(model, path)
        for number in range(3):
            loss = plain_step(model, optimizer, number)
            if name != forgotten:
                probe.step(loss=loss)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ProbeWarning)
            probe.stop()
        return path

    found = probe.compare(recorded("A"), recorded("B"))
    assert (found.verdict, found.divergences) == (Verdict.UNDECIDED, ())
    assert found.doubts == (
        f"probe.step() was never called in {forgotten}: it has 3 forwards in one step, the other 1; call it at the end of each "
        "step and record again",
    )


# ---- the traps, in one table -------------------------------------------------------------------------
