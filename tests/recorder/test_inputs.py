"""Inputs that are the same everywhere; one seed for everything, and what it cannot do."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner

import probe
from probe import origins
from probe.commands.cli import main
from probe.errors import ConfigError
from probe.store.reading.reader import Reader
from tests.toy import nn
from tests.toy.tensor import Tensor
from tests.toys import gpt, record

# ---- Inputs that are the same everywhere.

SPEC = {
    "ids": "int64[2,4] < 32000",
    "x": "float32[2,3]",
    "u": "bfloat16[3] uniform -1..1",
    "mask": "bool[3,6] mask",
    "labels": {"shape": 2, "dtype": "int32", "kind": "labels", "vocab": 10},
}


def test_the_numbers_are_these() -> None:
    """Other numbers on another machine, or in another version, would make every comparison worthless."""
    made = probe.make_inputs(SPEC, seed=42)
    assert made["ids"].tolist() == [[4833, 1994, 29820, 2325], [17132, 22871, 10544, 18671]]
    assert [[float(v).hex() for v in row] for row in made["x"]] == [
        ["0x1.3eb74a0000000p+0", "-0x1.987bcc0000000p-1", "-0x1.553e380000000p-1"],
        ["-0x1.3e11f20000000p-1", "-0x1.8e7fa80000000p-3", "0x1.118d2e0000000p-2"],
    ]
    assert made["u"].view(np.uint16).tolist() == [16169, 48569, 16114]
    assert made["mask"].sum(1).tolist()[0] == 6
    assert made["labels"].tolist() == [3, 1]
    assert {name: array.dtype.name for name, array in made.items()} == {
        "ids": "int64", "x": "float32", "u": "bfloat16", "mask": "bool", "labels": "int32"}  # fmt: skip


def test_the_definition_can_be_written_down_in_pure_python() -> None:
    """The words of Philox, and what the module says is made of them."""
    import xxhash

    def words(name: str, count: int) -> list[int]:
        key = np.array([7, xxhash.xxh3_64_intdigest(name.encode())], np.uint64)
        return [int(word) for word in np.random.Philox(key=key).random_raw(count)]

    made = probe.make_inputs({"i": "int16[5] -3..9", "u": "float64[5] uniform 2..3", "n": "float64[2]"}, seed=7)
    assert made["i"].tolist() == [-3 + ((word >> 32) * 12 >> 32) for word in words("i", 5)]
    assert made["u"].tolist() == [(word >> 11) * 2.0**-53 * 1.0 + 2.0 for word in words("u", 5)]
    halves = [half for word in words("n", 12) for half in (word & 0xFFFFFFFF, word >> 32)]
    assert made["n"].tolist() == [sum(halves[i : i + 12]) * 2.0**-32 - 6 for i in (0, 12)]


def test_another_process_makes_the_same() -> None:
    code = "import probe; print(probe.make_inputs({'x': 'float32[1000]'}, 3)['x'].tobytes().hex())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == probe.make_inputs({"x": "float32[1000]"}, 3)["x"].tobytes().hex()


def test_inputs_do_not_depend_on_each_other_or_on_the_pieces_that_they_are_made_in() -> None:
    alone = probe.make_inputs({"x": "float32[2,3]"}, seed=42)["x"]
    assert (alone == probe.make_inputs(SPEC, seed=42)["x"]).all()
    long = probe.make_inputs({"x": "float32[300000]"}, seed=42)["x"]
    assert (long[:6] == alone.ravel()).all() and len(set(long[131072:131172].tolist())) > 90
    assert not (alone == probe.make_inputs({"x": "float32[2,3]"}, seed=43)["x"]).any()
    assert not (alone == probe.make_inputs({"y": "float32[2,3]"}, seed=42)["y"]).any()


def test_the_distributions() -> None:
    size = 200_000
    made = probe.make_inputs({
        "n": f"float64[{size}]", "u": f"float32[{size}] uniform -2..6", "i": f"int8[{size}] -100..100",
        "l": f"uint8[{size}] labels < 256", "m": "int64[1000,16] mask", "h": f"float16[{size}] uniform",
    })  # fmt: skip
    n = made["n"]
    assert abs(n.mean()) < 0.01 and abs(n.var() - 1) < 0.01 and np.abs(n).max() < 6
    assert abs((np.abs(n) < 1).mean() - 0.6827) < 0.01
    assert -2 <= made["u"].min() < -1.99 and 5.99 < made["u"].max() <= 6 and abs(made["u"].mean() - 2) < 0.02
    assert (made["i"].min(), made["i"].max(), len(np.unique(made["i"]))) == (-100, 99, 200)
    assert np.bincount(made["l"]).min() > 500
    lengths = made["m"].sum(1)
    assert lengths[0] == 16 and set(lengths.tolist()) == set(range(1, 17))
    assert (np.diff(made["m"], axis=1) <= 0).all(), "ones come before zeros"
    assert 0 <= made["h"].min() and made["h"].max() <= 1


@pytest.mark.parametrize("shape", ["[]", "[0]", "[0,3]", "[3,0]", "[1,1,1]"])
@pytest.mark.parametrize("rest", ["float32{} uniform 0..1", "float32{}", "int64{} < 5", "bool{} mask"])
def test_shapes(shape: str, rest: str) -> None:
    if shape == "[]" and "mask" in rest:
        return
    made = probe.make_inputs({"x": rest.format(shape)})["x"]
    assert list(made.shape) == [int(size) for size in shape.strip("[]").split(",") if size]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3fn", "float32", "float64"])
def test_floats_are_rounded_once_and_alike(dtype: str) -> None:
    wide = probe.make_inputs({"x": "float64[100]"})["x"]
    made = probe.make_inputs({"x": {"shape": [100], "dtype": dtype}})["x"]
    expected = (
        wide.astype(np.float32).astype(getattr(ml_dtypes, dtype)) if hasattr(ml_dtypes, dtype) else wide.astype(dtype)
    )
    assert made.tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", [np.float32, np.dtype("float32"), "torch.float32", "float32"])
def test_dtypes_as_people_have_them(dtype: object) -> None:
    assert probe.make_inputs({"x": {"shape": 3, "dtype": dtype}})["x"].dtype == np.float32


BAD: dict[str, tuple[Any, str]] = {
    "no mapping": ("float32[2]", "expected a mapping like"),
    "nothing": ({}, "expected a mapping like"),
    "no dtype": ({"x": "[2,3]"}, "x: '[2,3]' cannot be read; expected something like 'int64[2,128] < 32000'"),
    "unknown dtype": ({"x": "flaot32[2]"}, "x: dtype 'flaot32' is not known; expected one like float32"),
    "complex": ({"x": "complex64[2]"}, "x: inputs of dtype complex64 cannot be made"),
    "no limit": ({"x": "int64[2]"}, "x: ids need a limit: the size of the vocabulary"),
    "unknown kind": ({"x": "float32[2] gamma"}, "x: kind 'gamma' is not known; expected one of normal, uniform, ids"),
    "limits of normal": ({"x": "float32[2] normal 0..1"}, "x: normal takes no limits"),
    "ids of floats": ({"x": "float32[2] ids < 3"}, "x: ids are integers, and float32 is not of that kind"),
    "uniform integers": ({"x": "int64[2] uniform 0..3"}, "x: uniform are floats, and int64 is not of that kind"),
    "empty range": ({"x": "int64[2] 3..3"}, "x: nothing lies between 3 and 3"),
    "too wide": ({"x": "int64[2] < 5000000000"}, "x: from 0 to 5000000000 are more than 2**32 numbers"),
    "does not fit": ({"x": "int8[2] < 1000"}, "x: int8 cannot hold numbers from 0 to 999"),
    "infinite": ({"x": {"shape": 2, "dtype": "float32", "kind": "uniform", "high": float("inf")}}, "inf is no limit"),
    "fraction": ({"x": {"shape": 2, "dtype": "int64", "high": 2.5}}, "x: 2.5 is no limit of integers"),
    "negative shape": ({"x": {"shape": [-1], "dtype": "float32"}}, "x: shape [-1]; expected integers"),
    "odd shape": ({"x": {"shape": "ab", "dtype": "float32"}}, "x: shape 'ab'; expected integers"),
    "mask of nothing": ({"x": "bool[] mask"}, "x: a mask needs at least one axis"),
    "typo": ({"x": {"shape": 2, "dtype": "int64", "vocabulary": 3}}, "'vocabulary' is not known; expected shape, dtype"),
    "two limits": ({"x": {"shape": 2, "dtype": "int64", "vocab": 3, "high": 3}}, "vocab and high are the same limit"),
    "no shape": ({"x": {"dtype": "int64"}}, "x: 'shape' is missing"),
    "a list": ({"x": [2, 3]}, "x: [2, 3] is neither text nor a mapping"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_makes_no_sense_is_named(name: str) -> None:
    spec, text = BAD[name]
    with pytest.raises(ConfigError) as error:
        probe.make_inputs(spec)
    assert text in str(error.value)


@pytest.mark.parametrize("seed", [-1, 2**64, 1.5, True, "a"])
def test_seeds_that_are_none(seed: Any) -> None:
    with pytest.raises(ConfigError, match="expected an integer from 0 to"):
        probe.make_inputs({"x": "float32[2]"}, seed=seed)


def test_tensors_of_a_framework() -> None:
    for to in ("numpy", gpt()):
        made = probe.make_inputs({"x": "float32[2,3]"}, to=to)["x"]
        assert type(made) is Tensor and (made.data == probe.make_inputs({"x": "float32[2,3]"})["x"]).all()
    with pytest.raises(ConfigError, match="tensorflow is no framework and no model of one; expected torch, paddle"):
        probe.make_inputs({"x": "float32[2]"}, to="tensorflow")
    with pytest.raises(ConfigError, match="a builtins.object is no framework"):
        probe.make_inputs({"x": "float32[2]"}, to=object())


def test_their_origin_stands_in_the_recording(tmp_path: Path) -> None:
    probe.make_inputs({"x": "float32[2,3]", "y": "int64[2] < 10"}, seed=5)
    probe.make_inputs({"x": "float32[2,3]", "y": "int64[2] < 10"}, seed=5)
    path = record(tmp_path / "a.h5")
    with Reader(path) as reader:
        assert reader.environment["inputs"] == '["make_inputs, seed 5: x float32[2,3] normal; y int64[2] ids 0..10"]'


def test_the_origin_of_inputs_that_are_made_meanwhile(tmp_path: Path) -> None:
    """It stands in the file with the next step, and behind the recording nowhere."""
    model = gpt()
    with probe.capture(model, tmp_path / "a.h5"):
        probe.make_inputs({"x": "float32[1]"}, seed=6)
        probe.step(loss=1.0)
    assert origins._listener is None, "the recording's writer would live on"
    probe.make_inputs({"x": "float32[1]"}, seed=8)
    with Reader(tmp_path / "a.h5") as reader:
        assert reader.environment["inputs"] == '["make_inputs, seed 6: x float32[1] normal"]'


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_does_not_write_into_its_parents_file(tmp_path: Path) -> None:
    with probe.capture(gpt(), tmp_path / "a.h5"):
        child = os.fork()
        if not child:
            os._exit(int(origins._listener is not None))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert origins._listener is not None
        probe.step(loss=1.0)


def test_many_origins_stay_few() -> None:
    for seed in range(100):
        probe.make_inputs({"x" * 600: "float32[1]"}, seed=seed)
    kept = origins.facts()["inputs"]
    assert len(kept) == 32 and kept[-1].startswith("make_inputs, seed 99: x") and len(kept[-1]) < 600


def test_models_of_the_framework_are_told(tmp_path: Path) -> None:
    nn.manual_seed(0)
    made = probe.make_inputs({"x": "float32[2,4]"}, to=nn.Linear(4, 4))
    assert nn.Linear(4, 4)(made["x"]).shape == (2, 4)


# ---- One seed for everything, and what it cannot do.

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
