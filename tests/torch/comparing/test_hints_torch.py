"""Hints: every sort of mistake is named, and nothing is named that the numbers do not support."""

from __future__ import annotations

from pathlib import Path

import pytest

from probe.answer.result import Verdict
from probe.diagnosis.table import HINTS
from tests.torch.hint_faults_derived import DERIVED
from tests.torch.hint_faults_forms import FORMS
from tests.torch.hint_faults_modules import MODULES
from tests.torch.hint_faults_ports import PORTS
from tests.torch.hint_faults_training import TRAINING
from tests.torch.hint_noise import NOISE

FAULTS = {**MODULES, **FORMS, **TRAINING, **PORTS, **DERIVED}
CASES = [(name, task) for name, fault in FAULTS.items() for task in fault.tasks]


def test_there_is_a_fault_for_every_hint() -> None:
    assert {fault.hint for fault in FAULTS.values()} == {hint.name for hint in HINTS}


@pytest.mark.parametrize("name, task", CASES)
def test_the_first_hint_is_the_right_one(name: str, task: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if name.startswith("an input of another scale"):
        reason = "the model does not use it: neither an output nor the loss shows it, and it is no finding"
        request.applymarker(pytest.mark.xfail(strict=True, reason=reason))
    fault = FAULTS[name]
    found = fault.compare(tmp_path, task)
    first = found.first_divergence
    assert found.verdict is Verdict.DIVERGED and first is not None, found.warnings
    given = first.hints[0]["name"] if first.hints else "none"
    assert given == fault.hint, (first.path, first.role, first.hints, first.evidence)
    said = f"{first.hints[0]['found']} {first.hint}"
    assert fault.says in said, said


@pytest.mark.thorough
@pytest.mark.parametrize("task", ["tensor", "statistics"])
@pytest.mark.parametrize("name", NOISE)
def test_a_random_error_has_no_hint(name: str, task: str, tmp_path: Path) -> None:
    found = NOISE[name].compare(tmp_path, task)
    assert found.verdict is Verdict.DIVERGED
    assert [hint["name"] for divergence in found.divergences for hint in divergence.hints] == []
