"""The guides whose commands run in a folder of docs/examples."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.guides import GUIDES, assert_row, copied, not_in_files, rows_of, run_guide, said

EXAMPLES = {
    "stages": ("stages", ""),
    "../SKILL": ("stages", ""),
    "torch-to-mindspore": ("mindspore", "python train_mindspore.py --weights mindspore.ckpt"),
    "diffusion": ("diffusion", "python train.py"),
    "reinforcement": ("reinforcement", "python train.py"),
    "recommenders": ("recommenders", "python train.py"),
    "paconvert": ("paconvert", ""),
}
"""by page: the folder in which its commands run, and what takes the options of its table"""


@pytest.fixture
def paths(page: str, tmp_path: Path) -> tuple[Path, ...]:
    """Where a page's commands are found, beside those of the environment: PaConvert has one of its own."""
    if page != "paconvert" or shutil.which("paconvert"):
        return ()
    venv = tmp_path / "paconvert-venv"
    for command in (
        [sys.executable, "-m", "venv", venv],
        [venv / "bin/pip", "install", "-q", "--retries", "1", "--timeout", "20", "paconvert"],
    ):
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"PaConvert does not install here: {(done.stderr.splitlines() or ['?'])[-1]}")
    return (venv / "bin",)


@pytest.mark.thorough
@pytest.mark.parametrize("page", EXAMPLES)
def test_a_guide_prints_what_it_shows_and_its_faults_are_named(
    page: str, tmp_path: Path, paths: tuple[Path, ...]
) -> None:
    folder, program = copied(EXAMPLES[page][0], tmp_path), EXAMPLES[page][1]
    run_guide(GUIDES / f"{page}.md", folder, paths=paths)
    for number, row in enumerate(rows_of(GUIDES / f"{page}.md")):
        said(folder, shlex.split(f"{program} --out row{number}.h5 {row[0][1].strip('`')}"))
        assert_row(row, said(folder, ["probe", "compare", "a.h5", f"row{number}.h5"], status=1))


@pytest.mark.parametrize("page", EXAMPLES)
def test_the_code_that_a_guide_shows_is_that_of_its_example(page: str) -> None:
    assert not_in_files(GUIDES / f"{page}.md", EXAMPLES[page][0]) == []
