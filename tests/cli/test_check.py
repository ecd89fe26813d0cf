"""``probe check config``, ``probe check env``, ``probe info --diff``: what they print, and how they end."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import pytest
from rich.cells import cell_len

from tests.cli.running import WIDTHS, net, record, run
from tests.golden_files import golden
from tests.programs import ROOT

FOLDER = ROOT / "benchmarks" / "settings" / "configurations"
PLAIN = ("qwen2-0.5b.config.json", "qwen2-0.5b.mindspeed.sh")


@pytest.fixture
def files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A configuration, and the script of a port with three mistakes."""
    text = (FOLDER / PLAIN[1]).read_text(encoding="utf-8")
    text = (
        text.replace("--norm-epsilon 1e-06", "")
        .replace("--rotary-base 1000000", "--rotary-base 10000")
        .replace("--bf16", "--fp16")
    )
    (folder / "port.sh").write_text(text, encoding="utf-8")
    (folder / "config.json").write_bytes((FOLDER / PLAIN[0]).read_bytes())
    return folder / "config.json", folder / "port.sh"


@pytest.mark.parametrize("options", [[], ["-v"]], ids=["short", "long"])
def test_check_config(files: tuple[Path, Path], options: list[str]) -> None:
    result = run("check", "config", "config.json", "port.sh", *options, width=None)
    assert (result.exit_code, result.stderr) == (1, "")
    golden(f"check-config-{'long' if options else 'short'}", result.stdout)
    assert all(cell_len(line) <= 80 for line in result.stdout.splitlines())
    for width in WIDTHS:
        shown = run("check", "config", "config.json", "port.sh", *options, width=width).stdout
        assert all(cell_len(line) <= width for line in shown.splitlines())


def test_check_config_that_is_the_same() -> None:
    result = run("check", "config", *(FOLDER / name for name in PLAIN))
    assert result.exit_code == 0 and result.stdout.startswith("SAME in 32 settings that both have\n")


def test_check_config_as_json(files: tuple[Path, Path]) -> None:
    result = run("check", "config", *files, "--json")
    found = json.loads(result.stdout)
    assert (result.exit_code, found["same"]) == (1, False)
    assert {each["setting"] for each in found["differences"] if each["counts"]} == {
        "norm_eps",
        "rope_theta",
        "compute_dtype",
    }
    assert found["sides"]["b"] == {
        "path": str(files[1]),
        "form": "shell script",
        "names": "megatron",
        "unknown": [],
        "is_complete": True,
    }
    assert "hidden_size" in found["equal"] and "lr" in found["only_b"]


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        ("nothing.json", "config.json", "cannot read nothing.json"),
        ("config.json", "empty.sh", "no settings that can be read"),
        ("config.json", "other.json", "have no setting in common"),
    ],
)
def test_check_config_that_cannot_be_made(files: tuple[Path, Path], a: str, b: str, said: str) -> None:
    Path("empty.sh").write_text("ls\n")
    Path("other.json").write_text('{"learning_rate": 1.0, "output_dir": "x"}')
    result = run("check", "config", a, b)
    assert result.exit_code == 3 and said in result.stderr and result.stdout == ""


def test_check_config_of_recordings(folder: Path) -> None:
    record(Path("a.h5"))
    Path("no_suffix").write_bytes(Path("a.h5").read_bytes())
    result = run("check", "config", "a.h5", "no_suffix")
    assert result.exit_code == 0 and "SAME" in result.stdout


def test_info_diff(folder: Path) -> None:
    model = net()
    model.config = {"rms_norm_eps": 1e-6, "hidden_size": 3, "num_hidden_layers": 3}
    record(Path("a.h5"), model)
    model.config = {"rms_norm_eps": 1e-5, "hidden_size": 3, "num_hidden_layers": 3}
    record(Path("b.h5"), model)
    result = run("info", "--diff", "a.h5", "b.h5")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "rms_norm_eps  1e-06  1e-05" in result.stdout and result.stdout.startswith(
        "DIFFERENT: 1 setting that changes numbers"
    )
    assert all(cell_len(line) <= 80 for line in result.stdout.splitlines())
    for words in (["a.h5", "b.h5"], ["--diff", "a.h5"]):
        wrong = run("info", *words)
        assert wrong.exit_code == 3 and "expected one recording, or two with --diff" in wrong.stderr


# ---- environments ----------------------------------------------------------------------------------


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is set, and no device is there."""
    monkeypatch.setattr("probe.settings.environment._variables", lambda: {})
    monkeypatch.setattr("probe.settings.environment._devices", lambda: [])
    monkeypatch.setattr("probe.settings.environment.importlib.metadata.version", lambda name: {"torch": "2.13.0"}[name])
    monkeypatch.setattr("probe.settings.environment.importlib.metadata.PackageNotFoundError", KeyError)


def test_check_env_of_this_process(clean: None) -> None:
    result = run("check", "env", width=None)
    assert (result.exit_code, result.stderr) == (0, "")
    golden("check-env", result.stdout)
    for width in WIDTHS:
        assert all(cell_len(line) <= width for line in run("check", "env", "-v", width=width).stdout.splitlines())


def test_check_env_names_variables_without_effect(clean: None, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {
        "FLAGS_shard_norm_align_dp": "0",
        "Flags_mp_aysnc_allreduce": "1",
        "flags_x": "1",
        "FLAGS_cudnn_deterministic": "1",
        "PYTHONHASHSEED": "0",
    }
    monkeypatch.setattr("probe.settings.environment._variables", lambda: given)
    result = run("check", "env", "--json")
    found = json.loads(result.stdout)["environments"][0]
    assert result.exit_code == 1
    assert {each["variable"] for each in found["without_effect"]} == {
        "FLAGS_shard_norm_align_dp",
        "Flags_mp_aysnc_allreduce",
        "flags_x",
    }
    assert "PYTHONHASHSEED" not in {each["variable"] for each in found["missing"]}


@pytest.mark.parametrize(
    ("device", "lacking"),
    [
        ("Tesla V100 (compute capability 7.0)", {"bfloat16", "float8"}), ("Tesla P100 (compute capability 6.0)", {"bfloat16", "float16", "float8"}),
        ("NVIDIA A100 (compute capability 8.0)", {"float8"}), ("NVIDIA H100 (compute capability 9.0)", set()), ("NVIDIA B200 (compute capability 10.0)", set()),
        ("Ascend910A", {"bfloat16", "float8"}), ("Ascend910B2", {"float8"}),
    ],
)  # fmt: skip
def test_check_env_names_dtypes_that_a_device_lacks(
    device: str, lacking: set[str], clean: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("probe.settings.environment._devices", lambda: [device])
    result = run("check", "env", "--json")
    assert {each["dtype"] for each in json.loads(result.stdout)["environments"][0]["lacking"]} == lacking
    assert result.exit_code == 0, "nothing is known to use it"


def changed(name: str, environment: dict[str, object], dtype: str = "") -> None:
    record(Path(name))
    with h5py.File(name, "r+") as file:
        for key, value in environment.items():
            file["environment"].attrs[key] = value if isinstance(value, (str, bool, int)) else json.dumps(value)
        if dtype:
            calls = file["calls"][()]
            calls["autocast"] = dtype.encode()
            file["calls"][...] = calls


def test_check_env_of_two_recordings(folder: Path) -> None:
    changed(
        "a.h5",
        {"deterministic_algorithms": True, "variables": {"PYTHONHASHSEED": "0"}, "float32_matmul_precision": "highest"},
    )
    changed(
        "b.h5",
        {"deterministic_algorithms": False, "variables": {"PYTHONHASHSEED": "0"}, "float32_matmul_precision": "high"},
    )
    result = run("check", "env", "a.h5", "b.h5", width=None)
    assert (result.exit_code, result.stderr) == (1, "")
    golden("check-env-two", result.stdout, (r"numpy \d\S*", "numpy <version>"))
    again = run("check", "env", "a.h5", "a.h5")
    assert again.exit_code == 0 and "The environments agree." in again.stdout


def test_check_env_of_a_recording_that_used_what_its_device_lacks(folder: Path) -> None:
    changed("a.h5", {"devices": ["Tesla V100 (compute capability 7.0)"]}, dtype="bfloat16")
    result = run("check", "env", "a.h5")
    assert result.exit_code == 1
    assert "does not compute in bfloat16, and it was used" in " ".join(result.stdout.split())
    changed("b.h5", {"devices": ["Tesla V100 (compute capability 7.0)"]}, dtype="float16")
    assert run("check", "env", "b.h5").exit_code == 0


def test_check_env_of_both_is_an_error(folder: Path) -> None:
    record(Path("a.h5"))
    result = run("check", "env", "a.h5", "--framework", "torch")
    assert result.exit_code == 3 and "--framework is for this process" in result.stderr
