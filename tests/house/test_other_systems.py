"""What only POSIX has is guarded: importing, comparing, the demo and recording do without it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import probe
from probe.answer.result import Verdict

REPO = Path(__file__).parents[2]
WITHOUT_POSIX = """
import ctypes, mmap, os, sys
import click, h5py, numpy, rich.console, xxhash, yaml, ml_dtypes, uuid, tempfile, subprocess, shutil
assert not [name for name in sys.modules if name.startswith("probe")]
ONLY_POSIX = (
    "O_DIRECT", "O_DSYNC", "fchmod", "fchown", "fdatasync", "fork", "getgid", "getuid", "geteuid", "killpg", "posix_fadvise",
    "posix_fallocate", "pread", "preadv", "pwrite", "pwritev", "register_at_fork", "sched_getaffinity", "sync", "sysconf",
    "uname", "writev",
)
for name in ONLY_POSIX:
    vars(os).pop(name, None)
for name in ("MAP_ANONYMOUS", "MAP_PRIVATE", "PROT_READ"):
    vars(mmap).pop(name, None)
sys.modules.update(dict.fromkeys(("fcntl", "grp", "pwd", "resource", "syslog")))  # an import of any of them fails
library = ctypes.PyDLL
def of_no_program(name, *arguments, **options):
    if name is None:
        raise TypeError("bad argument type for built-in operation")
    return library(name, *arguments, **options)
ctypes.PyDLL = ctypes.CDLL = of_no_program
"""
RECORD = f"""
{WITHOUT_POSIX}
from tests.cli.running import net, record
for name in ("a.h5", "b.h5"):
    record(name, net(), steps=3, task="tensor")
"""
COMMAND = f"""
{WITHOUT_POSIX}
from probe.commands.cli import main
main(sys.argv[1:], prog_name="probe")
"""


def run(program: str, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    paths = {"PYTHONPATH": str(REPO), "PATH": ""}
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, cwd=folder, env=paths, capture_output=True, text=True, check=False)


def test_importing_and_the_demo_do_without_it(tmp_path: Path) -> None:
    done = run(COMMAND, "demo", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_recordings_made_without_it_are_the_same(tmp_path: Path) -> None:
    done = run(RECORD, folder=tmp_path)
    assert done.returncode == 0 and "Warning" not in done.stderr, done.stderr
    assert run(COMMAND, "compare", "a.h5", "b.h5", folder=tmp_path).returncode == 0
    with probe.open(tmp_path / "a.h5") as recording:
        assert recording.steps == [0, 1, 2]
        assert recording["head"].output[0].values().shape == (2, 3)
    assert probe.compare(tmp_path / "a.h5", tmp_path / "b.h5").verdict is Verdict.ALIGNED
