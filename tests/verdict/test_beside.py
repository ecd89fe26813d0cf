"""What stands beside a verdict: hints, settings, lines of the mapping, how sure it is. None of it moves a place, or fails."""

from __future__ import annotations

from dataclasses import replace

import pytest

from probe.adapters.numpy import nn
from probe.diagnosis import choosing
from probe.verdict.confidence import WEIGHTS
from probe.verdict.run import compare
from tests.toys import gpt, module, record


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


def test_a_finding_has_the_hints_that_its_numbers_support(two):
    first = compare(*two).first_divergence
    assert (first.hints[0]["name"], first.hints[0]["verified"]) == ("eps", True)
    assert first.metrics.max_abs > 0 and first.metrics.max_abs_at is not None


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
