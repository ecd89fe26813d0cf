"""A wrong line of a mapping is what a finding says first, and no fault of the model that is nearly certain."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import probe
from probe.comparison.result import Divergence, Kind
from probe.report.text import render
from tests.comparison.planted import Clean, Model, Recorder, changed
from tests.toys import gpt, module

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
    assert "look at the order in which the layers are built" in found.hint and found.confidence > 0.9


SEVERAL = "GPT:\n  layers.1.mlp: layers.1.nothing\n  layers.2: layers.20\n  norm: nrm\n"


def test_several_mistakes_stand_directly_under_the_verdict_and_nowhere_else(run: Recorder) -> None:
    a, b = run(gpt()), run(changed(louder))
    (mapping := a.parent / "m3.yaml").write_text(SEVERAL)
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


@pytest.mark.parametrize(("change", "mapping"), [(None, SEVERAL), (louder, TYPO)], ids=["aligned", "one mistake"])
def test_one_mistake_or_an_aligned_answer_has_no_list(
    run: Recorder, change: Callable[[Model], None] | None, mapping: str
) -> None:
    a, b = run(gpt()), run(gpt() if change is None else changed(change))
    (file := a.parent / "m3.yaml").write_text(mapping)
    text = render(probe.compare(a, b, file, direction="a-to-b"), width=200, verbose=True).plain
    assert "lines of the mapping do nothing" not in text and "leads to nothing" in text
