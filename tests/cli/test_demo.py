"""The two recordings that come with probe, and `probe demo`; ``OVERWRITE_GOLDEN=1`` writes the README's answer anew."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import h5py
import pytest

import probe
from probe.answer.result import Kind, Verdict
from probe.demo import FOLDER, MAPPING, RECORDINGS
from probe.records import Phase
from probe.store.schema import VERSION

README = Path(__file__).parents[2] / "README.md"
FRAMEWORKS = ("torch", "paddle", "mindspore", "transformers")
WITHOUT_FRAMEWORKS = f"""
import sys
sys.modules.update(dict.fromkeys({FRAMEWORKS}))  # an import of any of them fails
from probe.commands.cli import main
main(sys.argv[1:], prog_name="probe")
"""


@pytest.mark.parametrize("mapping", [MAPPING, None])
def test_the_planted_fault_is_named(mapping: str | None) -> None:
    result = probe.compare(*(FOLDER / name for name in RECORDINGS), mapping)
    first = result.first_divergence
    assert result.verdict is Verdict.DIVERGED and first is not None
    assert (first.phase, first.kind) == (Phase.FORWARD, Kind.INTRODUCED)
    assert [node.path for node in first.a] == ["model.layers.3.post_attention_layernorm"]
    assert [node.path for node in first.b] == ["decoder.layers.3.pre_mlp_layernorm"]


def test_the_recordings_are_small_and_of_the_present_format() -> None:
    assert sum((FOLDER / name).stat().st_size for name in RECORDINGS) < 1_000_000
    for name in RECORDINGS:
        with h5py.File(FOLDER / name) as file:
            assert file.attrs["version"] == VERSION, "run scripts/demo-recordings"


def test_it_ends_with_status_0_and_needs_no_framework_and_writes_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_FRAMEWORKS, "demo"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "decoder.layers.3.pre_mlp_layernorm" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_it_prints_commands_that_can_be_run() -> None:
    done = subprocess.run([sys.executable, "-m", "probe", "demo"], capture_output=True, text=True, check=True)
    ours, theirs = done.stdout.split("DIVERGED", 1)
    beyond = [
        line
        for line in (ours + theirs[theirs.index("That is where") :]).splitlines()
        if len(line) > 80 and "$ cd" not in line
    ]
    assert not beyond
    commands = [line.removeprefix("$ ") for line in done.stdout.splitlines() if line.startswith("$ ")]
    assert commands[0] == f"cd {FOLDER}"
    program, *arguments = commands[1].split()
    assert program == "probe-compare"
    again = subprocess.run(
        [sys.executable, "-m", "probe", "compare", *arguments], cwd=FOLDER, capture_output=True, text=True, check=False
    )
    assert again.returncode == 1
    assert again.stdout in done.stdout


def test_the_readme_shows_how_it_begins() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "probe", "compare", *RECORDINGS, "-lm", MAPPING],
        cwd=FOLDER, env={**os.environ, "COLUMNS": "80"}, capture_output=True, text=True, check=False,
    ).stdout  # fmt: skip
    first = shown[: shown.index("    To verify it")]
    expected = f"```console\n$ probe-compare {' '.join(RECORDINGS)} -lm {MAPPING}\n{first}    …\n```\n"
    text = README.read_text(encoding="utf-8")
    if os.environ.get("OVERWRITE_GOLDEN"):
        begin, end = expected.splitlines()[1], "\n```\n"
        start = text.index(f"```console\n{begin}")
        text = text[:start] + expected + text[text.index(end, start) + len(end) :]
        README.write_text(text, encoding="utf-8")
    assert expected in text, "OVERWRITE_GOLDEN=1 writes it anew"
