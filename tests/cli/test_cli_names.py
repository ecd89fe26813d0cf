"""The commands: names that mean harm to the terminal, to a spreadsheet or to a file."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from pathlib import Path

import pytest
from rich.cells import cell_len

import probe
from probe.report.table import COLUMNS
from probe.report.text import plain
from tests.cli.running import WIDTHS, Net, Scale, layer, pair, run

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

    pair(make(1.0), make(0.5), task="tensor")


@pytest.mark.thorough
@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_names_are_shown_safely(folder: Path, kind: str) -> None:
    name = HOSTILE[kind]
    hostile_pair(name)
    found = probe.compare("a.h5", "b.h5")
    assert found.first_divergence is not None
    report = run("compare", "a.h5", "b.h5", width=None)
    shown = [
        run(*each, width=width) for width in WIDTHS for each in (["info", "a.h5"], ["show", "a.h5", "--limit", "0"])
    ]
    assert [result.exit_code for result in (report, *shown)] == [1, *[0] * len(shown)]
    laid_out = [(width, run("compare", "a.h5", "b.h5", width=width)) for width in WIDTHS]
    for width, result in laid_out:
        assert max(map(cell_len, result.stdout.splitlines())) <= width
    for result in (report, *shown, *(result for _, result in laid_out)):
        assert not _DANGEROUS.search(result.stdout), _DANGEROUS.findall(result.stdout)
        assert not result.stderr
    lines = report.stdout.splitlines()
    assert all(len(line) < 1000 for line in lines)
    assert sum(line.startswith("DIVERGED") for line in lines) == 1
    assert next(line for line in lines if line.startswith("  A ") and "parameters" not in line).startswith(
        f"  A {plain(name)}"[:60]
    )
    document = json.loads(run("compare", "a.h5", "b.h5", "--format", "json").stdout)
    assert document["first_divergence"]["a"][0]["path"] == found.first_divergence.path
    assert run("export", "tree", "a.h5").exit_code == 0
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
                      ["show", "--", name, "nothing"], ["export", "tree", "--", name]):  # fmt: skip
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
        ("x" * 201, "x" * 69 + "…" + "x" * 130),
        ("\x1b" * 201, "\\x1b" * 17 + "\\…1b" + "\\x1b" * 32),
    ],
)
def test_plain(text: str, shown: str) -> None:
    assert plain(text) == shown
