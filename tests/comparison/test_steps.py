"""Over steps: which step of B is a step of A, and faults that are there from a step on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import probe
from probe.adapters.numpy import nn
from probe.adapters.numpy.tensor import Tensor
from probe.commands.cli import main
from probe.comparison.result import Kind, Verdict
from probe.errors import ConfigError
from probe.records import Phase
from probe.store.reading.reader import Reader
from tests.comparison.planted import Model, Recorder, said
from tests.toys import gpt, module, plain_step

from click.testing import CliRunner  # isort: skip


def resumed(
    path: Path, *, before: int = 0, steps: int = 3, restores: bool = True, task: str = "statistics",
    change: Callable[[Model], object] = lambda model: None, recorded: object = None, rate: Callable[[int], float] | None = None,
) -> Path:  # fmt: skip
    """Train some steps, begin anew from what they left, and record the steps that follow from 0 on."""
    model = gpt()
    optimizer = nn.AdamW(model.parameters(), lr=1e-3)
    for number in range(before):
        plain_step(model, optimizer, number)
    if not restores:
        optimizer = nn.AdamW(model.parameters(), lr=1e-3)
    change(model)
    with probe.capture(model, path, task=task, steps=recorded):
        for number in range(before, before + steps):
            if rate is not None:
                optimizer.param_groups[0]["lr"] = rate(number)
            probe.step(loss=plain_step(model, optimizer, number))
    return path


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_a_run_that_goes_on_where_another_one_stood(tmp_path: Path, task: str) -> None:
    whole = resumed(tmp_path / "a.h5", steps=6, task=task)
    rest = resumed(tmp_path / "b.h5", before=3, task=task)
    for pair, steps, alone in (
        ((whole, rest), "3:0", "0, 1, 2 only in A"),
        ((rest, whole), (0, 3), "0, 1, 2 only in B"),
    ):
        found = probe.compare(*pair, steps=steps)
        assert found.verdict is Verdict.ALIGNED, found.first_divergence
        assert {slot.step for slot in found.slots} == ({3, 4, 5} if steps == "3:0" else {0, 1, 2})
        assert any(slot.phase is Phase.INIT for slot in found.slots), "what A's step before left is what B began with"
        assert said(found, f"steps not compared: {alone}")


def test_another_number_of_steps_is_no_pair(tmp_path: Path) -> None:
    whole, rest = resumed(tmp_path / "a.h5", steps=6), resumed(tmp_path / "b.h5", before=3)
    assert probe.compare(whole, rest).verdict is Verdict.DIVERGED, "other weights, other batches"
    first = probe.compare(whole, rest, steps="2:0").first_divergence
    assert first is not None and (first.phase, first.kind, first.step, first.b[0].step) == (Phase.INIT, Kind.INIT, 2, 0)


def test_weights_that_differ_where_a_run_goes_on(tmp_path: Path) -> None:
    def spoil(model: Model) -> None:
        module(model, "layers.1.mlp.up").weight.data *= 1.01

    whole, rest = resumed(tmp_path / "a.h5", steps=6), resumed(tmp_path / "b.h5", before=3, change=spoil)
    first = probe.compare(whole, rest, steps="3:0").first_divergence
    assert first is not None and (first.phase, first.kind, first.path) == (Phase.INIT, Kind.INIT, "layers.1.mlp.up")
    assert (first.a[0].step, first.b[0].step) == (3, 0)


@pytest.mark.parametrize("steps", ["3", "a:b", "1:2:3", ":", 3, (1,), (1, 2, 3), (1.5, 2), [0, "x"]])
def test_steps_that_are_not_two_numbers(tmp_path: Path, steps: Any) -> None:
    path = resumed(tmp_path / "a.h5", steps=1)
    with pytest.raises(ConfigError, match="expected A:B, as in 0:1 when step 0 of A is step 1 of B"):
        probe.compare(path, path, steps=steps)


def test_steps_at_the_command_line(tmp_path: Path) -> None:
    whole, rest = resumed(tmp_path / "a.h5", steps=6), resumed(tmp_path / "b.h5", before=3)
    result = CliRunner().invoke(main, ["compare", str(whole), str(rest), "--steps", "3:0"])
    assert result.exit_code == 0 and result.output.startswith("ALIGNED"), result.output
    result = CliRunner().invoke(main, ["compare", str(whole), str(rest), "--steps", "9:0"])
    assert result.exit_code == 2
    assert "no step in common: A has 0, 1, 2, 3, 4 …, B has 0, 1, 2, and step 9 of A is to be step 0 of B" in " ".join(
        result.output.split()
    )
    result = CliRunner().invoke(main, ["compare", str(whole), str(rest), "--steps", "3"])
    assert result.exit_code == 3 and "--steps 3: expected A:B" in result.output


def test_recordings_that_have_some_steps_in_common(tmp_path: Path) -> None:
    one = resumed(tmp_path / "a.h5", steps=6, recorded=[0, 2, 3, 5])
    two = resumed(tmp_path / "b.h5", steps=6, recorded=[1, 2, 4, 5])
    found = probe.compare(one, two)
    assert found.verdict is Verdict.ALIGNED, found.first_divergence
    assert {slot.step for slot in found.slots} == {2, 5}
    assert said(found, "steps not compared: 0, 3 only in A, 1, 4 only in B")


def test_an_exception_in_a_step_that_has_another_number(tmp_path: Path) -> None:
    whole = resumed(tmp_path / "a.h5", steps=6)
    model, path = gpt(), tmp_path / "b.h5"
    optimizer = nn.AdamW(model.parameters(), lr=1e-3)
    for number in range(3):
        plain_step(model, optimizer, number)
    with pytest.raises(ZeroDivisionError), probe.capture(model, path):
        probe.step(loss=plain_step(model, optimizer, 3))
        model(Tensor([[1, 2]]))
        raise ZeroDivisionError
    found = probe.compare(whole, path, steps="3:0")
    assert found.verdict is not Verdict.ALIGNED
    assert said(found, "B: step 1 was ended by an exception, on the other side it was not")


def test_curves_that_are_shifted_lead_to_the_place(tmp_path: Path) -> None:
    """`probe curves --steps` compares the step in which they part, and prints the command with the same words."""

    def spoil(model: Model) -> None:
        module(model, "layers.1.norm2").eps = 0.5

    whole = resumed(tmp_path / "a.h5", steps=30)
    rest = resumed(tmp_path / "b.h5", before=10, steps=20, change=spoil)
    found = probe.curves(whole, rest, steps="10:0")
    assert found.divergence is not None, (found.advice, found.findings)
    assert (found.divergence.path, found.divergence.a[0].step, found.divergence.b[0].step) == ("layers.1.norm2", 10, 0)
    assert found.advice == f"probe compare {whole} {rest} --steps 10:0"


def test_a_count_of_steps_that_is_a_plain_number_is_not_written_to_behind_the_last_step(run: Recorder) -> None:
    """It is a new tensor each time that it is asked for: that it is another one than before says nothing."""
    with Reader(run(steps=2)) as reader:
        assert reader.behind_last_step == {}
