"""Hints: every sort of mistake is named, and nothing is named that the numbers do not support."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from hint_faults_forms import FORMS  # noqa: E402
from hint_faults_modules import MODULES  # noqa: E402
from hint_faults_ports import PORTS  # noqa: E402
from hint_faults_training import TRAINING  # noqa: E402
from hint_noise import NOISE  # noqa: E402

from probe.comparison.result import Divergence, Verdict  # noqa: E402
from probe.diagnosis.table import HINTS  # noqa: E402

FAULTS = {**MODULES, **FORMS, **TRAINING, **PORTS}
CASES = [(name, task) for name, fault in FAULTS.items() for task in fault.tasks]
First = Callable[[str, str], Divergence]


@pytest.fixture(scope="module")
def first_of(tmp_path_factory: pytest.TempPathFactory) -> First:
    """The first divergence of a fault, by its name and the task; each is recorded once."""
    known: dict[tuple[str, str], Divergence] = {}

    def first(name: str, task: str) -> Divergence:
        if (name, task) not in known:
            found = FAULTS[name].compare(tmp_path_factory.mktemp("fault"), task)
            assert found.verdict is Verdict.DIVERGED and found.first_divergence is not None, found.warnings
            known[name, task] = found.first_divergence
        return known[name, task]

    return first


def given(first: Divergence) -> str:
    return str(first.hints[0]["name"]) if first.hints else "none"


def test_there_is_a_fault_for_every_hint() -> None:
    assert {fault.hint for fault in FAULTS.values()} == {hint.name for hint in HINTS}


@pytest.mark.parametrize("name, task", CASES)
def test_the_first_hint_is_the_right_one(name: str, task: str, first_of: First) -> None:
    first, fault = first_of(name, task), FAULTS[name]
    assert given(first) == fault.hint, (first.path, first.role, first.hints, first.evidence)
    said = f"{first.hints[0]['found']} {first.hint}"
    assert fault.says in said, said


def test_no_hint_is_given_in_the_place_of_another(first_of: First) -> None:
    """All faults against all hints: what is off the diagonal is the confusion."""
    table = Counter((FAULTS[name].hint, given(first_of(name, task))) for name, task in CASES)
    confused = {pair: count for pair, count in table.items() if pair[0] != pair[1]}
    assert confused == {}, f"{sum(confused.values())} of {len(CASES)}"


@pytest.mark.parametrize("task", ["tensor", "statistics"])
@pytest.mark.parametrize("name", NOISE)
def test_a_random_error_has_no_hint(name: str, task: str, tmp_path: Path) -> None:
    found = NOISE[name].compare(tmp_path, task)
    assert found.verdict is Verdict.DIVERGED
    assert [hint["name"] for divergence in found.divergences for hint in divergence.hints] == []
