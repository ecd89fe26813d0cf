"""What was recorded of some phases or modules only: what is missing is no fault, and no fault is blamed on what is there."""

from __future__ import annotations

from typing import Any

import pytest

import probe
from probe.adapters.numpy import nn
from probe.adapters.numpy.tensor import Tensor
from probe.comparison.coverage.left_out import What, Why
from probe.comparison.result import Kind, Verdict
from probe.records import Phase
from probe.report.left_out import but_for
from tests.comparison.planted import MODEL_FAULTS, Clean, Recorder, changed, said
from tests.toys import batch, gpt, loss_of, plain_step

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


ALONE = {
    ("init",): "forward, backward, gradient, update",
    ("update",): "init, forward, backward, gradient",
    ("forward",): "init, backward, gradient, update",
    ("init", "forward", "backward", "gradient"): "update",
}


@pytest.mark.parametrize("phases", ALONE, ids=",".join)
def test_the_headline_says_which_phases_one_side_alone_recorded(
    clean: Clean, run: Recorder, phases: tuple[str, ...]
) -> None:
    full, less = clean("statistics"), run(steps=2, phases=list(phases))
    for side, pair in (("B", (full, less)), ("A", (less, full))):
        found = probe.compare(*pair)
        (left,) = found.left_out
        assert (found.verdict, left.what, left.why, left.side) == (
            Verdict.ALIGNED,
            What.PHASES,
            Why.NOT_RECORDED,
            side,
        )
        assert " ".join(str(found).split()).startswith(f"ALIGNED but for {ALONE[phases]} (not recorded in {side}) A ")
    both = probe.compare(less, run(steps=2, phases=list(phases)))
    assert " ".join(str(both).split()).startswith(f"ALIGNED but for {ALONE[phases]} (not recorded) A ")


def test_phases_that_were_asked_for_by_name_or_not_at_all(clean: Clean, run: Recorder) -> None:
    every = [phase.label for phase in Phase]
    assert probe.compare(clean("statistics"), run(steps=2, phases=every)).left_out == ()
    apart = probe.compare(run(phases=["init", "forward"]), run(phases=["forward", "gradient"]))
    text = "backward, update (not recorded), gradient (not recorded in A), init (not recorded in B)"
    assert but_for(apart.left_out) == f" but for {text}"


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
        assert (
            first.hint == "record both sides with forward and backward: that names the first module that differs"
            and first.confidence < 0.6
        )
    else:
        assert (found.verdict, first) == (Verdict.UNDECIDED, None)


@pytest.mark.parametrize("phases", [["forward"], ["forward", "backward"]], ids=str)
@pytest.mark.parametrize("turned", [False, True])
def test_weights_that_one_side_did_not_record_are_not_missing(
    clean: Clean, run: Recorder, phases: list[str], turned: bool
) -> None:
    files = [clean("statistics"), run(changed(MODEL_FAULTS["eps"][0]), phases=phases)]
    first = probe.compare(*(files[::-1] if turned else files)).first_divergence
    assert first is not None
    assert (first.phase, first.kind, first.path, first.a[0].slot) == (
        Phase.FORWARD,
        Kind.INTRODUCED,
        "layers.1.norm2",
        "0",
    )
    told = f"not compared: its parameters, which {'B' if turned else 'A'} alone recorded (phase init)"
    assert first.evidence[0].endswith("output differs") and first.evidence[1] == told
    with_weights = run(changed(MODEL_FAULTS["eps"][0]), phases=["init", "forward"])
    seen = probe.compare(clean("statistics"), with_weights).first_divergence
    assert seen is not None and not any("not compared: its parameters" in text for text in seen.evidence)


@pytest.mark.parametrize("turned", [False, True])
def test_a_weight_that_a_model_lacks_is_missing_though_it_recorded_none(
    clean: Clean, run: Recorder, turned: bool
) -> None:
    files = [clean("statistics"), run(changed(MODEL_FAULTS["no bias"][0]), phases=["forward"])]
    first = probe.compare(*(files[::-1] if turned else files)).first_divergence
    assert first is not None
    assert (first.phase, first.kind, first.path) == (Phase.INIT, Kind.MISSING, "layers.1.mlp.up")
    there, other = "BA" if turned else "AB"
    assert first.evidence[0] == f"the parameter bias exists on {there} only and is not zero"
    assert first.hint == f"bias is missing on {other}"


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


def _scaled_in_step_1(model: Any, optimizer: nn.Optimizer, number: int) -> Tensor:
    loss = loss_of(model(batch(number)), batch(number))
    loss.backward()
    for parameter in model.parameters() if number == 1 else ():
        parameter.grad.data[...] *= 1.5
    optimizer.step()
    optimizer.zero_grad()
    return loss


def test_gradients_that_backward_left_in_another_step_say_nothing(run: Recorder) -> None:
    a, b = (run(steps=2, phases=["update"], step=step) for step in (plain_step, _scaled_in_step_1))
    found = probe.compare(a, b)
    assert found.verdict is Verdict.UNDECIDED
    assert found.doubts[0].startswith(
        "step 1: the gradients that the optimizer used differ (rel 3.3e-01), and those that "
    )


@pytest.mark.parametrize("phases", [["forward"], ["init", "forward", "backward", "gradient"]])
def test_where_no_update_was_recorded_a_later_step_is_less_sure_of_its_place(run: Recorder, phases: list[str]) -> None:
    models = gpt(), gpt()
    files = [
        run(model, steps=2, phases=phases, optimizer=nn.AdamW(model.parameters(), lr=rate))
        for model, rate in zip(models, (1e-3, 5e-2), strict=True)
    ]
    first = probe.compare(*files).first_divergence
    assert first is not None and first.step == 1 and first.confidence < 0.5
    assert first.evidence[-1].startswith("updates were not recorded in A and B: ")
