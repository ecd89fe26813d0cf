"""The table of settings is whole, and says nothing that nobody can read."""

from __future__ import annotations

import pytest

from probe.adapters.shared.environment import variables
from probe.answer.result import Kind as FindingKind
from probe.diagnosis.table import HINTS
from probe.records import Phase, Role
from probe.settings.setting import Dialect, Kind, Setting
from probe.settings.table import BY_NAME, CHECKLIST, FROM_RECORDINGS, MINDFORMERS_TYPES, MODELS, TABLE
from probe.settings.table.determinism import STEPS, TRAPS
from probe.settings.values import Unreadable, made, normalised

DERIVED = {
    "is_moe",
    "is_grouped",
    "has_shared_expert",
    "has_several_experts",
    "has_aux_loss",
    "has_mtp",
    "has_capacity",
    "on_accelerator",
}
EVERY = [pytest.param(row, id=row.name) for row in TABLE]


def all_names(row: Setting) -> list[str]:
    return [*(name for dialect in Dialect for name in row.names(dialect)), *row.recorded.split()]


def test_names_are_unique() -> None:
    assert len(BY_NAME) == len(TABLE) > 150


@pytest.mark.parametrize("row", EVERY)
def test_a_row_says_only_what_can_be_read(row: Setting) -> None:
    assert row.what and all_names(row) + row.variables.split()
    for name in all_names(row):
        if "|" in name:
            try:
                made(name.partition("|")[2], "x")
            except Unreadable:
                pass  # it is there, and for other values
    for owner, value in row.defaults.items():
        assert owner.partition(":")[0] in {*Dialect}
        assert normalised(row, value) is not None
    for when in row.only_with:
        assert when.setting in BY_NAME or when.setting in DERIVED
    assert (
        set(row.words.values()) <= {word for name, word in row.words.items() if name == word}
        or row.kind is not Kind.CHOICE
    )


@pytest.mark.parametrize("row", EVERY)
def test_places_are_places_that_findings_have(row: Setting) -> None:
    known = (
        {phase.label for phase in Phase},
        {role.label for role in Role},
        {kind.value for kind in FindingKind},
        {hint.name for hint in HINTS},
    )
    for place in row.places:
        for named, there in zip((place.phases, place.roles, place.kinds, place.hints), known, strict=True):
            assert set(named) <= there
        assert all(pattern == pattern.lower() for pattern in place.classes)


def test_what_changes_numbers_has_a_place() -> None:
    """Else no finding could name it."""
    without = {row.name for row in TABLE if row.effect.counts and not row.places}
    assert without <= {"deterministic", "hash_seed"}  # they show anywhere


def test_every_row_of_the_checklist_is_a_setting_or_told_by_recordings() -> None:
    covered = {word.replace("_", " ") for row in TABLE for word in row.checklist.split()}
    keys = {key for rows in CHECKLIST.values() for key in rows}
    assert sum(map(len, CHECKLIST.values())) == 51
    assert {key for key in keys if key.replace("_", " ") not in covered and key not in FROM_RECORDINGS} == set()
    assert covered <= {key.replace("_", " ") for key in keys}


def test_what_models_imply_are_settings_with_such_values() -> None:
    for facts in (*MODELS.values(), *MINDFORMERS_TYPES.values()):
        for name, value in facts.items():
            assert normalised(BY_NAME[name], value) == value, name


@pytest.mark.parametrize("name",
                         sorted({name for row in TABLE for name in row.variables.split()} | {step.variable for step in STEPS if step.variable} | {trap.variable for trap in TRAPS}))  # fmt: skip
def test_adapters_record_every_variable_that_is_looked_at(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "1")
    assert variables()[name] == "1"


@pytest.mark.parametrize(
    "name",
    [
        "NCCL_SOCKET_IFNAME",
        "HCCL_IF_IP",
        "MS_ROLE_TOKEN",
        "HOME",
        "WANDB_API_KEY",
        "MS_SERVER_PASSWORD",
        "NCCL_DEBUG_FILE",
    ],
)
def test_places_and_secrets_are_not_recorded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "1")
    assert name not in variables()
