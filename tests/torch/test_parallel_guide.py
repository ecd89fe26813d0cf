"""The program and the commands of docs/guide/parallel.md run as they stand there, and print what it shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import probe
from probe.mapping import load_mapping
from probe.ranks.dims.language import parsed
from tests.limits import HANGS

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "parallel.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(kind: str) -> list[str]:
    return [text for name, text in BLOCK.findall(GUIDE.read_text(encoding="utf-8")) if name == kind]


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder in which the commands have run, and what they printed."""
    folder = tmp_path_factory.mktemp("guide") / "work"
    folder.mkdir()
    (folder / "train.py").write_text(blocks("python")[0], encoding="utf-8")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", "COLUMNS": "100"}
    said = ""
    for command in (line[2:] for text in blocks("console") for line in text.splitlines()):
        done = subprocess.run(command, shell=True, cwd=folder, env=env, capture_output=True, text=True, timeout=HANGS)
        assert done.returncode == int("faulty.h5" in command and "compare" in command), done.stdout + done.stderr
        said += done.stdout
    return folder, said


def test_the_commands_print_what_the_page_shows(printed: tuple[Path, str]) -> None:
    _, said = printed
    lines = [" ".join(line.split()) for line in said.splitlines()]
    for text in blocks("text"):
        for line in text.splitlines():
            assert " ".join(line.split()) in lines
    assert "ALIGNED" in said and "ranks 2 of 2: tp 2" in " ".join(said.split())


def test_open_gives_whole_weights(printed: tuple[Path, str]) -> None:
    folder, _ = printed
    with probe.open(folder / "tp2.h5") as ranks, probe.open(folder / "one.h5") as one:
        for path in ("fc1", "fc2"):
            assert (ranks[path].param[0].values() == one[path].param[0].values()).all()


def test_the_dims_of_the_page_can_be_read() -> None:
    mapping = load_mapping(yaml.safe_load(blocks("yaml")[0]))
    assert len(mapping.dims) == 4
    assert [parsed(text).groups for _, text in mapping.dims] == [("tp",), (), ("tp",), ("tp",)]
