"""docs/reference/requirements.md: every row has commands that probe has and tests that are there."""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import re
import shlex
from pathlib import Path

import click
import pytest

import probe
from probe.commands.cli import main
from probe.run.command import _command as of_run

REPO = Path(__file__).parents[2]
PAGE = REPO / "docs" / "reference" / "requirements.md"
ROWS = [
    [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
    for line in PAGE.read_text(encoding="utf-8").splitlines()
    if re.match(r"\| \d", line)
]
CODE = re.compile(r"`([^`]+)`")


def lacking(text: str) -> str:
    """Return what of a command, or of a call, probe does not have; nothing if it has all."""
    text = text.replace("\\|", "|")
    if text.startswith("python -m probe.run "):
        return _of_command(shlex.split(text)[3:], of_run)
    return _of_command(shlex.split(text)[1:], main) if text.startswith("probe ") else _of_call(text)


def _of_command(words: list[str], command: click.Command) -> str:
    while isinstance(command, click.Group):
        name, *words = words
        found = command.get_command(click.Context(command), name)
        if found is None:
            return name
        command = found
    options = {option for parameter in command.params for option in parameter.opts}
    return next((word for word in words if word.startswith("-") and word not in options), "")


def _of_call(text: str) -> str:
    call = ast.parse(text, mode="eval").body
    assert isinstance(call, ast.Call), text
    names = ast.unparse(call.func).split(".")
    assert names[0] == "probe"
    found: object = probe
    for at, name in enumerate(names[1:], 1):
        if not hasattr(found, name) and inspect.ismodule(found):
            with contextlib.suppress(ModuleNotFoundError):
                importlib.import_module(".".join(names[: at + 1]))
        found = getattr(found, name, None)
        if found is None:
            return name
    assert callable(found)
    try:
        inspect.signature(found).bind(*call.args, **{str(each.arg): each.value for each in call.keywords})
    except TypeError as error:
        return str(error)
    return ""


def test_every_row_is_there_and_filled() -> None:
    assert [row[0] for row in ROWS] == [str(number) for number in range(1, 47)]
    assert [row[0] for row in ROWS if len(row) != 4 or not all(row)] == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_its_commands_are_those_that_probe_has(row: list[str]) -> None:
    commands = CODE.findall(row[2])
    assert commands
    assert [(text, lacking(text)) for text in commands if lacking(text)] == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_its_tests_are_there(row: list[str]) -> None:
    named = [text.partition("::") for text in CODE.findall(row[3])]
    assert named
    for file, _, name in named:
        assert (REPO / file).is_file(), file
        assert not name or re.search(rf"^def {name}\(", (REPO / file).read_text("utf-8"), re.MULTILINE), name


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("probe compare a.h5 b.h5 --noise a2.h5", ""),
        ("probe compare a.h5 --nois a2.h5", "--nois"),
        ("probe check wights a b", "wights"),
        ("probe.starts(model)", "starts"),
        ('probe.start(model, taks="norms")', "got an unexpected keyword argument 'taks'"),
    ],
)
def test_what_probe_does_not_have_is_noticed(text: str, expected: str) -> None:
    assert lacking(text) == expected
