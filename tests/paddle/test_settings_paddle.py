"""Settings of PaddlePaddle: its flags, variables that nothing reads, a model's configuration."""

from __future__ import annotations

from pathlib import Path

import paddle
import pytest

import probe
from probe.adapters.paddle.environment import environment, is_read, unread
from probe.settings.advising import advice
from probe.settings.reading.environments import environment_of
from probe.settings.table.determinism import TRAPS


@pytest.mark.parametrize("name", [trap.variable for trap in TRAPS if trap.variable.lower().startswith("flags_")])
def test_nothing_reads_the_flags_of_the_guides(name: str) -> None:
    assert not is_read(name)


@pytest.mark.parametrize(
    "name",
    ["FLAGS_use_mkldnn", "FLAGS_check_nan_inf", "FLAGS_sync_before_allreduce", "FLAGS_selected_gpus", "FLAGS_prim_all"],
)
def test_flags_and_what_python_code_reads(name: str) -> None:
    """The last three are no flags: PaddlePaddle's Python code asks the environment for them."""
    assert is_read(name)


def test_unread_variables_are_recorded_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLAGS_of_nobody", "1")
    monkeypatch.setenv("Flags_skip_mp_c_identity", "1")
    monkeypatch.setenv("FLAGS_check_nan_inf", "0")
    model = paddle.nn.Linear(2, 2)
    with probe.capture(model, tmp_path / "a.h5"):
        model(paddle.ones([1, 2])).sum().backward()
        probe.step()
    assert set(unread()) == {"FLAGS_of_nobody", "Flags_skip_mp_c_identity"}
    _, found = environment_of(tmp_path / "a.h5")
    said = {each.variable: each.instead for each in advice(found).unread}
    assert set(said) == {"FLAGS_of_nobody", "Flags_skip_mp_c_identity"}
    assert said["Flags_skip_mp_c_identity"].endswith("mp_skip_c_identity")


def test_the_flags_of_this_build_are_recorded() -> None:
    facts = environment()
    assert facts["device"] == "cpu" and "devices" not in facts
    assert facts["flags"]["FLAGS_check_nan_inf"] is False  # type: ignore[index]
