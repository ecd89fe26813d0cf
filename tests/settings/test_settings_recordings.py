"""Settings beside the verdict of two recordings: in the findings that they belong to, else in notes; never in the verdict."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import pytest
from rich.cells import cell_len

import probe
from probe.answer.comparison import Comparison
from probe.answer.result import Verdict
from probe.report.html import as_html
from probe.report.text import render
from probe.settings.reading.recordings import recorded
from probe.settings.resolving import resolved
from tests.toy import nn
from tests.toys import GPT, gpt, module, record

LLAMA = {"model_type": "llama", "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "rms_norm_eps": 1e-6, "rope_theta": 1e4,
         "initializer_range": 0.02, "transformers_version": "5.0"}  # fmt: skip


def with_config(change: Callable[[GPT], object] = lambda model: None, **config: Any) -> GPT:
    model = gpt()
    model.config = {**LLAMA, **config}
    change(model)
    return model


def other_eps(model: GPT) -> None:
    module(model, "layers.1.norm2").eps = 1e-3


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("plain") / "a.h5", with_config())


@pytest.fixture
def against(plain: Path, tmp_path: Path) -> Callable[..., Comparison]:
    def compared(model: GPT, **options: Any) -> Comparison:
        return probe.compare(plain, record(tmp_path / "b.h5", model, **options))

    return compared


Against = Callable[..., Comparison]


@pytest.mark.thorough
def test_a_finding_names_the_setting_behind_it(against: Against) -> None:
    """From statistics."""
    found = against(with_config(other_eps, rms_norm_eps=1e-3))
    first = found.first_divergence
    assert found.verdict is Verdict.DIVERGED and first is not None
    assert (first.path, first.settings) == ("layers.1.norm2", ("norm_eps",))
    assert first.hint.startswith("rms_norm_eps: 1e-06 in A, 0.001 in B; ")
    assert [each.findings for each in found.settings] == [(0,)]
    assert "rms_norm_eps  1e-06  0.001  → the first divergence" in render(found).plain


def test_a_setting_that_shows_nowhere_is_a_note_and_no_finding(against: Against) -> None:
    found = against(with_config(rms_norm_eps=1e-5, rope_theta=5e5))
    assert (found.verdict, found.divergences) == (Verdict.ALIGNED, ())
    assert [each.difference.setting for each in found.settings] == ["norm_eps", "rope_theta"]
    assert [note.code for note in found.notes] == ["setting-shows-nowhere"] * 2
    text = render(found).plain
    assert "rms_norm_eps  1e-06  1e-05   no finding shows it" in text
    assert "note:" not in text, "the section says it"


def test_a_setting_of_another_place_is_not_blamed(against: Against) -> None:
    """A wrong norm is not the rotary base's."""
    found = against(with_config(other_eps, rope_theta=5e5))
    first = found.first_divergence
    assert first is not None and first.settings == () and "rope_theta" not in first.hint
    assert [(each.difference.setting, each.findings) for each in found.settings] == [("rope_theta", ())]


def test_equal_settings_say_nothing(against: Against) -> None:
    found = against(with_config(other_eps))
    assert found.settings == () and "Settings" not in render(found).plain
    assert found.as_json()["settings"] == []


def test_the_verdict_is_that_of_the_numbers(against: Against, tmp_path: Path) -> None:
    """Whatever the configuration says."""
    other = against(with_config(other_eps, rms_norm_eps=1e-3, vocab_size=5, hidden_act="relu"))
    (tmp_path / "b.h5").unlink()
    same = against(with_config(other_eps))
    for found in (other, same):
        first = found.first_divergence
        assert first is not None and (first.path, first.kind, first.confidence, first.error) == (
            "layers.1.norm2",
            "introduced",
            first.confidence,
            first.error,
        )
    assert other.first_divergence.confidence == same.first_divergence.confidence  # type: ignore[union-attr]
    assert [slot.verdict for slot in other.slots] == [slot.verdict for slot in same.slots]


def test_the_optimizers_settings(against: Against) -> None:
    model = with_config()
    found = against(model, optimizer=nn.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=0.1))
    assert found.verdict is Verdict.DIVERGED
    assert {each.difference.setting for each in found.settings if each.findings} == {"lr", "adam_beta2", "weight_decay"}
    first = found.first_divergence
    assert first is not None and first.hint.startswith("the settings differ"), "the walk has read them already"


def test_what_is_decayed(plain: Path, tmp_path: Path) -> None:
    model = gpt()
    vectors = [each for each in model.parameters() if each.data.ndim < 2]
    matrices = [each for each in model.parameters() if each.data.ndim > 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    file = record(tmp_path / "b.h5", model, optimizer=nn.AdamW(groups, lr=1e-3))
    assert (resolved(recorded(file)).known("weight_decay_groups"), resolved(recorded(file)).known("weight_decay")) == (
        "matrices",
        0.1,
    )
    assert resolved(recorded(file)).values["weight_decay_groups"].shown == "matrices only"
    assert resolved(recorded(plain)).known("weight_decay_groups") in ("all parameters", None)


def test_the_environment(against: Against, plain: Path, tmp_path: Path) -> None:
    found = against(with_config())
    assert not found.settings
    with h5py.File(tmp_path / "b.h5", "r+") as file:
        file["environment"].attrs["float32_matmul_precision"] = "high"
        file["environment"].attrs["variables"] = json.dumps({"OMP_NUM_THREADS": "3"})
    with h5py.File(plain) as file:
        copy = tmp_path / "a.h5"
        copy.write_bytes(Path(plain).read_bytes())
    with h5py.File(copy, "r+") as file:
        file["environment"].attrs["float32_matmul_precision"] = "highest"
        file["environment"].attrs["variables"] = json.dumps({"OMP_NUM_THREADS": "1"})
    found = probe.compare(copy, tmp_path / "b.h5")
    assert [(each.difference.setting, each.difference.a.shown, each.difference.b.shown) for each in found.settings] == [
        ("matmul_precision", "highest", "high"), ("threads", "1", "3"),
    ]  # fmt: skip
    assert found.verdict is Verdict.ALIGNED


def test_many_settings_are_cut_short_and_fit_the_terminal(against: Against) -> None:
    odd = {
        "tie_word_embeddings": True,
        "attention_bias": True,
        "hidden_act": "gelu",
        "vocab_size": 9,
        "sliding_window": 7,
        "attention_dropout": 0.1,
    }
    found = against(with_config(**odd))
    for width in (40, 80, 120):
        text = render(found, width=width).plain
        assert all(cell_len(line) <= width for line in text.splitlines())
    lines = render(found, width=80).plain.splitlines()
    start = lines.index("Settings that differ")
    assert len(lines[start : lines.index("", start)]) == 6 and "more: -v shows all" in lines[start + 5]
    assert "more: -v" not in render(found, verbose=True).plain.partition("Settings")[2].partition("\n\n")[0]


def test_the_page_has_them(against: Against) -> None:
    assert "</html>" in as_html(against(with_config(rms_norm_eps=1e-5)))


HOSTILE: list[dict[str, Any]] = [
    {"rms_norm_eps": "\x1b[31m1e-5", "hidden_size": [1, [2]], "num_attention_heads": 0}, {"rms_norm_eps": 10**400, "hidden_size": -1, "num_attention_heads": "x"},
    {"rope_scaling": {"a": {"b": {}}}, "layer_types": 3, "num_experts": {}, "router_aux_loss_coef": []}, {"hidden_act": "x" * 1900, "tie_word_embeddings": "?"},
    {"n_routed_experts": "8", "n_shared_experts": "y", "moe_intermediate_size": None}, {"model_type": ["llama"], "num_hidden_layers": True},
]  # fmt: skip


@pytest.mark.parametrize("config", HOSTILE, ids=range(len(HOSTILE)))
def test_odd_configurations_cost_nothing(config: dict[str, Any], against: Against) -> None:
    found = against(with_config(other_eps, **config))
    assert found.verdict is Verdict.DIVERGED and not [note for note in found.notes if note.code == "hint-failed"]
    text = render(found, width=80).plain
    assert "\x1b" not in text
    json.dumps(found.as_json(), allow_nan=False)


def test_a_fault_in_here_costs_the_section_alone(against: Against, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("probe.answer.settings.held_against", lambda a, b: 1 / 0)
    found = against(with_config(other_eps, rms_norm_eps=1e-3))
    assert found.verdict is Verdict.DIVERGED and found.settings == ()
    assert [note.facts["hint"] for note in found.notes if note.code == "hint-failed"] == ["settings"]
