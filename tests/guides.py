"""Pages whose commands run as they stand there and print what is shown: ``OVERWRITE_GOLDEN=1`` writes their output anew."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

REPO = Path(__file__).parents[1]
GUIDES, EXAMPLES = REPO / "docs" / "guide", REPO / "docs" / "examples"
NUMBERS = re.compile(r"\d+(\.\d+)?e[-+]\d+|\d+\.\d+|\d[\d,]*(?= are bit-equal| downstream tensor|×)")
"""those that are not the same on every machine"""
OF_NOISE = re.compile(r"(✓ agrees|= equal|~ from inside|~ inherits)$")
"""what a line of the tree ends with where an error is about as large as noise may be: on which side of it differs by machine"""
CLOSEST = re.compile(r"Closest to its limit: .*? it would be a divergence")
CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def said(folder: Path, command: list[str], status: int | None = None, *, paths: tuple[Path, ...] = ()) -> list[str]:
    """Run a command; return the lines that a terminal shows. Without a status, a verdict is any that is no error."""
    folders = [str(Path(sys.executable).parent), *map(str, paths), os.environ["PATH"]]
    own = {name: value for name, value in os.environ.items() if name != "COLUMNS"}  # pytest-xdist sets it
    env = {**own, "PATH": os.pathsep.join(folders), "PYTHONPATH": str(REPO), "OMP_NUM_THREADS": "1"}
    env |= {"HF_HUB_OFFLINE": "1", "GLOG_v": "3"}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    expected = [status] if status is not None else range(3) if command[0].startswith("probe") else [0]
    assert done.returncode in expected, done.stdout + done.stderr
    return [line.rstrip() for line in (done.stdout + done.stderr).splitlines()]


def comparable(lines: list[str]) -> str:
    """Return lines as one text, however they are broken, without what differs by machine."""
    text = " ".join(OF_NOISE.sub("#", NUMBERS.sub("#", line)) for line in lines)
    return CLOSEST.sub("Closest.", " ".join(text.split()))


def assert_shown(shown: list[str], lines: list[str]) -> None:
    """Check that a listing is what was printed, from its first line on; … stands for any lines."""
    printed, may_skip = comparable(lines), False
    for part in "\n".join(shown).split("…\n"):
        wanted = comparable(part.removesuffix("…").splitlines())
        at = printed.find(wanted)
        assert at >= 0, f"this was not printed: {part}\nbut: {lines}"
        assert may_skip or not printed[:at].strip(), f"{printed[:at]!r} stands before {wanted!r}"
        printed, may_skip = printed[at + len(wanted) :], True


def written(shown: list[str], lines: list[str]) -> list[str]:
    """Return what a listing is to show: as many lines as it has before … at its end, or all."""
    return [*lines[: len(shown) - 1], "…"] if shown[-1:] == ["…"] else lines


def run_guide(page: Path, folder: Path, *, paths: tuple[Path, ...] = ()) -> None:
    """Run the commands of a page one after the other, and hold what they print against what it shows."""
    text = page.read_text(encoding="utf-8")
    for block in CONSOLE.findall(text):
        parts = re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
        made = ""
        for command, *shown in (part.splitlines() for part in parts):
            lines = said(folder, shlex.split(command), paths=paths)
            if os.environ.get("OVERWRITE_GOLDEN") and "…" not in shown[:-1]:
                shown = written(shown, lines)
            assert_shown(shown, lines)
            made += "".join(f"{line}\n" for line in (f"$ {command}", *shown))
        text = text.replace(block, made)
    if os.environ.get("OVERWRITE_GOLDEN"):
        page.write_text(text, encoding="utf-8")


def copied(example: str, folder: Path) -> Path:
    """Return a copy of the folder of an example."""
    return Path(shutil.copytree(EXAMPLES / example, folder / example, ignore=shutil.ignore_patterns("__pycache__")))


def not_in_files(page: Path, example: str) -> list[str]:
    """Return the blocks of Python on a page that stand in no file of the example."""
    files = [path.read_text(encoding="utf-8") for path in sorted((EXAMPLES / example).glob("*.py"))]
    lines = [" ".join(textwrap.dedent(text).split()) for text in files]
    return [
        block
        for block in PYTHON.findall(page.read_text("utf-8"))
        if not any(" ".join(block.split()) in text for text in lines)
    ]


def rows_of(page: Path) -> list[list[list[str]]]:
    """Return the rows of tables that plant faults: what and how, phase and place, what is said."""
    lines = page.read_text(encoding="utf-8").splitlines()
    rows = [[cell.split("<br>") for cell in line.strip("| ").split(" | ")] for line in lines if "<br>" in line]
    return [row for row in rows if len(row[0]) > 1]


def assert_row(row: list[list[str]], lines: list[str]) -> None:
    """Check that a comparison finds a planted fault where a row says, and says what is quoted there."""
    _, (phase, place), (quoted,) = row
    printed = " ".join(" ".join(lines).split())
    assert quoted.strip('"') in printed
    assert f"First divergence step 0 · {phase} " in printed or f"First divergence step 1 · {phase} " in printed
    assert f" B {place.strip('`') if place.startswith('`') else '(the whole model)'} " in printed
