"""The commands: what they print (golden files), what they write, how they end, and names that mean harm.

``OVERWRITE_GOLDEN=1 pytest tests/test_cli.py`` writes the golden files anew.
"""

from __future__ import annotations

import csv
import inspect
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from click.testing import CliRunner, Result

import probe
from probe._version import __version__
from probe.adapters import numpy_nn as nn
from probe.adapters.numpy_tensor import Tensor
from probe.cli import compare_command, main
from probe.report.table import COLUMNS
from probe.report.text import plain

GOLDEN = Path(__file__).parent / "golden"
WIDTHS = [80, 120]


# A model whose numbers are the same on every machine: products and sums of a few bits


class Scale(nn.Module):
    def __init__(self, *weight: float) -> None:
        super().__init__(weight=nn.Parameter(np.array(weight, np.float32)))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


class Half(Scale):
    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight * 0.5


class Layer(nn.Module):
    def __init__(self, up: nn.Module, down: nn.Module) -> None:
        super().__init__(up=up, down=down)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.up(x))


class Net(nn.Module):
    """Layers, whatever their names are, one after the other."""

    def __init__(self, **layers: nn.Module) -> None:
        super().__init__(layers=nn.ModuleList(), head=Scale(0.5, 1.0, 2.0))
        vars(self.layers).update(layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def layer(number: int, *, up: type[Scale] = Scale) -> Layer:
    return Layer(up(1.0 + number, 0.5, 2.0), Scale(0.25, 1.0 + number, 1.5))


def net(count: int = 3, *, wrong: Sequence[int] = (), without: int | None = None) -> Net:
    kept = [number for number in range(count) if number != without]
    return Net(**{str(i): layer(n, up=Half if n in wrong else Scale) for i, n in enumerate(kept)})


def record(path: Path, model: nn.Module | None = None, *, steps: int = 1, **options: Any) -> Path:
    model = net() if model is None else model
    optimizer = nn.SGD(model.parameters(), lr=2.0**-14)
    x = Tensor(np.array([[1.0, -2.0, 0.5], [3.0, 0.25, -1.5]], np.float32))
    with probe.capture(model, path, **options):
        for _ in range(steps):
            loss = model(x).sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            probe.step(loss=loss)
    return path


# Running commands


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder of recordings the current one."""
    monkeypatch.chdir(tmp_path)
    for name in ("FORCE_COLOR", "NO_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture(scope="session")
def plain_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One recording for all tests that only look at it."""
    return record(tmp_path_factory.mktemp("plain") / "a.h5")


def runner_with(environment: dict[str, str] | None = None) -> CliRunner:
    """Return a runner that keeps stdout and stderr apart; click before 8.2 has to be told."""
    if "mix_stderr" in inspect.signature(CliRunner).parameters:
        return CliRunner(mix_stderr=False, env=environment)  # type: ignore[call-arg]
    return CliRunner(env=environment)


def run(*arguments: str | Path, width: int = 80, **environment: str) -> Result:
    runner = runner_with({"COLUMNS": str(width), **environment})
    result = runner.invoke(main, [str(each) for each in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def golden(name: str, text: str) -> None:
    """Hold a text against a golden file; run ids, times and versions are not part of it."""
    for pattern, put in ((r"\b[0-9a-f]{32}\b", "<run id>"), (r"\d{4}-\d\d-\d\dT[\d:]+[+-]\d+", "<time>"),
                         (rf"numpy {re.escape(np.__version__)}", "numpy <version>"),
                         (rf"probe {re.escape(__version__)}", "probe <version>")):  # fmt: skip
        text = re.sub(pattern, put, text)
    file = GOLDEN / f"{name}.txt"
    if os.environ.get("OVERWRITE_GOLDEN"):
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8"), f"OVERWRITE_GOLDEN=1 writes {file.name} anew"


# Golden files

TO_OTHER = "Net:\n  layers.0: first\n  layers.1: second\n  head: out\nLayer:\n  down: lower\n"


class Other(nn.Module):
    """Net with other names, and something more."""

    def __init__(self, extra: type[Scale]) -> None:
        super().__init__(first=_renamed(layer(0)), second=_renamed(layer(1)), adapter=extra(1.0, 1.0, 1.0),
                         out=Scale(0.5, 1.0, 2.0))  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.adapter(self.second(self.first(x))))


class _Renamed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + self.lower(self.up(x))


def _renamed(found: Layer) -> _Renamed:
    return _Renamed(up=found.up, lower=found.down)


SCENES: dict[str, tuple[int, Callable[[], None], list[str]]] = {
    "aligned": (0, lambda: _pair(net(), net()), []),
    "diverged-tensor": (1, lambda: _pair(net(), net(wrong=[1]), task="tensor", steps=2), []),
    "diverged-statistics": (1, lambda: _pair(net(), net(wrong=[1])), []),
    "other-weights": (1, lambda: _pair(net(1), Net(**{"0": Layer(Scale(1, 1, 1), Scale(1, 4, 1))})), []),
    "several-weights": (1, lambda: _pair(net(5), _with_other_weights(net(5))), ["--top", "1"]),
    "missing-layer": (1, lambda: _pair(net(), net(without=1)), []),
    "mapped": (0, lambda: _pair(net(2), Other(Scale)), ["-lm", "map.yaml"]),
    "mapped-extra-module": (1, lambda: _pair(net(2), Other(Half)), ["-lm", "map.yaml"]),
    "undecided": (2, lambda: _pair(net(2), Other(Scale)), []),
    "structure": (2, lambda: _pair(net(), net(), task="structure"), []),
}  # fmt: skip


def _with_other_weights(model: Net) -> Net:
    for found in list(model.layers)[1:4]:
        found.down.weight.data *= np.float32(1.5)
    return model


def _pair(a: nn.Module, b: nn.Module, **options: Any) -> None:
    record(Path("a.h5"), a, **options)
    record(Path("b.h5"), b, **options)
    Path("map.yaml").write_text(TO_OTHER, encoding="utf-8")


@pytest.mark.parametrize("scene", SCENES)
def test_the_report(folder: Path, scene: str) -> None:
    status, prepare, arguments = SCENES[scene]
    prepare()
    results = [run("compare", "a.h5", "b.h5", *arguments, width=width) for width in WIDTHS]
    assert [result.exit_code for result in results] == [status, status]
    assert results[0].stdout == results[1].stdout, "the terminal wraps it, so that it can be copied"
    assert results[0].stderr == ""
    golden(f"compare-{scene}", results[0].stdout)
    alone = runner_with().invoke(compare_command, ["a.h5", "b.h5", *arguments])
    assert (alone.exit_code, alone.stdout) == (status, results[0].stdout), "probe-compare is probe compare"


@pytest.mark.parametrize("width", WIDTHS)
def test_info(folder: Path, width: int) -> None:
    record(Path("a.h5"), steps=3, task="tensor")
    result = run("info", "a.h5", width=width)
    assert (result.exit_code, result.stderr) == (0, "")
    assert all(len(line.rstrip()) <= width for line in result.stdout.splitlines())
    text = "\n".join(line.rstrip() for line in result.stdout.splitlines()) + "\n"
    golden(f"info-{width}", re.sub(r"\d+\.\d MiB", "<size> MiB", text))


@pytest.mark.parametrize("width", WIDTHS)
def test_show(folder: Path, width: int) -> None:
    record(Path("a.h5"), steps=2, task="tensor")
    result = run("show", "a.h5", "layers.1*", "--phase", "forward", "--step", "1", width=width)
    assert (result.exit_code, result.stderr) == (0, "")
    golden("show", "\n".join(line.rstrip() for line in result.stdout.splitlines()) + "\n")


def test_show_by_class_and_limit(folder: Path) -> None:
    record(Path("a.h5"))
    everything = run("show", "a.h5", "--limit", "0").stdout.splitlines()
    scales = run("show", "a.h5", "Scale", "--limit", "0").stdout.splitlines()
    assert 1 < len(scales) < len(everything)
    assert not any("(root)" in line for line in scales)
    few = run("show", "a.h5", "--limit", "3").stdout.splitlines()
    assert [line.split() for line in few[:4]] == [line.split() for line in everything[:4]]
    assert few[4].rstrip() == f"{len(everything) - 4} more rows: --limit 0 shows all"


def test_export(folder: Path) -> None:
    record(Path("a.h5"), task="tensor")
    result = run("export", "a.h5", "--tree")
    assert result.exit_code == 0
    with h5py.File("a.h5") as file:
        count = int((file["records"]["tensor"] >= 0).sum())
        output = file["tree/step_0/micro_0/layers/1/up/call_0/forward/output.0"]
        assert output.shape == (2, 3)
    assert result.stdout == f"{count} names below /tree in a.h5\n"
    assert run("export", "a.h5", "--tree").stdout == result.stdout, "twice is no error"
    assert probe.compare("a.h5", record(Path("b.h5"), task="tensor")).verdict == "aligned"
    assert run("export", "a.h5").exit_code == 2


def test_export_without_values(folder: Path) -> None:
    record(Path("a.h5"))
    assert run("export", "a.h5", "--tree").stdout == "0 names below /tree in a.h5\n"


# Formats


def test_json(folder: Path) -> None:
    _pair(net(), net(wrong=[1]), task="tensor")
    result = run("compare", "a.h5", "b.h5", "--format", "json")
    assert (result.exit_code, result.stderr) == (1, "")
    document = json.loads(result.stdout)
    assert document == json.loads(json.dumps(probe.compare("a.h5", "b.h5").as_json()))
    assert document["first_divergence"]["a"][0]["path"] == "layers.1.up"
    assert document["first_divergence"]["metrics"]["norm_ratio"] == 0.5


def test_csv(folder: Path) -> None:
    _pair(net(), net(wrong=[1]), task="tensor")
    result = run("compare", "a.h5", "b.h5", "--format", "csv")
    assert (result.exit_code, result.stderr) == (1, "")
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert list(rows[0]) == COLUMNS
    found = probe.compare("a.h5", "b.h5")
    assert len(rows) == len(found.slots)
    (wrong,) = [row for row in rows if row["verdict"] == "introduced"]
    assert (wrong["path_a"], wrong["phase"], wrong["role"], wrong["slot_a"]) == (
        "layers.1.up",
        "forward",
        "output",
        "0",
    )
    assert (float(wrong["norm_ratio"]), wrong["estimated"], wrong["shape_a"]) == (0.5, "False", "[2, 3]")
    assert {row["max_abs_at"] for row in rows if row["status"] == "equal"} == {""}


@pytest.mark.parametrize(
    ("name", "kind"), [("r.json", "json"), ("r.csv", "csv"), ("r.txt", "text"), ("report", "text"), ("r.JSON", "json")]
)
def test_a_report_in_a_file(folder: Path, name: str, kind: str) -> None:
    _pair(net(), net(wrong=[1]))
    result = run("compare", "a.h5", "b.h5", "-o", name)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"diverged; the report is in {name}\n"
    text = Path(name).read_text(encoding="utf-8")
    assert text == run("compare", "a.h5", "b.h5", "--format", kind).stdout
    if kind == "json":
        assert json.loads(text)["verdict"] == "diverged"


def test_a_file_whose_name_asks_for_no_known_format_is_not_written(folder: Path) -> None:
    _pair(net(), net())
    result = run("compare", "a.h5", "b.h5", "-o", "r.xlsx")
    message = "Error: cannot tell the format of r.xlsx: expected .json, .csv, .txt, or --format\n"
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", message)
    assert not Path("r.xlsx").exists()
    assert run("compare", "a.h5", "b.h5", "-o", "r.xlsx", "--format", "csv").exit_code == 0


def test_the_format_goes_before_the_name_of_the_file(folder: Path) -> None:
    _pair(net(), net())
    assert run("compare", "a.h5", "b.h5", "--format", "csv", "-o", "r.json").exit_code == 0
    assert Path("r.json").read_text(encoding="utf-8").startswith("step,micro,phase,")


def test_colours_only_where_they_are_wanted(folder: Path) -> None:
    _pair(net(), net(wrong=[1]))
    plain_text = run("compare", "a.h5", "b.h5").stdout
    assert "\x1b" not in plain_text
    coloured = run("compare", "a.h5", "b.h5", FORCE_COLOR="1", TERM="xterm-256color").stdout
    assert "\x1b[1;31mDIVERGED" in coloured
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == plain_text
    for arguments in (["info", "a.h5"], ["show", "a.h5"], ["compare", "a.h5", "b.h5", "--format", "json"]):
        assert "\x1b" not in run(*arguments).stdout
    run("compare", "a.h5", "b.h5", "-o", "r.txt", FORCE_COLOR="1", TERM="xterm-256color")
    assert Path("r.txt").read_text(encoding="utf-8") == plain_text


# Options and exit status


def test_min_coverage_and_direction(folder: Path) -> None:
    _pair(net(2), Other(Scale))
    assert run("compare", "a.h5", "b.h5").exit_code == 2
    assert run("compare", "a.h5", "b.h5", "--min-coverage", "0").exit_code == 0
    assert run("compare", "a.h5", "b.h5", "-lm", "map.yaml").exit_code == 0
    assert run("compare", "b.h5", "a.h5", "-lm", "map.yaml").exit_code == 0
    assert run("compare", "b.h5", "a.h5", "-lm", "map.yaml", "--map-direction", "b-to-a").exit_code == 0
    wrong = run("compare", "a.h5", "b.h5", "-lm", "map.yaml", "--map-direction", "b-to-a")
    assert wrong.exit_code == 2
    assert wrong.stderr.startswith(
        "Error: map.yaml: none of its 4 keys names a module of B:\n"
        "  the mapping's line 1: Net: only A has such modules, and the mapping is read from B\n"
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["compare", "a.h5"],
        ["compare", "a.h5", "b.h5", "--min-coverage", "2"],
        ["compare", "a.h5", "b.h5", "--format", "xml"],
        ["compare", "a.h5", "b.h5", "--map-direction", "left"],
        ["compare", "a.h5", "b.h5", "-o", "."],
        ["compair", "a.h5", "b.h5"],
        ["info"],
    ],
    ids=" ".join,
)
def test_wrong_usage(folder: Path, arguments: list[str]) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stdout == "" and "Usage:" in result.stderr and "Traceback" not in result.stderr


@pytest.mark.parametrize("command", ["compare", "info", "show", "export"])
def test_help_has_an_example(command: str) -> None:
    result = run(command, "--help")
    assert result.exit_code == 0
    assert re.search(rf"Example: +probe {command} ", result.stdout)
    assert result.stdout == run(command, "-h").stdout
    assert f"  {command} " in run("--help").stdout


def test_version() -> None:
    assert run("--version").stdout.rstrip().endswith(__version__)


# What goes wrong


def _not_hdf5(path: Path) -> None:
    path.write_text("not a recording", encoding="utf-8")


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


BAD_FILES: dict[str, tuple[Callable[[Path], None], str]] = {
    "missing": (lambda path: None, r"there is no file bad\.h5"),
    "a folder": (lambda path: path.mkdir(), r"there is no file bad\.h5"),
    "not HDF5": (_not_hdf5, r"bad\.h5 is not an HDF5 file, or is truncated \(.*\)"),
    "empty": (lambda path: path.write_bytes(b"") and None, r"bad\.h5 is not an HDF5 file, or is truncated \(.*\)"),
    "of another program": (_foreign, r"bad\.h5 is an HDF5 file, but not a recording of probe"),
    "of a newer format": (_newer, r"bad\.h5 has format 99, this probe reads up to format 1: upgrade probe-align"),
    "cut off": (_cut_off, r"bad\.h5 .*"),
}


@pytest.mark.parametrize("kind", BAD_FILES)
@pytest.mark.parametrize(
    "command", [["compare", "bad.h5", "a.h5"], ["compare", "a.h5", "bad.h5"], ["info", "bad.h5"], ["show", "bad.h5"],
                ["export", "--tree", "bad.h5"]], ids=" ".join,
)  # fmt: skip
def test_files_that_cannot_be_read(folder: Path, plain_run: Path, kind: str, command: list[str]) -> None:
    make, message = BAD_FILES[kind]
    shutil.copy(plain_run, "a.h5")
    make(Path("bad.h5"))
    result = run(*command)
    assert (result.exit_code, result.stdout) == (2, "")
    assert re.fullmatch(f"Error: {message}\n", result.stderr), result.stderr


def test_errors_of_probe_compare_are_a_line_too(folder: Path) -> None:
    result = runner_with().invoke(compare_command, ["none.h5", "none.h5"])
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", "Error: there is no file none.h5\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Net: [a]\n", "map.yaml, line 1: expected paths below Net, got a list"),
        ("Net:\n  a: {b\n", "map.yaml, line 2: not valid YAML (expected ',' or '}', but got '<stream end>')"),
        ("Nothing:\n  a: b\n", "map.yaml: none of its 1 keys names a module of either side:\n"
         "  the mapping's line 1: Nothing: no module is of this class"),
        ("Net:\n  head: layers.0\n  layers.0: layers.0\n",
         "map.yaml, line 2: Net: head: layers.0 is already the counterpart of layers.0; where several "
         "modules are one on the other side, write the file from that side, with a list"),
    ],
    ids=["wrong types", "syntax", "fits nothing", "one target twice"],
)  # fmt: skip
def test_mappings_that_cannot_be_used(folder: Path, text: str, message: str) -> None:
    _pair(net(), net())
    Path("map.yaml").write_text(text, encoding="utf-8")
    result = run("compare", "a.h5", "b.h5", "-lm", "map.yaml")
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", f"Error: {message}\n")


def test_a_mapping_that_is_not_there(folder: Path) -> None:
    _pair(net(), net())
    result = run("compare", "a.h5", "b.h5", "-lm", "megatron-core/qwen")
    assert result.exit_code == 2
    assert re.search(
        r"^Error: there is no layer mapping megatron-core/qwen: .*did you mean megatron-core/qwen2", result.stderr
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
        (["layers", "--step", "9"], "nothing was recorded of 'layers' with these filters in a.h5"),
    ],
)
def test_show_finds_nothing(folder: Path, plain_run: Path, arguments: list[str], message: str) -> None:
    shutil.copy(plain_run, "a.h5")
    result = run("show", "a.h5", *arguments)
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", f"Error: {message}\n")


def test_a_report_that_cannot_be_written(folder: Path) -> None:
    _pair(net(), net())
    result = run("compare", "a.h5", "b.h5", "-o", "nowhere/r.json")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "Error: cannot write nowhere/r.json: No such file or directory\n"


def test_info_of_a_run_without_a_complete_step(folder: Path) -> None:
    record(Path("a.h5"), phases="forward")
    with h5py.File("a.h5", "r+") as file:
        file["steps"].resize(0, axis=0)
        file.attrs["closed"] = False
    record(Path("b.h5"))
    message = "a.h5 has no complete step: its process was ended in the first one, or is still in it"
    for arguments in (["info", "a.h5"], ["show", "a.h5"], ["compare", "a.h5", "b.h5"], ["compare", "b.h5", "a.h5"]):
        result = run(*arguments)
        assert (result.exit_code, result.stdout, result.stderr) == (2, "", f"Error: {message}\n")


def test_as_a_program(folder: Path) -> None:
    _pair(net(), net(wrong=[1]))
    environment = {**os.environ, "PYTHONPATH": str(Path(probe.__file__).parents[1])}
    command = [sys.executable, "-m", "probe.cli", "compare", "a.h5", "b.h5"]
    done = subprocess.run(command, capture_output=True, check=False, env=environment)
    assert (done.returncode, done.stderr) == (1, b"")
    text = done.stdout.decode("utf-8")
    assert text == run("compare", "a.h5", "b.h5").stdout and "\x1b" not in text


# Names that mean harm

HOSTILE = {
    "control characters": "a\x1b[31mred\x07\r\x08\x7f\x9b31m",
    "new lines": "a\nDIVERGED  nothing\r\n\x0b\x0c\x85b",
    "10,000 characters": "x" * 10_000,
    "from right to left": "a\u202egnorw\u2066\u200f\u061cb",
    "invisible": "a\u200b\u2028\u2029\ufeff\u00ad\u200db",
    "emoji": "🤖👩‍👩‍👧",
    "markup": "[bold red]x[/bold red][/] [link=file:///etc/passwd]y",
    "emoji codes": ":smile: :boom:",
    "a formula": "=cmd|' /C calc'!A0",
    "another formula": "@SUM(1+1)*cmd",
    "a third formula": "+1-1",
    "a tab in front": "\t=1+1",
    "separators": 'a,b;"c"\'d`$(e)&|<script>',
    "slashes": "../../etc/passwd",
    "percent": "%2F%s%n{0}{x.__class__}",
    "NUL": "a\0b",
    "a lone surrogate": "a\udc80b",
    "nothing but blanks": "   ",
}
_DANGEROUS = re.compile(
    r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)


def hostile_pair(name: str) -> None:
    """Record two models in which the module, its class and its input have such a name, and are at fault."""

    def make(factor: float) -> Net:
        kind = type(
            name.replace("\0", "").encode("utf-8", "replace").decode(),
            (Scale,),
            {"forward": lambda s, **given: given[name] * s.weight * factor},
        )
        wrong = kind(1.0, 2.0, 0.5)
        model = Net(**{"0": layer(0)})
        vars(model)[name] = wrong
        model.__class__ = type("Net", (Net,), {"forward": lambda s, x: s.head(wrong(**{name: s.layers(x)}))})
        return model

    _pair(make(1.0), make(0.5), task="tensor")


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_names_are_shown_safely(folder: Path, kind: str) -> None:
    name = HOSTILE[kind]
    hostile_pair(name)
    found = probe.compare("a.h5", "b.h5")
    assert found.first_divergence is not None
    report = run("compare", "a.h5", "b.h5")
    shown = [
        run(*each, width=width) for width in WIDTHS for each in (["info", "a.h5"], ["show", "a.h5", "--limit", "0"])
    ]
    assert [result.exit_code for result in (report, *shown)] == [1, 0, 0, 0, 0]
    for result in (report, *shown):
        assert not _DANGEROUS.search(result.stdout), _DANGEROUS.findall(result.stdout)
        assert not result.stderr
    lines = report.stdout.splitlines()
    assert all(len(line) < 1000 for line in lines)
    assert sum(line.startswith("DIVERGED") for line in lines) == 1
    assert next(line for line in lines if line.startswith("  A ")).startswith(f"  A {plain(name)}"[:60])
    document = json.loads(run("compare", "a.h5", "b.h5", "--format", "json").stdout)
    assert document["first_divergence"]["a"][0]["path"] == found.first_divergence.path
    assert run("export", "a.h5", "--tree").exit_code == 0
    assert run("compare", "a.h5", "b.h5", "-o", "r.csv").exit_code == 1
    assert_safe_csv(Path("r.csv").read_text(encoding="utf-8"))


def assert_safe_csv(text: str) -> None:
    rows = list(csv.reader(io.StringIO(text)))
    assert {len(row) for row in rows} == {len(COLUMNS)}
    cells = {cell for row in rows for cell in row}
    assert not [
        cell for cell in cells if re.match(r"[=+\-@\t\r\n]", cell) and not re.fullmatch(r"-?[\d.e+-]+|-?inf", cell)
    ]
    assert not re.search(r"[\x00-\x09\x0b\x0c\x0e-\x1f\x7f-\x9f]", text), "a terminal would obey"
    paths = {row[COLUMNS.index("path_a")] for row in rows[1:]}
    assert len(paths) == 7, "no two modules are shown as one"


@pytest.mark.parametrize(
    "name", ["a\nb.h5", "a\x1b[2Jb.h5", "a\u202eb.h5", "[red]b[bold].h5", "=b.h5", "-b.h5", "b" * 200 + ".h5", "🤖.h5"]
)
def test_hostile_names_of_files(folder: Path, plain_run: Path, name: str) -> None:
    shutil.copy(plain_run, "a.h5")
    shutil.copy(plain_run, name)
    for arguments in (["compare", "a.h5", "--", name], ["info", "--", name], ["compare", "--", name, name],
                      ["show", "--", name, "nothing"], ["export", "--tree", "--", name]):  # fmt: skip
        result = run(*arguments)
        assert not _DANGEROUS.search(result.stdout + result.stderr), repr(result.output)
        assert len(result.output) < 20_000


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("layers.0", "layers.0"),
        ("a\x1b[31m\n\t\x7f\x9b", "a\\x1b[31m\\x0a\\x09\\x7f\\x9b"),
        ("a\u202eb\u2066\u200f", "a\\u202eb\\u2066\\u200f"),
        ("a\u2028b\ufeff\u200b", "a\\u2028b\\ufeff\\u200b"),
        ("a\udc80b", "a\\udc80b"),
        ("λ → 🤖", "λ → 🤖"),
        ("x" * 200, "x" * 200),
        ("x" * 201, "x" * 199 + "…"),
        ("\x1b" * 201, "\\x1b" * 49 + "\\x1…"),
    ],
)
def test_plain(text: str, shown: str) -> None:
    assert plain(text) == shown
