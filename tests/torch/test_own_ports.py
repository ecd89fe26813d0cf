"""Hand-written ports against transformers' own models, as a new user compares them: with a mapping, and with none."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import pytest
import yaml
from click.testing import CliRunner

import probe
from probe.commands.map_commands import suggest_command
from probe.comparison.result import Verdict
from probe.comparison.run import Comparison
from probe.records import Phase

pytest.importorskip("transformers")

import ports  # noqa: E402

Pair = Callable[..., tuple[Path, Path]]
LAYER = "model.decoder.layers.2"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Record transformers' model and the port of it; the same ones are recorded once."""
    folder = tmp_path_factory.mktemp("ports")
    made: dict[Any, tuple[Path, Path]] = {}

    def recorded(kind: str, fault: str = "", seed: int = 0, **options: Any) -> tuple[Path, Path]:
        key = kind, fault, seed, *options.items()
        if key not in made:
            inner = folder / str(len(made))
            inner.mkdir()
            made[key] = ports.pair(inner, kind, fault, seed, **options)
        return made[key]

    return recorded


def paths(result: Comparison) -> dict[str, str]:
    """Return the paths of B by those of A of what was compared."""
    return {slot.path_a: slot.path_b for slot in result.slots}


def drafted(a: Path, b: Path) -> str:
    result = CliRunner().invoke(suggest_command, [str(a), str(b)], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def without(mapping: str, section: str) -> dict[str, Any]:
    found = yaml.safe_load(mapping)
    del found[section]
    return {
        name: {key: value for key, value in lines.items() if isinstance(value, str)} for name, lines in found.items()
    }


@pytest.mark.parametrize("seed", [0, 3])
def test_a_batch_that_one_side_flattens_is_no_false_alarm_at_the_second_step(pair: Pair, seed: int) -> None:
    result = probe.compare(*pair("opt", seed=seed), yaml.safe_load(ports.OPT_MAP))
    assert result.verdict is Verdict.ALIGNED, result.divergences
    assert {slot.step for slot in result.slots} == {0, 1}


# Parameters under other names


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_parameters_of_an_own_class_are_paired_by_form_and_values(pair: Pair, task: str) -> None:
    result = probe.compare(*pair("opt", task=task, random_norms=True))
    assert result.verdict is Verdict.ALIGNED, result.divergences
    slots = {(s.slot_a, s.slot_b) for s in result[f"{LAYER}.fc1"] if s.phase is Phase.INIT}
    assert slots == {("weight", "kernel"), ("bias", "offset")}
    together = [s for s in result[f"{LAYER}.self_attn.q_proj"] if s.phase is Phase.INIT]
    assert {len(s.parts_a) for s in together} == {3}
    assert result.warnings[0] == (
        "parameters of B matched without a mapping: kernel of Dense with weight, turned (×16, 90 % sure); "
        "offset of Dense with bias (×16, 85 % sure)"
    )


def test_parameters_that_were_not_compared_explain_what_their_updates_may_have_of_rounding(pair: Pair) -> None:
    files = pair("opt", task="tensor", random_norms=True)
    result = probe.compare(*files, without(ports.OPT_MAP, "Dense"), min_confidence=1)
    assert any(s.path_b == "parts.5.inp" and s.step == 1 for s in result.slots)
    assert not any(s.slot_b == "kernel" for s in result.slots)
    assert result.verdict is Verdict.ALIGNED, result.divergences


def test_a_finding_where_parameters_were_not_compared_is_no_sure_one(pair: Pair) -> None:
    files = pair("opt", "wider")
    first = probe.compare(*files, without(ports.OPT_MAP, "Dense")).first_divergence
    sure = probe.compare(*files, yaml.safe_load(ports.OPT_MAP)).first_divergence
    assert first is not None
    assert (first.path, first.phase) == (f"{LAYER}.fc1", Phase.FORWARD)
    assert first.confidence < 0.5
    assert (
        "not compared: its parameters weight, bias in A and kernel, offset in B, whose names differ" in first.evidence
    )
    assert sure is not None
    assert (sure.path, sure.phase) == (f"{LAYER}.fc1", Phase.INIT)
    assert sure.confidence > 0.9


# Layouts


@pytest.mark.parametrize(("kind", "place", "hint"), [
    ("opt", f"{LAYER}.self_attn.q_proj", "B's parts.4.inp.kernel holds q_proj, k_proj, v_proj one after the other, where "
     "q_proj, k_proj, v_proj in 4 groups was expected"),
    ("neox", "gpt_neox.layers.2.attention.query_key_value", "B's wq, wk and wv were taken out of A's "
     "gpt_neox.layers.2.attention.query_key_value.weight as if it held wq, wk, wv one after the other, where wq, wk, wv in 4 "
     "groups was expected (verified: so they agree): look at how B's weights are loaded or converted; if A reads it so, say so "
     "by a split in a layer mapping"),
])  # fmt: skip
def test_the_layer_that_lies_otherwise_than_the_others_is_the_finding(
    pair: Pair, kind: str, place: str, hint: str
) -> None:
    result = probe.compare(*pair(kind, "interleave", task="tensor"))
    first = result.first_divergence
    assert first is not None
    assert (first.path, first.phase) == (place, Phase.INIT)
    assert hint in first.hint
    assert any(
        "lie one after the other, those of 3 others of its class in 4 groups" in said for said in result.warnings
    )


def test_a_draft_has_one_layout_for_all_layers(pair: Pair) -> None:
    text = drafted(*pair("neox", "interleave", task="tensor"))
    assert text.count("split: {groups: num_attention_heads}") == 1
    assert "in which order" not in text


def test_a_draft_marks_an_order_that_was_not_seen(pair: Pair, tmp_path: Path) -> None:
    assert "in which order" not in drafted(*pair("neox"))
    files = [Path(shutil.copy(file, tmp_path)) for file in pair("neox")]
    for file in files:
        with h5py.File(file, "r+") as opened:  # as it was written before there were sums along axes
            del opened["axis_sums"], opened["sums"]
    text = drafted(*files)
    assert (
        "  attention.query_key_value: [mixer.wq, mixer.wk, mixer.wv]  # ? same values, 0.98; in which order and groups they lie "
        "was not seen: record with task='tensor'\n"
    ) in text
    assert "# Of 4 how several lie in one is not known; their lines are marked with # ? as well.\n" in text


@pytest.mark.parametrize("kind", ["neox", "opt"])
def test_a_clean_pair_is_aligned_by_its_draft(pair: Pair, kind: str) -> None:
    files = pair(kind, task="tensor")
    result = probe.compare(*files, yaml.safe_load(drafted(*files)))
    assert result.verdict is Verdict.ALIGNED, result.divergences
    expected = (
        "recorded, and not",
        "could not be compared",
        "1 of 29 pairs of modules matched",
    )  # what holds the layers
    assert all(text.startswith(expected) for text in result.warnings), result.warnings


def test_a_draft_does_not_pair_the_members_of_lists_that_are_no_pair(pair: Pair) -> None:
    found = yaml.safe_load(drafted(*pair("opt", task="tensor")))
    assert "parts" not in found["TopLayer"]
    assert found["TopLayer"]["parts.5.outp"] == f"{LAYER}.fc2"
    assert found["Dense"] == {"params": {"kernel": {"to": "weight", "transpose": True}, "offset": "bias"}}


# Norms that nothing but their place tells apart


def test_fresh_norms_are_paired_by_their_neighbours(pair: Pair) -> None:
    found = paths(probe.compare(*pair("neox")))
    for n in range(ports.LAYERS):
        assert found[f"gpt_neox.layers.{n}.input_layernorm"] == f"cells.{n}.mixer.pre"
        assert found[f"gpt_neox.layers.{n}.post_attention_layernorm"] == f"cells.{n}.feed.pre"


def test_a_norm_that_is_paired_by_its_neighbours_is_found_and_said_to_be_a_guess(pair: Pair) -> None:
    first = probe.compare(*pair("neox", "eps")).first_divergence
    assert first is not None
    assert first.path == "gpt_neox.layers.2.input_layernorm"
    assert first.confidence < 0.75
    assert "matched by structure, 75 % sure" in first.evidence


def test_what_was_seen_at_a_guessed_pair_is_no_surer_where_it_is_charged(pair: Pair) -> None:
    first = probe.compare(*pair("opt", "gelu")).first_divergence
    assert first is not None
    assert first.path == ""
    assert first.confidence < 0.9
    assert not any("in which order" in text for text in first.evidence), "their weights show it"
    assert f"seen at {LAYER}.fc2 and parts.5.outp, matched by values, 98 % sure" in first.evidence


def test_a_module_without_a_counterpart_and_without_a_mapping(pair: Pair) -> None:
    first = probe.compare(*pair("neox", "eps"), min_confidence=0.8).first_divergence
    assert first is not None
    assert first.path == "gpt_neox.layers.2.input_layernorm"
    assert (
        first.hint
        == "B lacks this module, or runs it under a name that was not found: a layer mapping (-lm) can give it"
    )
