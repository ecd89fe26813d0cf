"""The commands: files, mappings and questions that make no sense are answered in one line."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import h5py
import pytest
from click.testing import CliRunner

import probe
from probe.commands.cli import compare_command
from tests.cli.running import net, pair, record, run, runner_with

# What goes wrong


def _not_hdf5(path: Path) -> None:
    path.write_bytes(b"not a recording\0")


def _foreign(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["x"] = 1


def _newer(path: Path) -> None:
    record(path)
    with h5py.File(path, "r+") as file:
        file.attrs["version"] = 99


def _cut_off(path: Path) -> None:
    record(path)
    path.write_bytes(path.read_bytes()[:3000])


def _checkpoint(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", b"")


CHECKPOINT = (
    r"bad\.h5 looks like a checkpoint \({}\), not a recording: probe compares what probe\.start records while a model runs; "
    "record both sides and give these files"
)
BAD_FILES: dict[str, tuple[Callable[[Path], None], str]] = {
    "missing": (lambda path: None, r"there is no file bad\.h5"),
    "a folder": (
        lambda path: path.mkdir(),
        r"bad\.h5 is a folder with no files of ranks \(a\.rank00000\.h5 …\); give the recording in it",
    ),
    "a checkpoint": (_checkpoint, CHECKPOINT.format(r"a zip archive, as torch\.save writes")),
    "pickled weights": (lambda path: path.write_bytes(b"\x80\x04}q.") and None, CHECKPOINT.format("a pickle")),
    "safetensors": (
        lambda path: path.write_bytes((2).to_bytes(8, "little") + b"{}" + bytes(8)) and None,
        CHECKPOINT.format("safetensors"),
    ),
    "not HDF5": (
        _not_hdf5,
        r"bad\.h5 is not an HDF5 file, or is truncated \(.*\); expected a recording, a file that probe\.start wrote",
    ),
    "empty": (
        lambda path: path.write_bytes(b"") and None,
        r"bad\.h5 is empty; expected a recording, a file that probe\.start wrote",
    ),
    "of another program": (
        _foreign,
        r"bad\.h5 is an HDF5 file, but not a recording of probe; expected a file that probe\.start wrote",
    ),
    "of a newer format": (_newer, r"bad\.h5 has format 99, this probe reads up to format 1: upgrade probe-align"),
    "cut off": (_cut_off, r"bad\.h5 .*"),
}


@pytest.mark.parametrize("kind", BAD_FILES)
@pytest.mark.parametrize(
    "command", [["compare", "bad.h5", "a.h5"], ["compare", "a.h5", "bad.h5"], ["info", "bad.h5"], ["show", "bad.h5"],
                ["export", "tree", "bad.h5"]], ids=" ".join,
)  # fmt: skip
def test_files_that_cannot_be_read(folder: Path, plain_run: Path, kind: str, command: list[str]) -> None:
    make, message = BAD_FILES[kind]
    shutil.copy(plain_run, "a.h5")
    make(Path("bad.h5"))
    result = run(*command)
    assert (result.exit_code, result.stdout) == (3, "")
    assert re.fullmatch(f"Error: {message}\n", result.stderr), result.stderr


def test_files_that_are_not_those_of_one_run_are_refused(folder: Path, plain_run: Path) -> None:
    for rank in range(2):
        shutil.copy(plain_run, f"tp.rank{rank:05d}.h5")
    result = runner_with().invoke(compare_command, ["tp.h5", "tp.rank00000.h5"])
    assert result.stderr == "Error: tp.rank00001.h5 and tp.rank00000.h5 are both of rank 0: they are of two runs\n"


def test_errors_of_probe_compare_are_a_line_too(folder: Path) -> None:
    result = runner_with().invoke(compare_command, ["none.h5", "none.h5"])
    assert (result.exit_code, result.stdout, result.stderr) == (3, "", "Error: there is no file none.h5\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Net: [a]\n", "map.yaml, line 1: expected paths below Net, got a list; ignore and rules have one"),
        ("Net:\n  a: {b\n", "map.yaml, line 2: not valid YAML (expected ',' or '}', but got '<stream end>')"),
        ("Nothing:\n  a: b\n", "map.yaml: none of its 1 keys names a module of either side:\n"
         "  the mapping's line 1: Nothing: no module is of this class"),
        ("Net:\n  head: layers.0\n  layers.0: layers.0\n",
         "map.yaml, lines 2 and 3: Net: head: layers.0 is already the counterpart of layers.0; where several modules are "
         "one on the other side, say so with a list, to or from"),
    ],
    ids=["wrong types", "syntax", "fits nothing", "one target twice"],
)  # fmt: skip
def test_mappings_that_cannot_be_used(folder: Path, text: str, message: str) -> None:
    pair(net(), net())
    Path("map.yaml").write_text(text, encoding="utf-8")
    result = run("compare", "a.h5", "b.h5", "-lm", "map.yaml")
    assert (result.exit_code, result.stdout, result.stderr) == (3, "", f"Error: {message}\n")


def test_a_mapping_that_is_not_there(folder: Path) -> None:
    pair(net(), net())
    result = run("compare", "a.h5", "b.h5", "-lm", "megatron-core/qwn2")
    assert result.exit_code == 3
    assert re.search(
        r"^Error: there is no layer mapping megatron-core/qwn2: .*did you mean megatron-core/qwen2", result.stderr
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing*"], "no module of a.h5 matches 'nothing*'; probe show FILE '*' lists all"),
        (
            ["layers.1.upp"],
            "no module of a.h5 matches 'layers.1.upp'; did you mean layers.1.up or layers.2.up or layers.0.up?",
        ),
        (["Head"], "no module of a.h5 matches 'Head'; did you mean head?"),
        (["*Lay"], "no module of a.h5 matches '*Lay'; did you mean Layer?"),
        (
            ["*", "--phase", "fwd"],
            "phase 'fwd' is not known; expected one of init, forward, loss, backward, gradient, update",
        ),
        (["layers", "--step", "9"], "nothing was recorded of 'layers' with these filters in a.h5; its steps are 0"),
    ],
)
def test_show_finds_nothing(folder: Path, plain_run: Path, arguments: list[str], message: str) -> None:
    shutil.copy(plain_run, "a.h5")
    result = run("show", "a.h5", *arguments)
    assert (result.exit_code, result.stdout, result.stderr) == (3, "", f"Error: {message}\n")


def test_a_report_that_cannot_be_written(folder: Path) -> None:
    pair(net(), net())
    result = run("compare", "a.h5", "b.h5", "-o", "nowhere/r.json")
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr == "Error: cannot write nowhere/r.json: No such file or directory\n"


def test_info_of_a_run_without_a_complete_step(folder: Path) -> None:
    record(Path("a.h5"), phases="forward")
    with h5py.File("a.h5", "r+") as file:
        file["steps"].resize(0, axis=0)
        file.attrs["closed"] = False
    record(Path("b.h5"))
    message = "a.h5 has no complete step: its process was ended before the first was written, is still in it, or could not write it (is the disk full?)"
    for arguments in (["info", "a.h5"], ["show", "a.h5"], ["compare", "a.h5", "b.h5"], ["compare", "b.h5", "a.h5"]):
        result = run(*arguments)
        assert (result.exit_code, result.stdout, result.stderr) == (3, "", f"Error: {message}\n")


@pytest.mark.thorough
def test_as_a_program(folder: Path) -> None:
    pair(net(), net(wrong=[1]))
    environment = {**os.environ, "PYTHONPATH": str(Path(probe.__file__).parents[1])}
    command = [sys.executable, "-m", "probe.commands.cli", "compare", "a.h5", "b.h5"]
    done = subprocess.run(command, capture_output=True, check=False, env=environment)
    assert (done.returncode, done.stderr) == (1, b"")
    text = done.stdout.decode("utf-8")
    assert text == run("compare", "a.h5", "b.h5", width=None).stdout and "\x1b" not in text


# What is wrong in probe itself


@pytest.mark.parametrize("debug", [None, "1"])
@pytest.mark.parametrize(
    "error", [ValueError("planted\nhere"), RuntimeError("planted\nhere"), OSError("planted\nhere")]
)
def test_an_error_in_probe_itself_is_no_divergence(
    folder: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, debug: str | None
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise error

    pair(net(), net())
    monkeypatch.setattr("probe.comparing.compare", fails)
    environment = {} if debug is None else {"PROBE_DEBUG": debug}
    runner = runner_with(environment)
    for result in (
        run("compare", "a.h5", "b.h5", **environment),
        run("view", "a.h5", "b.h5", **environment),
        runner.invoke(compare_command, ["a.h5", "b.h5"]),
    ):
        assert (result.exit_code, result.stdout) == (3, "")
        assert ("Traceback (most recent call last):" in result.stderr) is bool(debug)
        if debug:
            assert "in fails" in result.stderr
            assert result.stderr.endswith(
                "\nError: this is an error in probe itself: please report it with the traceback above\n"
            )
            continue
        first, second, third = result.stderr.removesuffix("\n").split("\n")
        assert first == f"Error: {type(error).__name__}: planted"
        assert second.startswith("here (test_cli_errors.py, line ")
        assert third == (
            "this is an error in probe itself, not in the recordings: please report it with the traceback, which "
            "PROBE_DEBUG=1 prints"
        )


@pytest.mark.thorough
@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "gbk"])
def test_what_an_encoding_lacks_is_replaced(folder: Path, encoding: str) -> None:
    """The report has ≈, ✓ and →; the pipe of a Windows console or of LC_ALL=C has not."""
    pair(net(), net(wrong=[1]))
    done = subprocess.run(
        [sys.executable, "-m", "probe", "compare", "a.h5", "b.h5"],
        env={**os.environ, "PYTHONIOENCODING": encoding, "PYTHONPATH": str(Path(__file__).parents[2])}, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert b"DIVERGED" in done.stdout and b"?" in done.stdout


def test_an_error_is_red_in_a_terminal() -> None:
    result = CliRunner().invoke(compare_command, ["none.h5", "b.h5"], color=True)
    assert result.stderr == "\x1b[31m\x1b[1mError:\x1b[0m there is no file none.h5\n"
