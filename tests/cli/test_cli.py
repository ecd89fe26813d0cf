"""The commands: what they print (golden files), what they write, how they end.

``OVERWRITE_GOLDEN=1 pytest tests/cli`` writes the golden files anew.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from rich.cells import cell_len

import probe
from probe._version import __version__
from probe.commands.cli import compare_command
from probe.report.table import COLUMNS
from tests.cli.running import WIDTHS, Half, Layer, Net, Scale, layer, net, pair, record, run, runner_with
from tests.golden_files import golden
from tests.toy import nn
from tests.toy.tensor import Tensor


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
    "aligned": (0, lambda: pair(net(), net()), []),
    "diverged-tensor": (1, lambda: pair(net(), net(wrong=[1]), task="tensor", steps=2), []),
    "diverged-statistics": (1, lambda: pair(net(), net(wrong=[1])), []),
    "other-weights": (1, lambda: pair(net(1), Net(**{"0": Layer(Scale(1, 1, 1), Scale(1, 4, 1))})), []),
    "several-weights": (1, lambda: pair(net(5), _with_other_weights(net(5))), ["--top", "1"]),
    "missing-layer": (1, lambda: pair(net(), net(without=1)), []),
    "mapped": (0, lambda: pair(net(2), Other(Scale)), ["-lm", "map.yaml"]),
    "mapped-extra-module": (1, lambda: pair(net(2), Other(Half)), ["-lm", "map.yaml"]),
    "undecided": (2, lambda: pair(net(2), Other(Scale)), ["--min-confidence", "1"]),
    "found": (0, lambda: pair(net(2), Other(Scale)), []),
    "structure": (2, lambda: pair(net(), net(), task="structure"), []),
}  # fmt: skip


def _with_other_weights(model: Net) -> Net:
    for found in list(model.layers)[1:4]:
        found.down.weight.data *= np.float32(1.5)
    return model


@pytest.mark.parametrize("scene", SCENES)
def test_the_report(folder: Path, scene: str) -> None:
    status, prepare, arguments = SCENES[scene]
    prepare()
    result = run("compare", "a.h5", "b.h5", *arguments, width=None)
    assert (result.exit_code, result.stderr) == (status, "")
    golden(f"compare-{scene}", result.stdout)
    alone = runner_with().invoke(compare_command, ["a.h5", "b.h5", *arguments])
    assert (alone.exit_code, alone.stdout) == (status, result.stdout), "probe-compare is probe compare"
    for width in WIDTHS:
        shown = run("compare", "a.h5", "b.h5", *arguments, width=width).stdout
        assert shown.splitlines()[0] == result.stdout.splitlines()[0], "the verdict comes first"
        assert max(map(cell_len, shown.splitlines())) <= width
        assert words(shown) == words(result.stdout), "nothing is cut where there is room"


def words(text: str) -> list[str]:
    """Return the words of a report, however it is wrapped."""
    return text.split()


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
    count = sum(line.startswith("    min ") for line in everything)
    assert few[:-1] == everything[: len(few) - 1] and sum(line.startswith("    min ") for line in few) == 3
    assert few[-1].rstrip() == f"{count - 3} more records: --limit 0 shows all"


def test_export(folder: Path) -> None:
    record(Path("a.h5"), task="tensor")
    result = run("export", "tree", "a.h5")
    assert result.exit_code == 0
    with h5py.File("a.h5") as file:
        count = int((file["records"]["tensor"] >= 0).sum())
        output = file["tree/step_0/micro_0/layers/1/up/call_0/forward/output.0"]
        assert output.shape == (2, 3)
    assert result.stdout == f"{count} names below /tree in a.h5\n"
    assert run("export", "tree", "a.h5").stdout == result.stdout, "twice is no error"
    assert probe.compare("a.h5", record(Path("b.h5"), task="tensor")).verdict == "aligned"
    assert run("export", "a.h5", "--tree").exit_code == 3


def test_export_without_values(folder: Path) -> None:
    record(Path("a.h5"))
    assert run("export", "tree", "a.h5").stdout == "0 names below /tree in a.h5\n"


# Formats


def test_json(folder: Path) -> None:
    pair(net(), net(wrong=[1]), task="tensor")
    result = run("compare", "a.h5", "b.h5", "--format", "json")
    assert (result.exit_code, result.stderr) == (1, "")
    document = json.loads(result.stdout)
    assert document == json.loads(json.dumps(probe.compare("a.h5", "b.h5").as_json()))
    assert document["first_divergence"]["a"][0]["path"] == "layers.1.up"
    assert document["first_divergence"]["metrics"]["norm_ratio"] == 0.5


def test_csv(folder: Path) -> None:
    pair(net(), net(wrong=[1]), task="tensor")
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
    pair(net(), net(wrong=[1]))
    result = run("compare", "a.h5", "b.h5", "-o", name)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"diverged; the report is in {name}\n"
    text = Path(name).read_text(encoding="utf-8")
    assert text == run("compare", "a.h5", "b.h5", "--format", kind, width=None).stdout
    if kind == "json":
        assert json.loads(text)["verdict"] == "diverged"


def test_a_file_whose_name_asks_for_no_known_format_is_not_written(folder: Path) -> None:
    pair(net(), net())
    result = run("compare", "a.h5", "b.h5", "-o", "r.xlsx")
    message = "Error: cannot tell the format of r.xlsx: expected .json, .csv, .parquet, .html, .txt, or --format\n"
    assert (result.exit_code, result.stdout, result.stderr) == (3, "", message)
    assert not Path("r.xlsx").exists()
    assert run("compare", "a.h5", "b.h5", "-o", "r.xlsx", "--format", "csv").exit_code == 0


def test_the_format_goes_before_the_name_of_the_file(folder: Path) -> None:
    pair(net(), net())
    assert run("compare", "a.h5", "b.h5", "--format", "csv", "-o", "r.json").exit_code == 0
    assert Path("r.json").read_text(encoding="utf-8").startswith("step,micro,phase,")


def test_colours_only_where_they_are_wanted(folder: Path) -> None:
    pair(net(), net(wrong=[1]))
    plain_text = run("compare", "a.h5", "b.h5").stdout
    assert "\x1b" not in plain_text
    coloured = run("compare", "a.h5", "b.h5", FORCE_COLOR="1", TERM="xterm-256color").stdout
    assert "\x1b[1;31mDIVERGED" in coloured
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == plain_text
    for arguments in (["info", "a.h5"], ["show", "a.h5"], ["compare", "a.h5", "b.h5", "--format", "json"]):
        assert "\x1b" not in run(*arguments).stdout
    run("compare", "a.h5", "b.h5", "-o", "r.txt", FORCE_COLOR="1", TERM="xterm-256color")
    assert Path("r.txt").read_text(encoding="utf-8") == run("compare", "a.h5", "b.h5", width=None).stdout
    without = run("compare", "a.h5", "b.h5", FORCE_COLOR="1", TERM="xterm-256color", NO_COLOR="1").stdout
    assert not re.search(r"\x1b\[[\d;]*(3[0-7]|9[0-7]|[34]8)[;m]", without), "NO_COLOR leaves bold at most"


# Options and exit status


def test_min_coverage_and_direction(folder: Path) -> None:
    pair(net(2), Other(Scale))
    assert run("compare", "a.h5", "b.h5", "--min-confidence", "1").exit_code == 2
    assert run("compare", "a.h5", "b.h5", "--min-confidence", "1", "--min-coverage", "0").exit_code == 0
    assert run("compare", "a.h5", "b.h5").exit_code == 0
    assert run("compare", "a.h5", "b.h5", "-lm", "map.yaml").exit_code == 0
    assert run("compare", "b.h5", "a.h5", "-lm", "map.yaml").exit_code == 0
    assert run("compare", "b.h5", "a.h5", "-lm", "map.yaml", "--map-direction", "b-to-a").exit_code == 0
    wrong = run("compare", "a.h5", "b.h5", "-lm", "map.yaml", "--map-direction", "b-to-a")
    assert wrong.exit_code == 3
    assert wrong.stderr == "Error: map.yaml: none of its 4 keys names a module of B:\n" + "".join(
        f"  the mapping's line {line}: {name}: only A has such modules, and the mapping is read from B\n"
        for line, name in ((1, "Net"), (5, "Layer"))
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
    assert result.exit_code == 3
    assert result.stdout == "" and "Usage:" in result.stderr and "Traceback" not in result.stderr


@pytest.mark.parametrize("command", ["compare", "info", "show", "export", "export tree", "export tensorboard"])
def test_help_has_an_example(command: str) -> None:
    *above, last = command.split()
    result = run(*above, last, "--help")
    assert result.exit_code == 0
    assert re.search(rf"Example: +probe {command} ", result.stdout)
    assert result.stdout == run(*above, last, "-h").stdout
    assert f"  {last} " in run(*above, "--help").stdout


def test_version() -> None:
    assert run("--version").stdout.rstrip().endswith(__version__)


@pytest.mark.parametrize(
    ("words", "expected"),
    [("probe comp", {"compare"}), ("probe compare --sched", {"--scheduler"}), ("probe check ov", {"overflow"})],
)
def test_completion_of_commands_and_options(words: str, expected: set[str]) -> None:
    """As a shell asks for it: `docs/guide/comparing.md`."""
    asked = {"_PROBE_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    command = [sys.executable, "-c", "from probe.commands.cli import main; main(prog_name='probe')"]
    done = subprocess.run(command, env={**os.environ, **asked}, capture_output=True, text=True, check=False)
    assert {line.partition(",")[2] for line in done.stdout.splitlines()} == expected, done.stderr


def test_the_package_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "probe", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"probe, version {__version__}\n"


def test_the_short_help_of_the_command_alone() -> None:
    alone = [runner_with().invoke(compare_command, [option]) for option in ("-h", "--help")]
    assert alone[0].exit_code == 0 and alone[0].stdout == alone[1].stdout != ""
