"""Modules that a mapping ignores are said to be left out by it, everywhere."""

from __future__ import annotations

import pytest

import probe
from probe.comparison.run import Comparison
from probe.errors import NotRecordedError
from probe.report.text import render
from tests.comparison.planted import Clean, Model, Recorder, changed
from tests.toys import module

BLOCK = {"ignore": ["layers.1"]}


@pytest.fixture
def found(clean: Clean, run: Recorder) -> Comparison:
    def louder(model: Model) -> None:
        module(model, "layers.1.mlp").up.weight.data *= 1.5

    return probe.compare(clean("statistics"), run(changed(louder)), BLOCK)


def test_a_fault_in_what_is_ignored_leads_to_what_the_mapping_leaves_out(found: Comparison) -> None:
    first = found.first_divergence
    assert first is not None
    assert "look at layers.1, left out by the mapping (ignore): nothing in there was compared" in first.hint
    assert "nothing to compare with" not in first.hint


def test_the_summary_names_what_is_left_out(found: Comparison) -> None:
    assert "\nLeft out by the mapping: layers.1 on both sides\n" in render(found).plain
    assert found.as_json()["ignored_a"][:2] == ["layers.1", "layers.1.norm1"]


@pytest.mark.parametrize(
    ("path", "text"),
    [("layers.1.mlp", "'layers.1.mlp' is left out by the mapping (ignore) in A and B: nothing of it was compared"),
     ("layers.2.attm", "'layers.2.attm' is in neither recording, or nothing of it was recorded; did you mean 'layers.2.attn'?")],
)  # fmt: skip
def test_asking_for_a_module_says_why_nothing_of_it_was_compared(found: Comparison, path: str, text: str) -> None:
    with pytest.raises(NotRecordedError) as error:
        found[path]
    assert str(error.value) == text


def test_what_one_side_alone_has_is_no_misspelled_name(clean: Clean, run: Recorder) -> None:
    options = {"direction": "a-to-b", "min_confidence": 1}
    found = probe.compare(clean("statistics"), run(), {"GPT": {"layers.2": "layers.7"}}, **options)
    with pytest.raises(
        NotRecordedError, match="'layers.2' has no counterpart on either side; a layer mapping can give"
    ):
        found["layers.2"]
