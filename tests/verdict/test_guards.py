"""What is never called aligned: runs that cannot be compared, parts that were left out, damaged recordings."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import probe
from probe.answer.result import Kind, Verdict
from probe.errors import FormatError, ProbeWarning
from probe.records import Phase
from probe.report.text import render
from tests.toy import nn
from tests.toy.tensor import Tensor
from tests.toys import (
    GPT,
    VOCABULARY,
    WIDTH,
    batch,
    evaluate,
    gpt,
    loss_of,
    module,
    plain_step,
    replaced,
    rounding_otherwise,
)
from tests.verdict.planted import DOWN, MODEL_FAULTS, Clean, Model, Recorder, changed, said

# ---- What is never called aligned: runs that cannot be compared, parts that were left out.


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


def test_steps_that_only_one_side_has_are_said(tmp_path: Path) -> None:
    found = probe.compare(only_steps(tmp_path / "a.h5", [0, 1]), only_steps(tmp_path / "b.h5", [1, 2]))
    assert found.verdict is Verdict.ALIGNED
    assert found.warnings == ("steps not compared: 0 only in A, 2 only in B",)


def test_no_complete_step(tmp_path: Path, clean: Clean) -> None:
    with pytest.warns(ProbeWarning, match="no step was recorded: 1 step ended, and steps= chose none of them"):
        empty = only_steps(tmp_path / "empty.h5", 7, count=1)
    for pair, name in (((empty, clean("statistics")), "A"), ((clean("statistics"), empty), "B")):
        found = probe.compare(*pair)
        assert found.verdict is Verdict.UNDECIDED
        assert found.warnings[0] == f"{name} has no complete step ({empty}): record at least one, with its probe.step()"


@pytest.mark.parametrize("tasks", [("structure", "structure"), ("structure", "statistics")])
@pytest.mark.parametrize("fault", [None, "eps", "NaN"])
def test_without_numbers_nothing_is_called_aligned(run: Recorder, tasks: tuple[str, str], fault: str | None) -> None:
    there = changed(MODEL_FAULTS[fault][0]) if fault else gpt()
    found = probe.compare(run(task=tasks[0]), run(there, task=tasks[1]))
    assert found.verdict is Verdict.UNDECIDED
    assert found.coverage.compared == 0 and found.coverage.not_comparable > 80
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


def test_a_loss_that_is_nan(clean: Clean, run: Recorder) -> None:
    def nan(model: Model, optimizer: nn.Optimizer, number: int) -> Tensor:
        return plain_step(model, optimizer, number) * math.nan

    a, b = run(step=nan), run(step=nan)
    found = probe.compare(a, b)
    assert found.verdict is Verdict.UNDECIDED
    assert found.warnings == ("step 0: the loss is NaN on both sides: what is computed from it cannot be judged",)
    first = probe.compare(clean("statistics"), b).first_divergence
    assert first is not None and (first.phase, first.kind) == (Phase.LOSS, Kind.NONFINITE)


@pytest.mark.parametrize(
    ("factors", "verdict", "text"),
    [
        ((math.inf, math.inf), Verdict.UNDECIDED, "step 0: the loss is inf on both sides"),
        ((math.nan, math.inf), Verdict.UNDECIDED, "step 0: the loss is NaN in A and inf in B"),
        ((math.inf, -math.inf), Verdict.DIVERGED, "the loss differs: inf against -inf"),
    ],
)
def test_losses_that_are_no_numbers(run: Recorder, factors: tuple[float, float], verdict: Verdict, text: str) -> None:
    def times(factor: float) -> Callable[..., Tensor]:
        return lambda model, optimizer, number: plain_step(model, optimizer, number) * factor

    found = probe.compare(*(run(step=times(factor)) for factor in factors))
    assert found.verdict is verdict
    first = found.first_divergence
    if first is None:
        assert found.warnings == (f"{text}: what is computed from it cannot be judged",)
    else:
        assert (first.phase, first.kind, first.evidence[0]) == (Phase.LOSS, Kind.NONFINITE, text)


def test_infinities_in_a_mask_are_no_reason_to_doubt(run: Recorder) -> None:
    def masked(model: Model, optimizer: nn.Optimizer, number: int) -> Tensor:
        probe.log("mask", Tensor(np.triu(np.full((4, 4), -np.inf, np.float32), 1)))
        return plain_step(model, optimizer, number)

    assert probe.compare(run(step=masked), run(step=masked)).verdict is Verdict.ALIGNED


@pytest.mark.thorough
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
    assert probe.compare(a, b).verdict is Verdict.ALIGNED, "the modules are found under their other names"
    found = probe.compare(a, b, min_confidence=1)
    assert found.verdict is Verdict.UNDECIDED
    assert said(
        found,
        "These look like different models: GPT, 44 modules; GPT, 44 modules. Only 1 of 43 module calls of A have a counterpart "
        "(--min-coverage 50%)",
    )
    assert len(found.only_a) == len(found.only_b) == 42
    assert (found.coverage.paired, found.coverage.only_a, found.coverage.only_b) == (1, 42, 42)
    assert probe.compare(a, b, min_coverage=0.01, min_confidence=1).verdict is Verdict.ALIGNED
    there = changed(renamed)
    there.__class__ = type("GPT", (GPT,), {"forward": lambda self, ids: forward(self, ids) * 1.5})
    wrong = [probe.compare(a, run(there), min_confidence=1, min_coverage=least) for least in (0.5, 0.01)]
    first, trusted = (found.first_divergence for found in wrong)
    assert first is not None and trusted is not None and first.confidence == trusted.confidence / 2
    text = "only 1 of 43 module calls of A have a counterpart: is it the same model?"
    assert first.evidence[-1] == text and text not in trusted.evidence


class Head(nn.Linear):
    """Stands at the name of another model's last layer."""


class Other(nn.Module):
    """Another model."""

    def __init__(self) -> None:
        super().__init__(tokens=nn.Embedding(VOCABULARY, 7), head=Head(7, VOCABULARY, bias=False))

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.tokens(ids))


def test_settings_of_another_model_are_no_finding(run: Recorder) -> None:
    """Little could be compared: what stands under a name that both have."""
    a, b = gpt(), Other()
    files = [run(each, optimizer=nn.AdamW(each.parameters(), eps=eps), phases=["init", "update"])
             for each, eps in ((a, 1e-8), (b, 1e-10))]  # fmt: skip
    found = probe.compare(*files, min_confidence=1)
    assert found.verdict is Verdict.UNDECIDED, found.divergences
    assert said(found, "the optimizers are set differently for 1 parameter: eps 1e-08 against 1e-10 (group 0)")


def test_two_files_that_are_no_pair_of_models(run: Recorder, clean: Clean) -> None:
    other = nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY))
    files = clean("statistics"), run(other)
    assert probe.compare(*files).verdict is not Verdict.ALIGNED
    found = probe.compare(*files, min_confidence=1)
    assert found.verdict is not Verdict.ALIGNED
    assert said(found, "Only 1 of 3 module calls of B have a counterpart (--min-coverage 50%)")


def _zero_head(model: Model) -> None:
    module(model, "head").weight.data[...] = 0


def _nothing_to_learn(model: Model, optimizer: nn.Optimizer, number: int) -> Tensor:
    loss = loss_of(model(batch(number)), batch(number)) * 0.0
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def _cut_off(model: Model, optimizer: nn.Optimizer, number: int) -> Tensor:
    ids = batch(number)
    loss = loss_of(model(Tensor(ids.data[:, :-1])), Tensor(ids.data[:, :-1]))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def _other_names(model: Model) -> None:
    """One MLP under other names, which nothing pairs."""
    members = vars(module(model, "layers.1.mlp"))
    members["w1"], members["w3"] = members.pop("gate"), members.pop("up")
    replaced(model, "layers.1.mlp", forward=lambda s, x: s.down(s.act(s.w1(x)) * s.w3(x)))


def _all_other_names(model: Model) -> None:
    for number in "012":
        members = vars(module(model, f"layers.{number}"))
        for name in ("norm1", "attn", "norm2", "mlp"):
            members[f"{name}_"] = members.pop(name)

        def forward(self: Any, x: Tensor) -> Tensor:
            x = x + self.attn_(self.norm1_(x))
            return x + self.mlp_(self.norm2_(x))

        replaced(model, f"layers.{number}", forward=forward)


def _adamw(**options: float) -> Any:
    return lambda m: nn.AdamW(m.parameters(), **{"lr": 1e-3, **options})


TRAPS: dict[str, tuple[dict[str, Any], dict[str, Any], str, str]] = {
    "a learning rate of 0": (
        {"optimizer": _adamw(lr=0.0)}, {"optimizer": _adamw(lr=0.0)}, "undecided",
        "no parameter is changed in any step, in A or in B (the learning rate is 0): what the optimizers do was not compared; "
        "record a step that changes them",
    ),
    "a model that returns zeros": (
        {"change": _zero_head}, {"change": _zero_head}, "undecided",
        "everything that the model returns is 0 on both sides: that tells nothing of what it computes",
    ),
    "gradients of zero": (
        {"step": _nothing_to_learn}, {"step": _nothing_to_learn}, "undecided",
        "the gradients of all parameters are 0 on both sides: that tells nothing of the loss, nor of backward",
    ),
    "a batch of another shape": ({}, {"step": _cut_off}, "diverged", "shape [2, 6] against [2, 5]"),
    "a learning rate that is 3 % off and small": (
        {"optimizer": _adamw(lr=3e-5)}, {"optimizer": _adamw(lr=3.09e-5)}, "diverged",
        "by the numbers: lr 3e-05 against 3.09e-05",
    ),
    "statistics of one side only": (
        {"task": "structure"}, {}, "undecided",
        "nothing was compared: no pair of tensors with numbers on both sides; A holds no numbers (task='structure'): record with task='statistics'",
    ),
    "evaluation against training": (
        {}, {"step": evaluate}, "undecided",
        "B ran without gradients, the other side with them: run both with or both without torch.no_grad (or what it is called in its framework)",
    ),
    "NaN on both sides": (
        {"change": MODEL_FAULTS["NaN"][0]}, {"change": MODEL_FAULTS["NaN"][0]}, "undecided",
        "step 0: forward output 0 of layers.1.norm2 has NaN on both sides: what is computed from it cannot be judged",
    ),
    "other steps": ({"steps": 2, "options": {"steps": [0]}}, {"steps": 2, "options": {"steps": [1]}}, "undecided",
                    "no step in common: A has 0, B has 1; --steps A:B pairs others"),
    "another optimizer that does not show yet": (
        {}, {"optimizer": _adamw(eps=1e-10)}, "diverged",
        "the optimizers are set differently for 39 parameters: eps 1e-08 against 1e-10 (group 0); that does not show in the numbers yet",
    ),
}  # fmt: skip


def _recorded(run: Recorder, side: dict[str, Any]) -> Path:
    side = dict(side)
    model = changed(side.pop("change", lambda model: None))
    options = {**side.pop("options", {})}
    if "optimizer" in side:
        side["optimizer"] = side["optimizer"](model)
    if "steps" in options:  # of the recording, not of the training
        return only_steps(run().parent / f"steps{options['steps'][0]}.h5", options["steps"])
    return run(model, **side)


@pytest.mark.parametrize("name", TRAPS)
@pytest.mark.parametrize("swapped", [False, True])
def test_a_trap_is_never_aligned(run: Recorder, name: str, swapped: bool) -> None:
    *sides, verdict, text = TRAPS[name]
    a, b = (_recorded(run, side) for side in sides)
    found = probe.compare(b, a) if swapped else probe.compare(a, b)
    assert found.verdict == verdict, found.warnings
    told = [*found.warnings, *(line for each in found.divergences for line in each.evidence)]
    assert text in told or swapped, told


LEFT_OUT = {
    "weights": (_other_names, "4 weights (only in A), 4 weights (only in B)"),
    "most of both": (
        _all_other_names,
        "36 weights (only in A), 36 weights (only in B)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LEFT_OUT)
def test_what_was_left_out_stands_beside_the_verdict(run: Recorder, name: str) -> None:
    change, text = LEFT_OUT[name]
    found = probe.compare(run(), run(changed(change)), min_confidence=1, min_coverage=0.1 if "most" in name else 0.5)
    assert found.verdict is Verdict.ALIGNED, found.first_divergence
    assert found.as_json()["left_out"] == [each.as_json() for each in found.left_out]
    assert render(found).plain.startswith(f"ALIGNED but for {text}  A ")
    assert probe.compare(run(), run()).left_out == ()


@pytest.mark.parametrize("turned", [False, True])
def test_another_mode_that_shows_nowhere_stands_beside_the_verdict(run: Recorder, turned: bool) -> None:
    def evaluating(model: Model) -> None:
        for path in ("layers.0.norm1", "layers.1.mlp.up"):
            module(model, path).training = False

    files = [run(steps=2), run(changed(evaluating), steps=2)]
    found = probe.compare(*(files[::-1] if turned else files))
    assert found.verdict is Verdict.ALIGNED, found.first_divergence
    modes = "evaluation in A, training in B" if turned else "training in A, evaluation in B"
    assert render(found).plain.startswith(f"ALIGNED but for the mode of 2 modules ({modes})  A ")


def test_a_side_of_which_little_was_recorded(run: Recorder) -> None:
    found = probe.compare(run(), run(modules=["layers.2*"]))
    assert found.verdict is Verdict.ALIGNED and found.coverage.share == 1
    modules, weights = found.left_out
    assert (modules.what, modules.why, modules.side, modules.count, modules.total) == (
        "modules",
        "not recorded",
        "B",
        31,
        44,
    )
    assert (weights.what, weights.side, weights.count) == ("weights", "A", 27)


@pytest.mark.thorough
def test_one_program_recorded_twice_where_there_should_be_two(run: Recorder, clean: Clean) -> None:
    text = "That is what one program gives twice: if B was to be another framework, device or version, see probe info."
    alike, other = (probe.compare(run(), run(model)) for model in (gpt(), rounding_otherwise(gpt())))
    assert text in " ".join(render(alike).plain.split())
    assert text not in " ".join(render(other).plain.split())


def test_another_dtype_is_said(run: Recorder) -> None:
    def double(model: Model) -> None:
        for parameter in model.parameters():
            parameter.data = parameter.data.astype(np.float64)

    found = probe.compare(run(), run(changed(double)))
    assert found.verdict is Verdict.ALIGNED, found.first_divergence
    assert said(found, "39 of 39 parameters are of another dtype, first weight of embed: float32 in A, float64 in B; what the "
                       "coarser one rounds is taken for noise")  # fmt: skip
    assert said(found, "outputs are of another dtype, first 0 of embed: float32 in A, float64 in B")


# ---- Recordings of which each row may be, and the whole is not: no answer is made of them.


@pytest.mark.parametrize("phase", [Phase.FORWARD, Phase.BACKWARD])
def test_a_tensor_of_a_micro_without_calls_is_damage(phase: Phase, run: Recorder) -> None:
    """Compared with itself nothing of such a tensor would be looked at, and it would be called aligned."""
    path = run(gpt())
    with h5py.File(path, "r+") as file:
        rows = file["records"][:]
        rows["micro"][rows["phase"] == phase] = 5
        file["records"][:] = rows
    with pytest.raises(
        FormatError, match="step 0 of it cannot be read .it has a tensor of micro 5, in which no module was called"
    ):
        probe.compare(path, run(gpt()))
