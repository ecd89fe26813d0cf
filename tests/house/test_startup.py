"""What is loaded when: importing probe, asking for help, comparing two recordings. Each in a fresh process."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import subprocess
import sys
from pathlib import Path

import click
import pytest

import probe
from probe.answer.presets import PRESETS
from probe.commands.cli import main
from probe.defaults import PRESET_NAMES
from tests.cli.running import record
from tests.house.test_layers import belongs

HEAVY = {
    "numpy", "h5py", "rich", "yaml", "ml_dtypes", "xxhash", "torch", "paddle", "mindspore", "pandas", "matplotlib",
    "http", "ssl", "html", "email", "tempfile", "webbrowser", "json", "subprocess", "inspect",
}  # fmt: skip
FOR_HELP = {
    "probe",
    "probe._version",
    "probe.commands",
    "probe.commands.cli",
    "probe.defaults",
    "probe.errors",
    "probe.commands.shared",
}
NOT_TO_COMPARE = [
    "session", "recorder", "recording", "store.writing.writer", "reproducibility", "conversion", "checkpoints",
    "curve_comparison", "report.serving", "commands.map_commands", "commands.export_commands", "report.tensorboard", "dumps.importing",
    "report.html", "report.notebook", "report.plots", "report.formats", "report.inspect", "report.checks", "checks", "commands.check_commands",
]  # fmt: skip
WHERE_IT_IS_ASKED_FOR = [
    "ranks.reader", "ranks.dims", "ranks.gathering", "ranks.joining", "ranks.elsewhere",
    "mapping.parsing", "mapping.reading", "mapping.judging_files", "settings.table", "settings.comparing", "answer.settings",
    "answer.acceptance", "answer.presets", "diagnosis.accepting", "verdict.noise.fixed",
    "verdict.ahead", "scheduling", "report.acceptance",
]  # fmt: skip
"""ranks, a mapping, settings that differ, a preset, tolerances, further runs, a scheduler"""
WHERE_SOMETHING_IS_FOUND = [
    "report.branch", "matching.automatic.outline", "matching.automatic.completing", "matching.automatic.weights.packing",
    "diagnosis.choosing", "diagnosis.table", "diagnosis.optimizer.naming", "matching.automatic.line",
    "matching.automatic.regions",
]  # fmt: skip
CALL = """
import io, sys
from contextlib import redirect_stdout
import probe.commands.cli
with redirect_stdout(io.StringIO()):
    try:
        getattr(probe.commands.cli, {command!r})({words!r})
    except SystemExit as left:
        assert left.code == {status}, left.code
"""


def loaded_after(code: str) -> set[str]:
    """Return what a fresh process has loaded after some code, beyond what Python itself had."""
    code = f"import sys; before = set(sys.modules)\n{code}\nprint(*sorted(set(sys.modules) - before))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2]
    )
    return set(done.stdout.split())


def ours(loaded: set[str]) -> set[str]:
    return {name for name in loaded if name.partition(".")[0] == "probe"}


def loaded_by(words: list[str], command: str = "main", status: int = 0) -> set[str]:
    """Return what a command loads."""
    return loaded_after(CALL.format(command=command, words=words, status=status))


# ---- import probe --------------------------------------------------------------------------------------


def test_importing_probe_loads_nothing_else() -> None:
    loaded = loaded_after("import probe")
    assert ours(loaded) == {"probe", "probe._version"}
    assert not loaded & HEAVY


def test_a_public_name_loads_what_it_needs_when_it_is_first_used() -> None:
    loaded = ours(loaded_after("import probe; probe.start; assert 'start' in vars(probe)"))
    assert {"probe.session", "probe.recorder"} <= loaded
    assert not [name for name in loaded if belongs(name.removeprefix("probe."), ["verdict", "matching", "report"])]


def test_type_checkers_see_what_is_loaded() -> None:
    tree = ast.parse(inspect.getsource(probe))
    block = next(node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    seen = {
        alias.asname or alias.name: f"{node.module.removeprefix('probe.')}:{alias.name}"
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == probe._HOMES
    assert {"__version__", *probe._HOMES} == set(probe.__all__)


def test_modules_are_there_without_being_imported_by_name() -> None:
    loaded_after("import probe; assert issubclass(probe.errors.MappingError, probe.errors.ProbeError)")
    loaded_after("import probe; probe.session.start; assert probe.session.start is probe.start")


def test_other_names_are_errors() -> None:
    assert not hasattr(probe, "comparee")
    with pytest.raises(AttributeError, match="module 'probe' has no attribute 'comparee'"):
        probe.comparee  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'comparee' from 'probe'"):
        from probe import comparee  # noqa: F401


def test_a_missing_dependency_is_named() -> None:
    code = """
import probe
sys.modules["h5py"] = None
try:
    probe.recording
except ModuleNotFoundError as error:
    assert error.name == "h5py", error
else:
    raise AssertionError
"""
    loaded_after(code)


def test_every_public_name_is_listed_before_it_is_loaded() -> None:
    loaded_after("import probe; assert set(probe.__all__) <= set(dir(probe))")


# ---- commands ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["compare", "view", "info", "show", "convert", ""])
def test_help_loads_no_more_than_its_command(command: str) -> None:
    loaded = loaded_by([*command.split(), "--help"])
    assert ours(loaded) == FOR_HELP
    assert not loaded & (HEAVY - {"inspect"})  # click needs it


def test_probe_compare_help_is_the_same() -> None:
    loaded = loaded_by(["--help"], "compare_command")
    assert ours(loaded) == FOR_HELP
    assert not loaded & (HEAVY - {"inspect"})


def test_commands_of_other_modules_have_their_own_words() -> None:
    context = click.Context(main)
    shown = {name: main.commands[name].help for name in main.list_commands(context)}
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        assert command is not None and command.name == name
        assert (command.help or "").startswith(shown[name] or "?"), name
    assert {"compare", "convert", "curves", "export", "info", "map", "show", "view"} <= set(shown)


def test_unknown_commands_are_errors() -> None:
    assert main.get_command(click.Context(main), "comparee") is None


def test_names_of_presets_are_those_of_the_tables() -> None:
    assert tuple(PRESETS) == PRESET_NAMES


@pytest.mark.thorough
def test_comparing_loads_what_comparing_needs(tmp_path: Path) -> None:
    a, b = record(tmp_path / "a.h5"), record(tmp_path / "b.h5")
    everything = loaded_by([str(a), str(b)], "compare_command")
    loaded = {name.removeprefix("probe.") for name in ours(everything)}
    assert "comparing" in loaded
    assert not {"multiprocessing", "concurrent.futures.process", "yaml"} & everything
    apart = [*NOT_TO_COMPARE, *WHERE_IT_IS_ASKED_FOR, *WHERE_SOMETHING_IS_FOUND]
    assert not [name for name in loaded if belongs(name, apart)]


@pytest.mark.thorough
def test_what_is_asked_for_is_loaded_for_it(tmp_path: Path) -> None:
    a, b = record(tmp_path / "a.h5"), record(tmp_path / "b.h5")
    options = [
        "--rtol",
        "1e-3",
        "--preset",
        PRESET_NAMES[0],
        "-lm",
        "megatron-core/qwen2",
        "--resume",
        str(tmp_path / "found"),
    ]
    loaded = {name.removeprefix("probe.") for name in ours(loaded_by([str(a), str(b), *options], "compare_command"))}
    assert {"verdict.noise.fixed", "mapping.parsing", "verdict.ahead"} <= loaded
    assert not [name for name in loaded if belongs(name, NOT_TO_COMPARE)]


def test_the_names_above_are_modules() -> None:
    """Else nothing would be looked for."""
    for name in (*NOT_TO_COMPARE, *WHERE_IT_IS_ASKED_FOR, *WHERE_SOMETHING_IS_FOUND):
        assert importlib.util.find_spec(f"probe.{name}") is not None, name
