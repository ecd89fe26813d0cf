"""Acceptance tables: what is held against what, by which figure, and what they say beside the verdict."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import probe
from probe.answer.acceptance import Acceptance, Decision, ItemResult, Outcome
from probe.answer.presets import PRESETS, Scope
from probe.answer.result import Verdict
from probe.defaults import PRESET_NAMES
from probe.errors import ConfigError
from probe.report.html.document import document as page_of
from tests.cli.running import run as run_command
from tests.golden_files import golden
from tests.toy import nn
from tests.toy.tensor import Tensor
from tests.toys import VOCABULARY, WIDTH, batch, gpt, loss_of, module, replaced, rounding_otherwise
from tests.verdict.planted import MODEL_FAULTS, Clean, Model, Recorder, changed

pytestmark = pytest.mark.thorough

TABLE = "paddlenlp/qwen2-0.5b"
DOCUMENTED = {
    "paddlenlp/qwen2-0.5b": (1e-4, 1e-5, 1e-4), "paddlenlp/qwen2-1.5b": (1e-3, 1e-5, 1e-3),
    "paddlenlp/qwen2-7b": (1e-3, 1e-5, 1e-3), "paddlenlp/qwen1.5-14b": (1e-4, 1e-5, 1e-4),
}  # fmt: skip
"""bounds of logits, loss and each tensor"""


def table_of(a: Path, b: Path, preset: str = TABLE, **options: Any) -> Acceptance:
    found = probe.compare(a, b, preset=preset, **options).acceptance
    assert found is not None
    return found


def row(acceptance: Acceptance, scope: Scope) -> ItemResult:
    return next(each for each in acceptance.items if each.item.scope is scope)


def outcomes(acceptance: Acceptance) -> dict[str, str]:
    return {each.item.scope.value: each.outcome.value for each in acceptance.items}


def codes(acceptance: Acceptance) -> list[str]:
    return [each.code for each in acceptance.notes]


def eps(value: float) -> Model:
    return changed(lambda model: setattr(module(model, "layers.1.norm2"), "eps", value))


@pytest.mark.parametrize("name", DOCUMENTED)
def test_the_tables_are_those_of_the_documents(name: str) -> None:
    bounds = {item.scope: item.tolerance for item in PRESETS[name].items}
    logits, loss, tensors = DOCUMENTED[name]
    wanted = {Scope.LOGITS: logits, Scope.LOSS: loss, Scope.FORWARD: tensors, Scope.BACKWARD: tensors, Scope.GRADIENTS: tensors}  # fmt: skip
    assert {scope: each.atol for scope, each in bounds.items()} == wanted
    assert {each.metric for each in bounds.values()} == {"max_abs"} and "3.2" in PRESETS[name].source


def test_every_table_names_its_source() -> None:
    for name, preset in PRESETS.items():
        assert preset.name == name and preset.source and preset.text and preset.items


# Figures


def test_the_figures_are_those_of_the_recorded_values(clean: Clean, run: Recorder) -> None:
    a, b = clean("tensor"), run(rounding_otherwise(gpt()), steps=2, task="tensor")
    found = table_of(a, b)
    assert found.decision is Decision.ACCEPTED and set(outcomes(found).values()) == {"pass"}
    first, second = probe.open(a), probe.open(b)
    gaps = [np.abs(x.values() - y.values()).max() for x, y in zip(first[""].output, second[""].output, strict=True)]
    logits, loss = row(found, Scope.LOGITS), row(found, Scope.LOSS)
    assert logits.measure.figure == max(gaps) > 0
    assert logits.where is not None and (logits.where.path_a, logits.where.step) == ("", int(np.argmax(gaps)))
    assert loss.measure.figure == max(
        abs(first.scalars["loss"][step] - second.scalars["loss"][step]) for step in first.steps
    )
    gradients = row(found, Scope.GRADIENTS)
    assert gradients.where is not None and gradients.where.role.label == "param_grad"
    place = gradients.where
    x, y = ([each for each in each_run[place.path_a].param_grad if (each.step, each.phase.label, each.slot)
             == (place.step, "gradient", place.slot_a)][0].values() for each_run in (first, second))  # fmt: skip
    assert np.abs(x - y)[place.index] == gradients.measure.figure


@pytest.mark.parametrize(("factor", "passes"), [(1 + 5e-7, (True, True, True)), (1 + 2e-5, (False, False, True)),
                                                (1.01, (False, False, False))])  # fmt: skip
def test_the_tables_for_a_forward_pass(run: Recorder, factor: float, passes: tuple[bool, ...]) -> None:
    """Logits of the size of 1 that are wrong by a factor."""
    model = gpt()
    replaced(model, "head", forward=lambda self, x: (x @ self.weight.swapaxes(0, 1)) * np.float32(factor))
    a, b = run(task="tensor"), run(model, task="tensor")
    found = [table_of(a, b, name) for name in ("r-forward", "p-forward", "p-forward-code")]
    assert tuple(each.decision is Decision.ACCEPTED for each in found) == passes
    values = [probe.open(path)[""].output[0].values().astype(np.float64) for path in (a, b)]
    gap = np.abs(values[1] - values[0])
    figures = [each.items[0].measure.figure for each in found]
    assert figures == pytest.approx([gap.mean(), gap.max(), (gap / (1e-3 + 1e-5 * np.abs(values[0]))).max()])


class Constant(nn.Module):
    """Returns a constant, whatever it is given."""

    def __init__(self, value: float) -> None:
        super().__init__(weight=nn.Parameter(np.zeros(3, np.float32)))
        self.value = np.float32(value)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight + self.value


def constant(path: Path, value: float, loss: float = 1.0) -> Path:
    with probe.capture(model := Constant(value), path, task="tensor"):
        model(Tensor(np.ones((2, 3), np.float32)))
        probe.step(loss=loss)
    return path


@pytest.mark.parametrize(("value", "decision"), [(9.99e-6, Decision.ACCEPTED), (1.001e-5, Decision.NOT_ACCEPTED)])
def test_on_either_side_of_the_bound(tmp_path: Path, value: float, decision: Decision) -> None:
    a, b = constant(tmp_path / "a.h5", 0.0), constant(tmp_path / "b.h5", value)
    assert table_of(a, b, "p-forward").decision is decision


@pytest.mark.parametrize(("gap", "outcome"), [(0.99e-5, Outcome.PASS), (1.01e-5, Outcome.FAIL)])
def test_the_loss_on_either_side_of_its_bound(tmp_path: Path, gap: float, outcome: Outcome) -> None:
    a, b = constant(tmp_path / "a.h5", 1.0, loss=2.0), constant(tmp_path / "b.h5", 1.0, loss=2.0 + gap)
    assert row(table_of(a, b), Scope.LOSS).outcome is outcome


def test_a_loss_that_is_nan_on_one_side_fails(tmp_path: Path) -> None:
    a, b = constant(tmp_path / "a.h5", 1.0), constant(tmp_path / "b.h5", 1.0, loss=float("nan"))
    assert row(table_of(a, b), Scope.LOSS).outcome is Outcome.FAIL


# What is what


def returning_all(self: Any, ids: Tensor) -> dict[str, Tensor]:
    logits = type(self).__mro__[1].forward(self, ids)
    return {"hidden": logits * 2.0, "logits": logits, "loss": loss_of(logits, ids)}


def returning_loss(self: Any, ids: Tensor) -> Tensor:
    return loss_of(type(self).__mro__[1].forward(self, ids), ids)


def model_that(forward: Callable[..., Any], factor: float = 1.0) -> Model:
    model = gpt()
    model.__class__ = type("GPT", (type(model),), {"forward": forward})
    replaced(model, "head", forward=lambda self, x: (x @ self.weight.swapaxes(0, 1)) * np.float32(factor))
    return model


def forward_only(model: Model, optimizer: nn.Optimizer, step: int) -> float:
    model(batch(step))
    return 1.0


@pytest.mark.parametrize(
    ("forward", "path", "slot"), [(returning_all, "", "logits"), (returning_loss, "head", "0")],
)  # fmt: skip
def test_logits_are_found_by_name_or_by_the_vocabulary(
    run: Recorder, forward: Callable[..., Any], path: str, slot: str
) -> None:
    """A model that is given labels may return its loss alone: then the output of its last layer is meant."""
    assert VOCABULARY != WIDTH
    a, b = (run(model_that(forward, factor), step=forward_only, task="tensor") for factor in (1.0, 1.0 + 1e-5))
    found = table_of(a, b)
    where, loss = row(found, Scope.LOGITS).where, row(found, Scope.LOSS)
    assert where is not None and (where.path_a, where.slot_a) == (path, slot)
    assert row(found, Scope.LOGITS).judged == 1
    assert loss.where is not None and loss.where.path_a == "" and loss.judged == 2  # the number, and what is returned


def test_what_rules_leave_out_is_not_held_against_a_bound(clean: Clean, run: Recorder) -> None:
    b = run(eps(1e-2), steps=2, task="tensor")
    assert row(table_of(clean("tensor"), b), Scope.FORWARD).outcome is Outcome.FAIL
    rules = [{"path": "*", "phase": "forward", "ignore": True}]
    found = row(table_of(clean("tensor"), b, rules=rules), Scope.FORWARD)
    assert found.excused > 0 and found.judged == 0 and found.outcome is Outcome.NOT_COMPARED


def test_all_steps_count_also_behind_the_first_divergence(clean: Clean, run: Recorder) -> None:
    b = run(changed(MODEL_FAULTS["gradient of one weight"][0]), steps=2, task="tensor")
    answer = probe.compare(clean("tensor"), b, preset=TABLE)
    assert answer.steps == ((0, 0),) and answer.acceptance is not None and answer.acceptance.steps == (0, 1)
    logits = row(answer.acceptance, Scope.LOGITS)
    assert logits.where is not None and logits.where.step == 1, "in step 0 they are equal"
    assert row(answer.acceptance, Scope.GRADIENTS).outcome is Outcome.FAIL


# Beside the verdict


def test_a_table_changes_nothing_of_the_verdict(clean: Clean, run: Recorder) -> None:
    b = run(eps(3e-5), steps=2, task="tensor")
    plain, with_table = (probe.compare(clean("tensor"), b, preset=name).as_json() for name in (None, TABLE))
    assert plain.pop("acceptance") is None and with_table.pop("acceptance") is not None
    assert plain == with_table and plain["noise"] == "built-in model"


def test_a_fault_below_the_bound_is_accepted_and_said(clean: Clean, run: Recorder) -> None:
    answer = probe.compare(clean("tensor"), run(eps(3e-5), steps=2, task="tensor"), preset=TABLE)
    assert answer.verdict is Verdict.DIVERGED and answer.acceptance is not None
    assert answer.acceptance.decision is Decision.ACCEPTED
    (said,) = answer.acceptance.notes
    assert said.code == "fault-below-bound" and said.facts["path"] == "layers.1.norm2"
    assert said.facts["figure"] == answer.first_divergence.metrics.max_abs < said.facts["bound"] == 1e-4  # type: ignore[union-attr]


def test_a_fault_where_the_table_does_not_look_is_said(run: Recorder) -> None:
    model = gpt()
    b = run(model, optimizer=nn.AdamW(model.parameters(), lr=2e-3), task="tensor")
    answer = probe.compare(run(task="tensor"), b, preset=TABLE)
    assert answer.verdict is Verdict.DIVERGED and answer.acceptance is not None
    assert answer.acceptance.decision is Decision.ACCEPTED and codes(answer.acceptance) == ["fault-outside-of-table"]


def loud(model: Model) -> Model:
    module(model, "head").weight.data *= np.float32(1000)
    return model


def test_rounding_beyond_an_absolute_bound_is_refused_and_said(run: Recorder) -> None:
    a, b = run(loud(gpt()), task="tensor"), run(rounding_otherwise(loud(gpt())), task="tensor")
    answer = probe.compare(a, b, preset="p-forward")
    assert answer.verdict is Verdict.ALIGNED and answer.acceptance is not None
    assert answer.acceptance.decision is Decision.NOT_ACCEPTED
    (said,) = answer.acceptance.notes
    assert said.code == "rounding-beyond-bound" and said.facts["rel"] < said.facts["limit"] and said.facts["largest"] > 100  # fmt: skip


def test_what_cannot_be_compared_is_never_accepted(clean: Clean) -> None:
    found = table_of(clean("tensor"), clean("tensor"))
    assert set(outcomes(found).values()) == {"pass"} and found.decision is Decision.UNDECIDED
    assert codes(found)[0] == "accepted-but-undecided"


def test_what_was_not_recorded_is_not_accepted(clean: Clean, run: Recorder) -> None:
    found = table_of(clean("tensor"), run(rounding_otherwise(gpt()), phases=["forward"], task="tensor"))
    assert found.decision is Decision.UNDECIDED and "acceptance-not-recorded" in codes(found)
    assert outcomes(found) == {"logits": "pass", "loss": "pass", "forward tensors": "pass",
                               "backward tensors": "not recorded", "weight gradients": "not recorded"}  # fmt: skip


def test_a_bound_by_which_zeros_pass_is_said(run: Recorder) -> None:
    def quiet(model: Model) -> Model:
        module(model, "head").weight.data *= np.float32(1e-6)
        return model

    found = table_of(run(quiet(gpt()), task="tensor"), run(rounding_otherwise(quiet(gpt())), task="tensor"))
    assert row(found, Scope.LOGITS).wide == row(found, Scope.LOGITS).judged == 1
    assert "zeros-would-be-accepted" in codes(found)


# From statistics


def test_statistics_tell_where_all_errors_together_are_within_the_bound(clean: Clean, run: Recorder) -> None:
    found = table_of(clean(), run(rounding_otherwise(gpt()), steps=2))
    assert found.decision is Decision.ACCEPTED and {each.measure.relation.value for each in found.items} == {"≤", ""}
    exact = table_of(clean("tensor"), run(rounding_otherwise(gpt()), steps=2, task="tensor"))
    for statistics, values in zip(found.items, exact.items, strict=True):
        assert values.measure.figure <= statistics.measure.figure


def test_statistics_tell_what_is_beyond_the_bound(clean: Clean, run: Recorder) -> None:
    found = row(table_of(clean(), run(eps(1e-2), steps=2)), Scope.FORWARD)
    assert found.outcome is Outcome.FAIL and found.measure.relation.value == "≥"


def test_statistics_that_do_not_tell_need_values(clean: Clean, run: Recorder) -> None:
    found = table_of(clean(), run(eps(1e-4), steps=2))
    assert found.decision is Decision.UNDECIDED and "needs values" in outcomes(found).values()
    open_row = next(each for each in found.items if each.outcome is Outcome.NEEDS_VALUES)
    assert open_row.open > 0 and open_row.where is not None and not open_row.measure.is_known
    assert any('record both runs with task="tensor"' in str(note) for note in found.notes)


def test_statistics_estimate_a_mean(clean: Clean, run: Recorder) -> None:
    b = run(eps(1e-2), steps=2), run(eps(1e-2), steps=2, task="tensor")
    estimate, exact = (table_of(clean(task), each, "r-forward").items[0].measure
                       for task, each in zip(("statistics", "tensor"), b, strict=True))  # fmt: skip
    assert estimate.relation.value == "≈" and 0.5 < estimate.figure / exact.figure < 2


# The commands


def test_a_table_that_is_not_there(clean: Clean) -> None:
    with pytest.raises(
        ConfigError, match="preset 'p-foward' is not known; expected r-forward, p-forward, .* did you mean"
    ):
        probe.compare(clean(), clean("tensor"), preset="p-foward")


SCENES: dict[str, tuple[Callable[[], Model], dict[str, Any], int]] = {
    "accepted": (lambda: rounding_otherwise(gpt()), {"task": "tensor"}, 0),
    "refused": (lambda: eps(1e-2), {"task": "tensor"}, 1),
    "needs-values": (lambda: eps(1e-4), {}, 2),
    "not-recorded": (lambda: rounding_otherwise(gpt()), {"task": "tensor", "phases": ["forward"]}, 2),
}


@pytest.mark.parametrize("scene", SCENES)
def test_the_exit_status_is_the_table_s(clean: Clean, run: Recorder, scene: str) -> None:
    make, options, status = SCENES[scene]
    b = run(make(), steps=2, **options)
    result = run_command("compare", clean("tensor" if "task" in options else "statistics"), b, "--preset", TABLE)
    assert result.exit_code == status
    assert all(len(line) <= 80 for line in result.stdout.splitlines())


def test_a_table_in_the_terminal_and_in_files(tmp_path: Path) -> None:
    a, b = constant(tmp_path / "a.h5", 1.0), constant(tmp_path / "b.h5", 1.0 + 2**-10, loss=1.0 + 2**-20)
    result = run_command("compare", a, b, "--preset", TABLE)
    golden("acceptance", result.stdout)
    document = json.loads(run_command("compare", a, b, "--preset", TABLE, "--format", "json").stdout)["acceptance"]
    assert document["decision"] == "not accepted" and document["items"][0]["figure"] == pytest.approx(2**-10, rel=1e-3)
    written = run_command("compare", a, b, "--preset", TABLE, "-o", tmp_path / "r.html")
    assert written.exit_code == 1 and written.stderr.startswith(f"diverged, not accepted by {TABLE}; the report is in")
    shown = page_of(probe.compare(a, b, preset=TABLE))["acceptance"]
    assert isinstance(shown, dict) and shown["title"] == f"Not accepted by {TABLE}" and len(shown["rows"]) == 5
    assert f"<b>Not accepted by {TABLE}</b>" in probe.compare(a, b, preset=TABLE)._repr_html_()


def test_the_list_of_tables() -> None:
    text = run_command("presets").stdout
    assert all(f"\n{name}\n" in f"\n{text}" for name in PRESET_NAMES) and all(
        len(line) <= 80 for line in text.splitlines()
    )
    listed = json.loads(run_command("presets", "--json").stdout)
    assert [each["name"] for each in listed] == list(PRESET_NAMES) and all(each["source"] for each in listed)
