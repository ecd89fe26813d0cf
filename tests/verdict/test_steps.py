"""Over steps: which step of B is a step of A, steps that one side broke off, and all that changes weights, within the optimizer and behind it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import probe
from probe.answer.comparison import Comparison
from probe.answer.result import Kind, Verdict
from probe.commands.cli import main
from probe.errors import ConfigError, ProbeWarning
from probe.records import Phase
from probe.store.reading.reader import Reader
from tests.toy import nn
from tests.toy.tensor import Tensor
from tests.toys import GPT, batch, gpt, loss_of, module, plain_step, record, replaced, rounding_otherwise
from tests.verdict.planted import Clean, Model, Recorder, changed, said

# ---- Over steps: which step of B is a step of A, steps that one side broke off, and faults that are there from a step on.

# ---- Over steps: which step of B is a step of A, and faults that are there from a step on.


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


# ---- Steps that were broken off, that one side began to record later, or did not tell apart.


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
    assert sum((slot.phase, slot.step) == (Phase.INIT, 2) for slot in found.slots) == 39


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


# ---- Updates: what changes weights behind the optimizer, updates by hand, many small ones together, and what happens to the optimizer only later.

# ---- Weights that something changes behind the optimizer's step.

Step = Callable[[nn.Module, nn.Optimizer, int], Tensor]


def rounded(model: nn.Module, optimizer: nn.Optimizer, number: int) -> Tensor:
    loss = plain_step(model, optimizer, number)
    for parameter in model.parameters():
        parameter.data[...] = parameter.data.astype(np.float16).astype(np.float32)
    return loss


def averaged(model: nn.Module, optimizer: nn.Optimizer, number: int) -> Tensor:
    before = [parameter.data.copy() for parameter in model.parameters()]
    loss = plain_step(model, optimizer, number)
    for old, parameter in zip(before, model.parameters(), strict=True):
        parameter.data[...] = 0.1 * old + 0.9 * parameter.data
    return loss


def one_clipped(model: nn.Module, optimizer: nn.Optimizer, number: int) -> Tensor:
    loss = plain_step(model, optimizer, number)
    weight = module(model, "layers.1.mlp.up").weight.data
    np.clip(weight, -0.1, 0.1, out=weight)
    return loss


@pytest.mark.thorough
@pytest.mark.parametrize("step", [rounded, averaged, one_clipped])
@pytest.mark.parametrize(("task", "side"), [("statistics", "A"), ("tensor", "B")])
def test_one_side_alone(tmp_path: Path, task: str, step: Step, side: str) -> None:
    files = [
        record(tmp_path / f"{name}.h5", model, steps=3, step=step if name == side else plain_step, task=task)
        for name, model in (("A", gpt()), ("B", rounding_otherwise(gpt())))
    ]
    found = probe.compare(*files)
    first = found.first_divergence
    path = "layers.1.mlp.up" if step is one_clipped else ""
    assert first is not None and (first.step, first.phase, first.path) == (0, Phase.UPDATE, path), found
    assert first.evidence[0].startswith(f"{side}'s weights change in step 0 otherwise than by the optimizer's update: ")
    assert "weight of layers.1.mlp.up" in first.evidence[0] or step is not one_clipped
    assert first.evidence[1:] == ("the other side's do not",)
    assert found.divergences == (first,)


@pytest.mark.thorough
def test_both_sides(tmp_path: Path) -> None:
    files = [record(tmp_path / f"{name}.h5", gpt(), steps=3, step=averaged) for name in "ab"]
    assert probe.compare(*files).verdict is Verdict.ALIGNED


def averaged_by(share: float) -> Step:
    def step(model: nn.Module, optimizer: nn.Optimizer, number: int) -> Tensor:
        before = [parameter.data.copy() for parameter in model.parameters()]
        loss = plain_step(model, optimizer, number)
        for old, parameter in zip(before, model.parameters(), strict=True):
            parameter.data[...] = share * old + (1 - share) * parameter.data
        return loss

    return step


def clipped_at(bound: float) -> Step:
    def step(model: nn.Module, optimizer: nn.Optimizer, number: int) -> Tensor:
        loss = plain_step(model, optimizer, number)
        weight = module(model, "layers.1.mlp.up").weight.data
        np.clip(weight, -bound, bound, out=weight)
        return loss

    return step


@pytest.mark.thorough
def test_one_side_far_more(tmp_path: Path) -> None:
    files = [record(tmp_path / f"{share}.h5", gpt(), steps=2, step=averaged_by(share)) for share in (0.01, 0.5)]
    first = probe.compare(*files).first_divergence
    assert first is not None and first.evidence[1] == (
        "39 of them are changed so on the other side, too, by less than a quarter of that"
    )


@pytest.mark.thorough
@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize(
    ("step", "wrong", "path", "times"),
    [(averaged_by(0.1), averaged_by(0.2), "", "2"), (clipped_at(0.1), clipped_at(0.2), "layers.1.mlp.up", "0.")],
    ids=["averaged", "clipped"],
)
def test_both_sides_and_not_alike(tmp_path: Path, task: str, step: Step, wrong: Step, path: str, times: str) -> None:
    files = [
        record(tmp_path / f"{name}.h5", model, steps=2, step=how, task=task)
        for name, model, how in (
            ("a", gpt(), step), ("b", rounding_otherwise(gpt()), step), ("c", rounding_otherwise(gpt()), wrong),
        )
    ]  # fmt: skip
    assert probe.compare(*files[:2]).verdict is Verdict.ALIGNED
    found = probe.compare(files[0], files[2])
    first = found.first_divergence
    assert first is not None and (first.step, first.phase, first.path) == (0, Phase.UPDATE, path)
    assert first.evidence[0].startswith(
        "both sides change weights in step 0 otherwise than by the optimizer's update, and not alike: "
    )
    assert first.evidence[1].startswith(f"B's changes are {times}") and first.hint.startswith(
        "look at what runs behind"
    )
    assert found.divergences == (first,)


@pytest.mark.thorough
@pytest.mark.parametrize("step", [rounded, averaged, one_clipped])
def test_both_sides_with_other_rounding(tmp_path: Path, step: Step) -> None:
    a, b = (
        record(tmp_path / f"{name}.h5", model, steps=4, step=step)
        for name, model in (("a", gpt()), ("b", rounding_otherwise(gpt())))
    )
    assert probe.compare(a, b).verdict is Verdict.ALIGNED


@pytest.mark.thorough
def test_one_weight_of_one_side_where_both_change_others(tmp_path: Path) -> None:
    def both(model: nn.Module, optimizer: nn.Optimizer, number: int) -> Tensor:
        before = module(model, "layers.1.mlp.up").weight.data.copy()
        loss = averaged(model, optimizer, number)
        module(model, "layers.1.mlp.up").weight.data[...] = before
        return loss

    files = [
        record(tmp_path / f"{name}.h5", gpt(), steps=3, step=step) for name, step in (("a", averaged), ("b", both))
    ]
    first = probe.compare(*files).first_divergence
    assert first is not None and (first.step, first.phase) == (0, Phase.UPDATE)
    assert first.evidence[0].startswith("B's weights stay as they were in step 0, whatever the optimizer does: 1 of ")
    assert "weight of layers.1.mlp.up" in first.evidence[0]


@pytest.mark.thorough
@pytest.mark.xfail(
    strict=True, reason="two updates in one step: the last alone is held against what the weights have become"
)
def test_several_updates_in_a_step_are_added_up(tmp_path: Path) -> None:
    def twice(model: nn.Module, optimizer: nn.Optimizer, number: int) -> Tensor:
        loss = loss_of(model(batch(number)), batch(number))
        loss.backward()
        optimizer.step()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    a, b = (
        record(tmp_path / f"{name}.h5", gpt(), steps=2, step=step) for name, step in (("a", plain_step), ("b", twice))
    )
    first = probe.compare(a, b).first_divergence
    assert first is not None and not any("otherwise than by the optimizer's update" in text for text in first.evidence)


class Shifted(GPT):
    """Adds one number to all logits, which the loss does not see: of its gradient there is rounding alone, and Adam makes full steps of that."""

    def forward(self, ids: Tensor) -> Tensor:
        return GPT.forward(self, ids) + self.shift.sum() * 0.1


@pytest.mark.thorough
@pytest.mark.xfail(
    strict=True, reason="full steps of Adam whose gradient is rounding alone are taken for another update"
)
def test_what_both_sides_make_of_noisy_updates(tmp_path: Path) -> None:
    files = []
    for name, change in (("a", lambda model: model), ("b", rounding_otherwise)):
        model = gpt()
        model.__class__ = Shifted
        model.shift = nn.Parameter(np.linspace(0.5, 1, 64, dtype=np.float32))
        files.append(record(tmp_path / f"{name}.h5", change(model), steps=3, step=averaged))
    assert probe.compare(*files).verdict is Verdict.ALIGNED


# ---- Updates that no optimizer was seen to make: by hand, or in copies that belong to no parameter.

LR = 0.05


def by_hand(times: float = 1.0, without: str = "", from_step: int = 0) -> Step:
    """Return a step that updates the weights without an optimizer."""

    def step(model: nn.Module, optimizer: nn.Optimizer, number: int) -> Tensor:
        loss = loss_of(model(batch(number)), batch(number))
        loss.backward()
        rate = LR * (times if number >= from_step else 1.0)
        left = module(model, without).parameters() if without else []
        for parameter in model.parameters():
            if parameter.grad is not None and all(parameter is not each for each in left):
                parameter.data[...] -= (rate * parameter.grad.data).astype(np.float32)
            parameter.grad = None
        return loss

    return step


def compared(folder: Path, a: Step, b: Step, task: str = "statistics") -> Comparison:
    return probe.compare(
        *(record(folder / f"{n}.h5", gpt(), steps=3, step=s, task=task) for n, s in (("a", a), ("b", b)))
    )


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize("times", [1.05, 2.0])
@pytest.mark.parametrize("from_step", [0, 1])
def test_another_rate_is_found_where_it_begins(tmp_path: Path, task: str, times: float, from_step: int) -> None:
    found = compared(tmp_path, by_hand(), by_hand(times, from_step=from_step), task)
    first = found.first_divergence
    assert first is not None and (first.step, first.phase, first.path) == (from_step, Phase.UPDATE, ""), found
    assert first.hint == f"B's update is {times:g} times A's: look at the learning rate and its schedule"


def test_the_same_is_aligned(tmp_path: Path) -> None:
    def otherwise(model: nn.Module, optimizer: nn.Optimizer, number: int) -> Tensor:
        loss = by_hand()(model, optimizer, number)
        for parameter in model.parameters():
            parameter.data[...] = np.nextafter(parameter.data, np.float32(np.inf) * (number % 2 * 2 - 1))
        return loss

    assert compared(tmp_path, by_hand(), otherwise).verdict is Verdict.ALIGNED


def test_weights_that_stay_as_they_are_were_not_updated(tmp_path: Path) -> None:
    first = compared(tmp_path, by_hand(), by_hand(without="layers.1.mlp.up")).first_divergence
    assert first is not None and (first.phase, first.kind, first.path) == (Phase.UPDATE, Kind.UPDATE, "layers.1.mlp.up")


# ---- Updates of which each alone differs by no more than a few signs would make it, and all of them together by more.


class Inside(nn.AdamW):
    """Adam as some have it: eps under the root."""

    def update(self, p: np.ndarray, g: np.ndarray, group: dict[str, Any], state: dict[str, Any]) -> None:
        state["step"] = state.get("step", 0) + 1
        first = state.setdefault("exp_avg", Tensor(np.zeros_like(p))).data
        second = state.setdefault("exp_avg_sq", Tensor(np.zeros_like(p))).data
        beta1, beta2 = group["betas"]
        first[...] = beta1 * first + (1 - beta1) * g
        second[...] = beta2 * second + (1 - beta2) * g * g
        scale = (second / (1 - beta2 ** state["step"]) + group["eps"]) ** 0.5
        p -= group["lr"] * (first / (1 - beta1 ** state["step"]) / scale + group["weight_decay"] * p)


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize(("kind", "verdict"), [(nn.AdamW, Verdict.ALIGNED), (Inside, Verdict.DIVERGED)])
def test_eps_under_the_root(
    tmp_path: Path, task: str, kind: type[nn.AdamW], verdict: Verdict, request: pytest.FixtureRequest
) -> None:
    if kind is Inside:
        reason = "each update is within its noise, and nothing looks at all of them as one vector"
        request.applymarker(pytest.mark.xfail(strict=True, reason=reason))
    a = record(tmp_path / "a.h5", gpt(), task=task)
    model = rounding_otherwise(gpt())
    b = record(tmp_path / "b.h5", model, optimizer=kind(model.parameters(), lr=1e-3), task=task)
    found = probe.compare(a, b)
    assert found.verdict is verdict
    if verdict is Verdict.DIVERGED:
        first = found.first_divergence
        assert first is not None and (first.step, first.phase, first.path) == (0, Phase.UPDATE, "")
        assert any("as one vector, differ by" in text for text in first.evidence), first.evidence


# ---- What happens to the optimizer only later.


@pytest.mark.parametrize("since", [0, 1, 2])
@pytest.mark.parametrize("side", ["a", "b"])
def test_a_parameter_that_the_optimizer_loses(tmp_path: Path, since: int, side: str) -> None:
    def step(model: nn.Module, optimizer: nn.Optimizer, number: int) -> Tensor:
        lost = module(model, "layers.1.mlp.up").weight
        if number == since:
            for group in optimizer.param_groups:
                group["params"] = [each for each in group["params"] if each is not lost]
        return plain_step(model, optimizer, number)

    files = [
        record(tmp_path / f"{name}.h5", gpt(), steps=3, step=step if name == side else plain_step) for name in "ab"
    ]
    first = probe.compare(*files).first_divergence
    assert first is not None
    assert (first.step, first.phase, first.kind, first.path) == (since, Phase.UPDATE, Kind.MISSING, "layers.1.mlp.up")
    other = "A" if side == "b" else "B"
    assert f"only {other} updates this parameter" in first.evidence
