"""Several faults in one run, and what stands beside a finding: hints, settings, lines of the mapping, ranks, how sure it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import probe
from probe.answer.comparison import Comparison
from probe.answer.result import Divergence, Kind
from probe.comparing import compare
from probe.diagnosis import choosing
from probe.diagnosis.confidence import WEIGHTS
from probe.report.text import render
from tests.toy import nn
from tests.toy.tensor import Tensor
from tests.toys import batch, gpt, loss_of, module, record, replaced, scaled_gradient
from tests.verdict.planted import DOWN, MODEL_FAULTS, TASKS, Clean, Model, Recorder, changed

# ---- Several faults in one run: all that are wrong by themselves are listed in the order of cause, what they cause is not.

Plant = Callable[[Model], object]


def _eps(path: str, size: float = 1e-3) -> Plant:
    return lambda m: setattr(module(m, path), "eps", size)


def _bias(path: str) -> Plant:
    def plant(model: Model) -> None:
        module(model, path).bias.data += 0.01

    return plant


def _scaled(path: str, size: float) -> Plant:
    def plant(model: Model) -> None:
        module(model, path).weight.data *= size

    return plant


def _gelu(path: str) -> Plant:
    return lambda m: setattr(module(m, path), "__class__", nn.GELU)


def _gradient(path: str) -> Plant:
    return lambda m: replaced(m, path, forward=lambda s, x: nn.Linear.forward(s, scaled_gradient(x, 1.5)))


class Dropout(nn.Module):
    """Takes every third element away while it is trained."""

    def __init__(self, active: bool) -> None:
        super().__init__(active=active)

    def forward(self, x: Any) -> Any:
        kept = (np.arange(x.data.size).reshape(x.shape) % 3 > 0) | (not self.active)
        return x * kept.astype(np.float32)


def _dropout(active: bool) -> Plant:
    def plant(model: Model) -> None:
        layer = module(model, "layers.2.mlp")
        layer.dropout = Dropout(active)
        forward = type(layer).forward
        replaced(model, "layers.2.mlp", forward=lambda s, x: s.dropout(forward(s, x)))

    return plant


SEVERAL: dict[str, tuple[list[Plant], float, list[tuple[str, str]]]] = {
    "eps and a bias of a later layer": (
        [_eps("layers.0.norm1"), _bias("layers.2.mlp.up")], 1e-3, [("init", "layers.2.mlp.up"), ("forward", "layers.0.norm1")],
    ),
    "two of the forward pass": (
        [_eps("layers.0.norm1"), _gelu("layers.2.mlp.act")], 1e-3,
        [("forward", "layers.0.norm1"), ("forward", "layers.2.mlp.act")],
    ),
    "three of the forward pass": (
        [_eps("layers.0.norm1", 1e-5), _eps("layers.1.norm1", 1e-3), _gelu("layers.2.mlp.act")], 1e-3,
        [("forward", "layers.0.norm1"), ("forward", "layers.1.norm1"), ("forward", "layers.2.mlp.act")],
    ),
    "forward and learning rate": ([_eps("layers.1.norm2")], 1.1e-3, [("forward", "layers.1.norm2"), ("update", "")]),
    "forward and backward": (
        [_eps("layers.1.norm2", 1e-5), _gradient("layers.0.mlp.up")], 1e-3,
        [("forward", "layers.1.norm2"), ("backward", "layers.0.mlp.up")],
    ),
    "a weight and a frozen one": (
        [_scaled("layers.0.mlp.gate", 1.01), MODEL_FAULTS["frozen"][0]], 1e-3,
        [("init", "layers.0.mlp.gate"), ("gradient", DOWN)],
    ),
    "weight, activation and learning rate": (
        [_scaled("layers.0.mlp.gate", 1.0001), _gelu("layers.1.mlp.act")], 1.1e-3,
        [("init", "layers.0.mlp.gate"), ("forward", "layers.1.mlp.act"), ("update", "")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("name", SEVERAL)
def test_all_are_listed_and_nothing_else(clean: Clean, run: Recorder, name: str, task: str) -> None:
    plants, rate, wanted = SEVERAL[name]
    model = gpt()
    for plant in plants:
        plant(model)
    found = probe.compare(clean(task), run(model, optimizer=nn.AdamW(model.parameters(), lr=rate), task=task))
    assert [(each.phase.label, each.path) for each in found.divergences] == wanted
    assert all(0.3 < each.confidence <= 1 for each in found.divergences)


def test_how_sure_each_is_stands_beside_it(clean: Clean, run: Recorder) -> None:
    plants, rate, wanted = SEVERAL["two of the forward pass"]
    model = gpt()
    for plant in plants:
        plant(model)
    found = probe.compare(clean("tensor"), run(model, task="tensor"))
    first, second = found.divergences
    assert second.confidence < 0.8 * first.confidence, "its inputs differ already"
    assert second.evidence[-1].startswith("what it is made from differs already, and its error is ")
    text = render(found).plain
    assert "Also wrong by itself, in the order of cause (1 of 1)" in text
    assert (
        f"forward   layers.2.mlp.act  output 0  rel {second.metrics.rel_l2:.1e}  confidence {second.confidence:.2f}"
        in text
    )
    assert "layers.2.mlp.act" not in render(found, top=0).plain.partition("Compared ")[0].replace(first.path, "")


def test_an_active_dropout_behind_another_fault(run: Recorder) -> None:
    def model(active: bool, eps: float) -> Model:
        made = gpt()
        _dropout(active)(made)
        _eps("layers.0.norm1", eps)(made)
        return made

    found = probe.compare(run(model(False, 1e-6)), run(model(True, 1e-3)))
    assert [(each.phase.label, each.path) for each in found.divergences] == [
        ("forward", "layers.0.norm1"), ("forward", "layers.2.mlp.dropout"),
    ]  # fmt: skip
    assert "this Dropout is active in B only: it takes away 33% of its elements in B" in found.divergences[1].evidence


# ---- A wrong line of a mapping is what a finding says first, and no fault of the model that is nearly certain.

TYPO = """GPT:
  layers.0.mlp: layers.0.mlp
  layers.1.mlp: layers.1.nothing.x
"""


def louder(model: Model) -> None:
    module(model, "layers.1.mlp").up.weight.data *= 1.5


def first(a: Path, b: Path, text: str) -> Divergence:
    mapping = a.parent / "m3.yaml"
    mapping.write_text(text)
    found = probe.compare(a, b, mapping, direction="a-to-b").first_divergence
    assert found is not None
    return found


def test_a_line_that_leads_to_nothing_is_the_first_suspect(run: Recorder) -> None:
    found = first(run(gpt()), run(changed(louder)), TYPO)
    line = "GPT: layers.1.mlp: layers.1.nothing.x leads to nothing on the other side; did you mean layers.1.mlp?"
    assert found.path == "layers.1.mlp.up", "what the line does not pair is found by structure and values"
    assert found.evidence[0] == f"the mapping's line 3: {line}"
    assert found.hint == f"mend line 3 of m3.yaml first: {line}"
    assert found.confidence <= 0.5


def test_a_whole_layer_that_a_line_loses_is_no_layer_too_few(run: Recorder) -> None:
    def other(model: Model) -> None:
        module(model, "layers.2.mlp").up.weight.data *= 1.5

    found = first(run(gpt()), run(changed(other)), "GPT:\n  layers.2: layers.20\n")
    assert found.kind is Kind.INIT and found.path == "layers.2.mlp.up"
    assert found.hint.startswith("mend line 2 of m3.yaml first: GPT: layers.2: layers.20 leads to nothing")
    assert found.confidence <= 0.5


def test_what_no_line_names_keeps_its_hint(run: Recorder) -> None:
    def early(model: Model) -> None:
        module(model, "layers.0.attn").q.weight.data *= 1.5

    found = first(run(gpt()), run(changed(early)), TYPO)
    assert found.path == "layers.0.attn.q" and found.confidence > 0.9
    assert "m3.yaml" not in found.hint


@pytest.mark.parametrize(
    ("text", "named"),
    [("GPT:\n  layers.0: layers.1\n  layers.1: layers.0\n", "line 2, line 3 of m3.yaml first: they pair"),
     ("GPT:\n  layers.0: layers.1\n", "line 2 of m3.yaml first: it pairs")],
)  # fmt: skip
def test_layers_that_lines_pair_crosswise_are_put_down_to_these(
    clean: Clean, run: Recorder, text: str, named: str
) -> None:
    a = run(gpt())
    found = first(a, run(gpt()), text)
    assert found.hint.startswith(f"look at {named} layers in another order; if that is meant so, ")
    assert found.evidence[0] == "the mapping says that A's layers.0 is B's layers.1: line 2 of m3.yaml"
    assert found.confidence <= 0.5


def test_layers_that_are_swapped_in_the_model_are_no_fault_of_the_mapping(run: Recorder) -> None:
    def swapped(model: Model) -> None:
        members = vars(model.layers)
        members["0"], members["1"] = members["1"], members["0"]

    found = first(run(gpt()), run(changed(swapped)), "GPT:\n  layers.{i}: layers.{i}\n")
    assert found.path == "" and found.evidence[1].startswith("the input 0 of layers.0 differs")
    assert found.confidence > 0.9


SEVERAL_MISLED = "GPT:\n  layers.1.mlp: layers.1.nothing\n  layers.2: layers.20\n  norm: nrm\n"


def test_several_mistakes_stand_directly_under_the_verdict_and_nowhere_else(run: Recorder) -> None:
    a, b = run(gpt()), run(changed(louder))
    (mapping := a.parent / "m3.yaml").write_text(SEVERAL_MISLED)
    found = probe.compare(a, b, mapping, direction="a-to-b")
    assert found.verdict == "diverged" and found.first_divergence.path == "layers.1.mlp.up"
    assert len(found.mapping_mistakes) == 3 == len(found.as_json()["mapping_mistakes"])
    assert set(found.mapping_mistakes) <= set(found.warnings)
    text = render(found, width=200).plain
    head, *rest = text.split("First divergence")
    assert "3 lines of the mapping do nothing" in head
    for mistake in found.mapping_mistakes:
        said = mistake.removeprefix("the mapping's ")
        assert said in head and said not in "".join(rest).replace(found.first_divergence.hint, "")


@pytest.mark.parametrize(
    ("change", "mapping"), [(None, SEVERAL_MISLED), (louder, TYPO)], ids=["aligned", "one mistake"]
)
def test_one_mistake_or_an_aligned_answer_has_no_list(
    run: Recorder, change: Callable[[Model], None] | None, mapping: str
) -> None:
    a, b = run(gpt()), run(gpt() if change is None else changed(change))
    (file := a.parent / "m3.yaml").write_text(mapping)
    text = render(probe.compare(a, b, file, direction="a-to-b"), width=200, verbose=True).plain
    assert "lines of the mapping do nothing" not in text and "leads to nothing" in text


# ---- What stands beside a verdict: hints, settings, lines of the mapping, how sure it is. None of it moves a place, or fails.


def with_eps(value: float):
    model = gpt()
    module(model, "layers.1.norm2").eps = value
    return model


def trained(path, kind=nn.AdamW, **settings):
    model = gpt()
    return record(path, model, optimizer=kind(model.parameters(), **{"lr": 1e-3, **settings}))


@pytest.fixture
def two(tmp_path):
    return record(tmp_path / "a.h5", task="tensor"), record(tmp_path / "b.h5", with_eps(1e-3), task="tensor")


def test_a_hint_that_fails_is_a_note(two, monkeypatch):
    def fails(evidence):
        raise ValueError("planted")

    hints = [replace(each, test=fails) if each.name == "eps" else each for each in choosing.HINTS]
    monkeypatch.setattr(choosing, "HINTS", hints)
    found = compare(*two)
    assert found.first_divergence.path == "layers.1.norm2"
    assert sum("the hint “eps” failed at layers.1.norm2" in text for text in found.warnings) == 1


SETTINGS = {
    "lr": ({"lr": 2e-3}, "diverged", "the settings differ: lr 0.001 against 0.002 (group 0)"),
    "betas": ({"betas": (0.8, 0.95)}, "diverged", "the settings differ: betas"),
    "unknown": ({"trust": 2.0}, "aligned", ""),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_that_differ_are_held_against_the_finding(tmp_path, name):
    settings, verdict, hint = SETTINGS[name]
    model = gpt()
    groups = [{"params": model.parameters(), "lr": 1e-3, **settings}]
    other = record(tmp_path / "b.h5", model, optimizer=nn.AdamW(groups, lr=1e-3))
    plain = gpt()
    base = [{"params": plain.parameters(), "lr": 1e-3, **({"trust": 1.0} if name == "unknown" else {})}]
    found = compare(record(tmp_path / "a.h5", plain, optimizer=nn.AdamW(base, lr=1e-3)), other)
    assert found.verdict == verdict
    if hint:
        assert found.first_divergence.hint.startswith(hint)
        assert found.first_divergence.path == ""
    else:
        assert "other settings of which it is not known what they do: trust 1.0 against 2.0" in found.warnings[0]


def test_another_rate_that_moves_nothing_is_a_doubt(tmp_path):
    def still(path, lr):
        model = gpt()
        optimizer = nn.SGD(model.parameters(), lr=lr)
        optimizer.step = lambda: None
        return record(path, model, optimizer=optimizer)

    found = compare(still(tmp_path / "a.h5", 0.1), still(tmp_path / "b.h5", 0.2))
    assert found.divergences == () and found.verdict != "diverged"


def test_confidence_is_a_probability_by_a_table(two, tmp_path):
    large = compare(*two).first_divergence.confidence
    small = record(tmp_path / "c.h5", with_eps(1.003e-5), task="tensor")
    first = compare(two[0], small).first_divergence
    assert "always" in WEIGHTS and 0.5 < large < 1
    assert first is None or 0 < first.confidence <= large


# ---- Ranks of a side: copies of one tensor that differ are a finding, and findings name who holds what differs.

PLACE = "layers.1.norm2"
WORLD = 3


def trained_ranks(folder: Path, name: str, change: str = "", rank: int | None = None) -> Path:
    """Record ranks that hold the same and are given the same, but for what is changed on one of them or on all."""
    for number in range(WORLD):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RANK", str(number))
            patch.setenv("WORLD_SIZE", str(WORLD))
            model = gpt()
            if change and rank in (number, None):
                CHANGES[change](model)
            _record(model, folder / f"{name}.h5")
    return folder / f"{name}.h5"


def _record(model: nn.Module, path: Path) -> None:
    optimizer = nn.AdamW(model.parameters(), lr=1e-3)
    with probe.capture(model, path, task="tensor", parallel={"dp": WORLD}):
        ids: Tensor = batch(0)
        loss = loss_of(model(ids), ids)
        loss.backward()
        optimizer.step()
        probe.step(loss=loss)


def _scale(model: nn.Module) -> None:
    module(model, PLACE).weight.data *= np.float32(1.1)


def _eps_ranks(model: nn.Module) -> None:
    module(model, PLACE).eps = 1e-3


CHANGES = {"weight": _scale, "eps": _eps_ranks}


def ranks_named(answer: Comparison, code: str) -> dict[str, tuple[int, ...]]:
    """Return the ranks that the first finding names, by side."""
    first = answer.first_divergence
    assert first is not None
    return {fact.facts["side"]: fact.facts["ranks"] for fact in first.facts if fact.code == code}


CASES = [
    ("", None, None, None, {}),
    ("weight", 2, Kind.REPLICAS, "copies-differ", {"B": (2,)}),
    ("weight", 0, Kind.REPLICAS, "copies-differ", {"B": (0,)}),
    ("eps", 1, Kind.REPLICAS, "copies-differ", {"B": (1,)}),
    ("eps", None, Kind.INTRODUCED, "on-ranks", {"A": (0, 1, 2), "B": (0, 1, 2)}),
]
"""what is changed, on which rank (None: all), what is said of it, and of which ranks"""


@pytest.mark.parametrize(("change", "rank", "kind", "code", "named"), CASES)
def test_ranks_that_answer_are_named(
    tmp_path: Path, change: str, rank: int | None, kind: Kind | None, code: str | None, named: dict[str, object]
) -> None:
    answer = compare(trained_ranks(tmp_path, "a"), trained_ranks(tmp_path, "b", change, rank))
    first = answer.first_divergence
    if kind is None:
        assert first is None and not answer.reasons, answer
        return
    assert first is not None and (first.kind, first.path) == (kind, PLACE), first
    assert ranks_named(answer, str(code)) == named
