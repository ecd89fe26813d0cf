"""One seed for everything, and what it cannot do."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from click.testing import CliRunner

import probe
from probe.adapters.numpy import nn
from probe.commands.cli import main
from probe.errors import ConfigError
from probe.reproducibility import origins
from probe.store.reading.reader import Reader
from tests.toys import gpt, record

HASH = "the order of sets of strings in this process: PYTHONHASHSEED has to be set before Python starts"
OWN = "generators that the program makes itself (numpy.random.default_rng()) have seeds of their own"


@pytest.fixture(autouse=True)
def _nothing_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "")
    monkeypatch.delenv("PYTHONHASHSEED")
    for framework in ("torch", "paddle", "mindspore"):  # theirs are tested with them
        monkeypatch.delitem(sys.modules, framework, raising=False)


def drawn() -> tuple[Any, ...]:
    return random.random(), np.random.rand(), nn.Linear(2, 2).weight.data.tolist()


def test_twice_the_same_seed_gives_twice_the_same_numbers() -> None:
    probe.seed_all(3)
    first = drawn()
    assert drawn() != first
    probe.seed_all(3)
    assert drawn() == first
    probe.seed_all(4)
    assert drawn() != first


def test_what_was_done_is_returned_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    seeding = probe.seed_all(7, deterministic=False)
    assert (seeding.seed, seeding.deterministic) == (7, False)
    assert seeding.done == ("random", "numpy.random", "numpy_nn.manual_seed")
    assert seeding.missing == (OWN,)
    assert "PYTHONHASHSEED" not in os.environ
    assert str(seeding) == f"seed 7: random, numpy.random, numpy_nn.manual_seed\n  not deterministic: {OWN}"
    assert capsys.readouterr().err == f"probe: {seeding}\n"


def started_with(value: str | None) -> list[str]:
    """Run seed_all in a process that was started with PYTHONHASHSEED or without it."""
    environment = {key: each for key, each in os.environ.items() if key != "PYTHONHASHSEED"}
    if value is not None:
        environment["PYTHONHASHSEED"] = value
    code = (
        "import os, probe; s = probe.seed_all(5); print('|'.join([os.environ['PYTHONHASHSEED'], *s.done, *s.missing]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    return done.stdout.strip().split("|")


def test_the_hash_seed_of_a_running_process_cannot_be_set() -> None:
    assert started_with(None) == ["5", "random", "numpy.random", "PYTHONHASHSEED=5 for processes to come", OWN, HASH]
    assert started_with("random")[-1] == HASH
    assert started_with("0") == ["0", "random", "numpy.random", OWN]


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
def test_setting_the_hash_seed_at_run_time_deceives_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import os; os.environ['PYTHONHASHSEED'] = '5'; import probe; print(*probe.seed_all(5).missing, sep='|')"
    environment = {key: each for key, each in os.environ.items() if key != "PYTHONHASHSEED"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip().split("|") == [OWN, HASH]


@pytest.mark.parametrize("seed", [-1, 2**32, 1.0, True, "1", None])
def test_seeds_that_a_framework_cannot_use(seed: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"cannot be used by every framework; expected an integer from 0 to 4294967295"
    ):
        probe.seed_all(seed)
    assert not origins.facts()


def test_the_seed_stands_in_the_recording(tmp_path: Path) -> None:
    probe.seed_all(11, deterministic=False)
    path = record(tmp_path / "a.h5")
    with Reader(path) as reader:
        facts = reader.environment
        assert (int(facts["seed"]), bool(facts["deterministic"])) == (11, False)
        assert facts["seeded"] == '["random", "numpy.random", "numpy_nn.manual_seed"]'
        assert OWN in facts["not_deterministic"]
    shown = CliRunner().invoke(main, ["info", str(path)], env={"COLUMNS": "300"}).output
    assert f"seed          11 by probe.seed_all, not made deterministic; not: {OWN}" in shown


def test_the_last_seed_counts(tmp_path: Path) -> None:
    probe.seed_all(11, deterministic=False)
    model = gpt()
    with probe.capture(model, tmp_path / "a.h5"):
        probe.step(loss=1.0)
        probe.seed_all(12)
        probe.make_inputs({"x": "float32[2]"}, seed=1)
        probe.step(loss=1.0)
    probe.seed_all(13)
    with Reader(tmp_path / "a.h5") as reader:
        assert (int(reader.environment["seed"]), bool(reader.environment["deterministic"])) == (12, True)
    shown = CliRunner().invoke(main, ["info", str(tmp_path / "a.h5")], env={"COLUMNS": "300"}).output
    assert "12 by probe.seed_all, deterministic; not: " in shown
    assert "inputs        make_inputs, seed 1: x float32[2] normal" in shown


def test_a_damaged_list_is_an_error(tmp_path: Path) -> None:
    probe.seed_all(11)
    path = record(tmp_path / "a.h5")
    with h5py.File(path, "r+") as file:
        file["environment"].attrs["not_deterministic"] = '["gene'
    result = CliRunner().invoke(main, ["info", str(path)])
    assert result.exit_code == 3 and "a.h5 is damaged: /environment not_deterministic cannot be read" in result.output


def test_without_it_nothing_is_said(tmp_path: Path) -> None:
    path = record(tmp_path / "a.h5")
    with Reader(path) as reader:
        assert not {"seed", "deterministic", "inputs", "seeded"} & reader.environment.keys()
    shown = CliRunner().invoke(main, ["info", str(path)]).output
    assert "seed" not in shown and "inputs" not in shown
