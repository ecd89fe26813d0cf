"""Who may import whom (docs/architecture.md), and what is imported only when it is needed."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.house.sources import PACKAGE, modules

LAYERS = [
    ["_version", "defaults", "errors", "messages", "notes", "origins"],
    ["damage", "dump_settings", "records", "scheduling"],
    ["checkpoints", "config", "numbers"],
    ["adapters", "targets"],
    ["store"],
    ["ranks", "structure"],
    ["mapping", "recorder", "settings"],
    ["matching", "recording", "session"],
    ["answer", "contents", "conversion", "dumps", "integrations", "reproducibility", "run"],
    ["compat", "verdict"],
    ["checks", "exports", "operations"],
    ["diagnosis"],
    ["comparing"],
    ["curve_comparison", "replaying"],
    ["report"],
    ["commands", "demo"],
    [""],
    ["testing", "__main__"],
]
"""folders, and modules that lie in none, by layer: each imports itself and layers above it in this list"""
UPWARDS = {
    ("notes", "report.words"), ("answer.why", "report.why"), ("answer.comparison", "report.table"), ("answer.comparison", "report.text"), ("answer.comparison", "report.again"), ("answer.comparison", "report.left_out"), ("answer.comparison", "report.notebook.answers"), ("answer.acceptance", "report.acceptance"),
    ("answer.comparison", "report.formats.saving"), ("answer.result", "report.formats.arrays"), ("recording", "report.formats.arrays"),
    ("answer.comparison", "report.plots"), ("answer.result", "report.notebook.answers"),
    ("answer.result", "report.notebook.tensors"), ("answer.result", "report.plots.pair"),
    ("recording", "report.notebook.recordings"), ("recording", "report.table"), ("recording", "report.plots.norms"), ("recording", "report.plots.one"), ("recording", "report.plots.graph"), ("recording", "report.formats.saving"),
    ("curve_comparison.result", "report.curves.plot"), ("curve_comparison.result", "report.curves.text"),
    ("curve_comparison.result", "report.curves.notebook"),
    ("checks.outcome", "report.checks"),
}  # fmt: skip
"""imports inside a function that may go up: a result offers its own table, its picture, what a notebook shows of it"""
CAPTURE = [
    "reproducibility", "numbers.slots", "numbers.buffers", "structure.blocks", "adapters", "recorder", "session",
    "ranks.layout.seen", "store.writing", "targets", "run", "integrations", "compat.msprobe",
]  # fmt: skip
COMPARE = [
    "ranks.reader", "mapping", "matching", "settings", "answer", "verdict", "diagnosis", "checks.overflow", "checks.data", "checks.initial", "recording", "report", "curve_comparison", "commands.map_commands",
    "commands.export_commands", "commands.cli", "demo", "compat.compare_json",
]  # fmt: skip
FRAMEWORKS = {"torch", "paddle", "mindspore"}
ONLY_INSIDE_FUNCTIONS = {"pandas", "pyarrow", "tensorboardX", "matplotlib", "IPython", "transformers", "xarray"}


def imports(tree: ast.AST, name: str = "") -> Iterator[str]:
    """Yield the full names of what is imported anywhere below a node."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{name} uses a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def at_import(tree: ast.Module) -> list[str]:
    """Return what is imported when the module is, by the statements outside of functions."""
    outside = [node for node in tree.body if not isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    return [full for node in outside for full in imports(node)]


def place(name: str) -> tuple[int, str]:
    """Return layer and unit of a module."""
    fitting = [
        (len(unit), layer, unit)
        for layer, units in enumerate(LAYERS)
        for unit in units
        if name == unit or name.startswith(f"{unit}.")
    ]
    assert fitting, f"probe.{name} has no layer: add it to tests/house/test_layers.py and docs/architecture.md"
    _, layer, unit = max(fitting)
    return layer, unit


@functools.cache
def ours(name: str) -> set[str]:
    """Return the modules of probe that a module imports, but for those of `UPWARDS`."""
    found = set()
    for full in imports(modules()[name], name):
        if full == "probe" or full.startswith("probe."):
            inner = full.removeprefix("probe").lstrip(".")
            other = inner if inner in modules() else inner.rpartition(".")[0]
            if (name, other) not in UPWARDS or full in at_import(modules()[name]):
                found.add(other)
    return found


def belongs(name: str, units: list[str]) -> bool:
    return any(name == unit or name.startswith(f"{unit}.") for unit in units)


def test_imports_go_down_the_layers() -> None:
    places = {name: place(name) for name in modules()}
    upwards = [
        f"probe.{name} must not import probe.{other}"
        for name, (layer, unit) in places.items()
        for other in ours(name)
        if not (places[other][0] < layer or places[other][1] == unit)
    ]
    assert upwards == []


def test_nothing_is_imported_in_a_circle() -> None:
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " → ".join([*path, name])
        if name not in done:
            for other in ours(name) - {name}:
                visit(other, (*path, name))
            done.add(name)

    for name in modules():
        visit(name, ())


@pytest.mark.parametrize(("one", "other"), [(CAPTURE, COMPARE), (COMPARE, CAPTURE)], ids=["recording", "comparison"])
def test_neither_half_imports_the_other(one: list[str], other: list[str]) -> None:
    half = [name for name in modules() if belongs(name, one)]
    assert half and [(name, each) for name in half for each in ours(name) if belongs(each, other)] == []


def test_frameworks_are_imported_by_their_adapters_alone() -> None:
    for name, tree in modules().items():
        top = {full.partition(".")[0] for full in imports(tree, name)}
        own = name.rpartition(".")[2] if name.startswith("integrations.") else ""
        """the library that an integration imports when it is imported itself"""
        assert not {each for each in top & FRAMEWORKS if not name.startswith(f"adapters.{each}")} - {own}, name
        assert not {full.partition(".")[0] for full in at_import(tree)} & ONLY_INSIDE_FUNCTIONS - {own}, name


def test_the_rules_see_what_they_should() -> None:
    """The tests above would pass on an empty list."""
    assert {"store.writing.writer", "recorder.recorder", "comparing", "adapters.torch.adapter", ""} <= set(modules())
    assert "store.writing.writer" in ours("recorder.recorder") and "store.reading.recorded_file" in ours(
        "store.reading.reader"
    )
    assert "torch" in {full.partition(".")[0] for full in imports(modules()["adapters.torch.adapter"])}
    assert place("numbers.sketch") < place("adapters.torch.adapter") < place("recorder.recorder") < place("session")


# ---- in a fresh process --------------------------------------------------------------------------------

WITHOUT_INIT = """
import sys, types
package = types.ModuleType("probe")
package.__path__ = [sys.argv[1]]
sys.modules["probe"] = package
"""
LOADED = "\nprint(*sorted(name for name in sys.modules if '.' not in name or name.startswith('probe.')))"


def loaded_after(code: str) -> set[str]:
    """Return the modules that are loaded after some code ran in a fresh process."""
    command = [sys.executable, "-c", f"import sys{code}{LOADED}", str(PACKAGE)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=PACKAGE.parent)
    return set(done.stdout.split())


def test_import_probe_loads_no_framework_and_no_plots() -> None:
    loaded = loaded_after("\nfrom probe import *\nimport probe.commands.cli")
    assert "probe.session" in loaded and "probe.commands.cli" in loaded
    assert not loaded & (FRAMEWORKS | ONLY_INSIDE_FUNCTIONS)


def test_recording_loads_nothing_of_comparison() -> None:
    code = "\nimport probe.session, tests.toy.adapter, tests.toy.nn"
    loaded = {name.removeprefix("probe.") for name in loaded_after(WITHOUT_INIT + code)}
    assert {"recorder", "store.writing.writer"} <= loaded
    assert not {name for name in loaded if belongs(name, COMPARE)}
    assert not loaded & {"click", "rich", *FRAMEWORKS}


def test_comparison_loads_nothing_of_recording() -> None:
    code = "\nimport probe.comparing, probe.report.text"
    loaded = {name.removeprefix("probe.") for name in loaded_after(WITHOUT_INIT + code)}
    assert {"matching", "store.reading.reader"} <= loaded
    assert not {name for name in loaded if belongs(name, CAPTURE)}
