"""Every system call of the writer fails, a disk is full at any write, trainings are killed: listed steps are exact, the training ends as without probe."""

from __future__ import annotations

import ast
import contextlib
import errno
import functools
import io
import mmap
import os
import shutil
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from probe.config import Compression
from probe.errors import StoreError
from probe.records import CompressionName
from probe.store import compression, journal
from probe.store.reading.hdf5 import open_on
from probe.store.reading.reader import Reader
from probe.store.tree import write_tree
from probe.store.writing import system
from probe.store.writing.uncached import LEAST
from probe.store.writing.writer import Writer
from tests.limits import HANGS
from tests.resources import handles
from tests.store import failing_training as training
from tests.store import killing
from tests.store.compressing import COMPRESSIONS
from tests.store.failing import CALLS, Failing
from tests.store.rows import INFO, add_record, end_step

pytestmark = pytest.mark.thorough


# ---- Every system call of the writer fails, at every occurrence: listed steps are exact, the training ends as without probe.
#
# Here some occurrences of reads and of the rarer ways to fail; `PROBE_FAILING=1` takes all.
# `python -m benchmarks.failing_calls` does the same from outside of the process, with every error number and with kills.

FAILURES: dict[str, dict[str, Any]] = {
    "once": {"error": errno.ENOSPC},
    "once, half done": {"error": errno.EDQUOT, "done": 0.5},
    "once, though done": {"error": errno.EIO, "done": 1},
    "from then on": {"error": errno.EIO, "lasting": True},
    "from then on, half done": {"error": errno.EFBIG, "done": 0.5, "lasting": True},
}
STRIDE = 1 if os.environ.get("PROBE_FAILING") else 11
STORE = Path(system.__file__).parents[1]


@pytest.fixture(scope="module")
def alone() -> bytes:
    return training.train(None)


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("earlier") / "a.h5"
    training.train(path, 1)
    return path.read_bytes()


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> killing.Expected:
    path = tmp_path_factory.mktemp("whole") / "a.h5"
    training.train(path)
    return killing.Expected(path, 0.0)


def steps_of(commits: int) -> int:
    """Return how many steps there are behind so many commits: the first is the empty file, the last its end."""
    return min(max(commits - 1, 0), training.STEPS)


@pytest.fixture(scope="module")
def calls(alone: bytes, earlier: bytes, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, int]]:
    """Return the calls of a run in which none fails, each with the commits before it."""
    path = tmp_path_factory.mktemp("calls") / "a.h5"
    path.write_bytes(earlier)
    with Failing() as calls:
        assert training.record(path, alone, overwrite=True) is None
    assert {name for name, _ in calls.made} == {*CALLS} - {"pwrite"}
    return calls.made


def tried(failure: str, calls: list[tuple[str, int]]) -> list[int]:
    """Return which calls fail: all once, but for reads, of which there are many; some in other ways."""
    first = [*FAILURES].index(failure) % STRIDE
    return [n for n, (name, _) in enumerate(calls) if n % STRIDE == first or (failure == "once" and name != "pread")]


@pytest.mark.parametrize("failure", FAILURES)
def test_every_call_in_turn(
    failure: str, calls: list[tuple[str, int]], alone: bytes, earlier: bytes, expected: killing.Expected, tmp_path: Path
) -> None:
    path, before, left = tmp_path / "a.h5", handles(), []
    for number in tried(failure, calls):
        path.write_bytes(earlier)
        with Failing("any", number, **FAILURES[failure]) as failing:
            said = training.record(path, alone, overwrite=True)
        assert failing.fired
        committed = steps_of(failing.made[number][1])
        left.append(training.check(path, expected, said, committed, earlier, tree=number % STRIDE == 0))
        assert handles() == before, (number, calls[number])
        for each in tmp_path.iterdir():
            each.unlink()
    assert {*left} >= ({-1, 0, 1, 2, 3, 4, 5} if failure == "once" else {-1, 0, 5})
    lost = [steps for steps in left if steps < training.STEPS]
    assert lost == sorted(lost)


@pytest.mark.parametrize("how", COMPRESSIONS)
def test_calls_of_a_compressed_recording(
    how: Compression,
    alone: bytes,
    earlier: bytes,
    expected: killing.Expected,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compression, "_LEAST", 4096)
    path, run, number, left = tmp_path / "a.h5", functools.partial(training.train, compression=how.value), 0, []
    while True:
        path.write_bytes(earlier)
        with Failing("any", number, error=errno.EIO, done=0.5, lasting=bool(number % 2)) as failing:
            said = training.record(path, alone, overwrite=True, run=run)
        committed = steps_of(failing.made[number][1]) if failing.fired else training.STEPS
        left.append(training.check(path, expected, said, committed, earlier, tree=number % 2 == 0))
        for each in tmp_path.iterdir():
            each.unlink()
        if not failing.fired:
            break
        number += STRIDE
    assert {*left} >= {-1, 0, 5} and left[-1] == training.STEPS


@pytest.mark.parametrize("call", ["pwritev", "overwrite", "pread"])
def test_a_call_that_does_a_part_is_made_again(
    call: str, alone: bytes, earlier: bytes, expected: killing.Expected, tmp_path: Path
) -> None:
    path = tmp_path / "a.h5"
    for number in range(0, 1000, STRIDE):
        path.write_bytes(earlier)
        with Failing(call, number, short=True, lasting=bool(number % 2)) as calls:
            assert training.record(path, alone, overwrite=True) is None
        assert training.check(path, expected, None, training.STEPS) == training.STEPS
        path.unlink()
        if not calls.fired:
            break
    assert number > 20


@pytest.mark.parametrize("call", ["any", "pwritev", "overwrite", "ftruncate"])
def test_the_readable_tree_is_made_whole_or_not_at_all(call: str, earlier: bytes, tmp_path: Path) -> None:
    """A recording is not lost by what only makes it easier to read."""
    path, number = tmp_path / "a.h5", 0
    path.write_bytes(earlier)
    whole, names = killing.Expected(path, 0.0), names_of(path)
    with h5py.File(path, "r+") as file:
        del file["tree"]
    without = path.read_bytes()
    while True:
        path.write_bytes(without)
        with Failing(call, number, error=errno.EIO, done=0.5, lasting=True) as calls, contextlib.suppress(StoreError):
            write_tree(path)
        assert whole.check(path) == 1, calls.made[number]
        assert names_of(path) in ([], names)
        if not calls.fired:
            break
        number += STRIDE if call == "any" else 1
    assert number > 0 and names_of(path) == names


def names_of(path: Path) -> list[str]:
    """Return what stands in the readable tree of a recording."""
    found: list[str] = []
    with h5py.File(journal.readable(path), "r") as file:
        if "tree" in file:
            file["tree"].visit(found.append)
    return found


@pytest.mark.parametrize("command", ["compare a.h5 a.h5", "export tree a.h5"])
def test_an_error_that_lives_until_the_end_does_not_crash_the_process(command: str, tmp_path: Path) -> None:
    """Where HDF5 is open on an object of Python, the errors of h5py hold what it gives back to Python."""
    (tmp_path / "a.h5").write_bytes(b"\0" * 5000 + b"".join(journal.parts([(4096, b"y" * 100)])))
    environment = {**os.environ, "PYTHONPATH": str(STORE.parents[1])}
    program = [sys.executable, "-c", "from probe.commands.cli import main; main()", *command.split()]
    done = subprocess.run(program, capture_output=True, check=False, env=environment, cwd=tmp_path)
    assert done.returncode == 3 and done.stderr.startswith(b"Error: a.h5 is not an HDF5 file")


def test_what_opening_raises_has_no_frames_of_h5py() -> None:
    """That they crash a process depends on the version of h5py."""
    with pytest.raises(OSError, match="signature") as raised:
        open_on(io.BytesIO(b"x" * 5000), "r")
    assert not any("h5py" in frame.filename for frame in traceback.extract_tb(raised.value.__traceback__))


def large(number: int) -> np.ndarray:
    """Return values that are written past the system's cache: many of them, at the border of a page."""
    array = np.frombuffer(mmap.mmap(-1, 2 * LEAST), np.float64)
    array[:] = np.random.default_rng(number).random(array.size)
    array[-1] = number
    return array


@pytest.mark.parametrize("failure", [*FAILURES, "short"])
@pytest.mark.parametrize("how", [None, *COMPRESSIONS])
def test_large_values(how: Compression | None, failure: str, tmp_path: Path) -> None:
    """Written past the cache where the file system has it, or compressed by HDF5."""
    options, number, made = FAILURES.get(failure, {"short": True}), 0, 3 if how is None else 6
    while True:
        path = tmp_path / f"{number}.h5"
        with Failing("any", number, **options) as calls:
            try:
                writer = Writer(path, INFO, compression=how)
                for step in range(made):
                    add_record(writer, large(step), step=step)
                    end_step(writer, step)
                writer.close()
                steps, said = made, ""
            except StoreError as error:
                assert str(path) in str(error)
                steps, said = None, str(error)
        if path.exists() and "could not be removed" not in said:
            with Reader(path) as reader:
                assert steps in (None, len(reader.steps))
                assert [reader.values(step)[-1] for step in range(len(reader.steps))] == [*range(len(reader.steps))]
        if not calls.fired:
            break
        number += 1 if failure == "once" and how is None else 4
    assert number > 20


def test_the_writer_makes_no_other_calls() -> None:
    """They go through one module, so that those above are all there are."""
    allowed = {"getpid", "strerror", "SEEK_SET", "SEEK_CUR", "SEEK_END", "O_WRONLY", "environ", "register_at_fork"}
    written = [path for path in (STORE / "writing").glob("*.py") if path.stem not in ("system", "growth")]
    assert len(written) > 6
    for path in (*written, STORE / "tables.py", STORE / "tree.py"):
        name = path.stem
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os":
                assert node.attr in allowed, f"{name}: os.{node.attr}"
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _OF_PATHS:
                assert isinstance(node.func.value, ast.Name) and node.func.value.id in ("system", "both", "h5g"), (
                    f"{name}: {ast.unparse(node)}"
                )


_OF_PATHS = {"unlink", "rename", "exists", "stat", "open", "touch"}


# ---- A disk that is full at any write: the training ends as without probe, one message, complete steps can be read.
#
# Twice: no file can grow beyond a limit, and, where a tmpfs can be mounted, one really has no more room. `PROBE_FULL=1` tries
# every page of that tmpfs in place of some. `test_failing_calls` lets each call in turn fail.

ROOT = Path(__file__).parents[2]
STEPS = 3


def record(
    path: Path, alone: bytes, expected: killing.Expected, why: str, how: CompressionName | None = None
) -> int | None:
    """Train while writing may fail; return the complete steps, None when nothing failed, −1 when no file was made."""
    compression._LEAST = 4096
    said = training.record(path, alone, steps=STEPS, run=functools.partial(training.train, compression=how))
    assert said is None or f": {why}; " in said or f"] {why}); " in said, said
    steps = training.check(path, expected, said, 0)
    return None if said is None else steps


@pytest.fixture(scope="module")
def expected_full(tmp_path_factory: pytest.TempPathFactory) -> killing.Expected:
    path = tmp_path_factory.mktemp("whole") / "a.h5"
    training.train(path, STEPS)
    return killing.Expected(path, 0.0)


LIMITED = """
import resource, signal, sys
from pathlib import Path
from tests.store.test_failing_calls import *

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # as Python has it, unless somebody changed it
alone = training.train(None, STEPS)
whole = killing.Expected(Path(sys.argv[1]), 0.0)
for size in map(int, sys.argv[4:]):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    print(record(Path(sys.argv[2]) / f"{size}.h5", alone, whole, "File too large", sys.argv[3] or None))
"""


def in_a_process(code: str, *arguments: object, prefix: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [*prefix, sys.executable, "-c", code, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, timeout=HANGS, check=False, env=environment)


@pytest.mark.parametrize("how", ["", *COMPRESSIONS])
def test_a_limit_on_the_size_of_files(how: str, expected_full: killing.Expected, tmp_path: Path) -> None:
    pytest.importorskip("resource")
    whole = expected_full.path.stat().st_size
    sizes = [*range(1000, 2 * whole, whole // (8 if how else 20))]
    done = in_a_process(LIMITED, expected_full.path, tmp_path, how, *sizes)
    assert (done.returncode, done.stderr) == (0, "")
    steps = [None if line == "None" else int(line) for line in done.stdout.split()]
    failed = [step for step in steps if step is not None]
    assert steps[0] == -1 and steps[-1] is None
    assert failed == sorted(failed) and {-1, 0, 1} <= set(failed)


TMPFS = """
import sys
import traceback
from tests.store.test_failing_calls import *

shutil.disk_usage = lambda path: shutil._ntuple_diskusage(1 << 50, 0, 1 << 50)  # what is foretold is another message
place, stride = Path(sys.argv[2]), int(sys.argv[3])
alone, whole = training.train(None, STEPS), killing.Expected(Path(sys.argv[1]), 0.0)
ballast = place / "ballast"
pages = os.statvfs(place).f_bavail
for free in range(2, pages, stride):
    with open(ballast, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, (pages - free) * 4096)
    done = record(place / "a.h5", alone, whole, "No space left on device")
    print(done, flush=True)
    ballast.unlink()
    (place / "a.h5").unlink(missing_ok=True)
    if done is None:
        break
"""
MOUNT = 'mount -t tmpfs -o size=8m tmpfs "$0" && exec "$@"'


def test_a_tmpfs_without_room(expected_full: killing.Expected, tmp_path: Path) -> None:
    """In a mount namespace of its own, which goes with the process."""
    prefix = ("unshare", "--map-root-user", "--mount", "sh", "-c", MOUNT, str(tmp_path))
    if not shutil.which("unshare") or subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no tmpfs can be mounted here; every write in turn was made to fail all the same")
    stride = 1 if os.environ.get("PROBE_FULL") else 13
    done = in_a_process(TMPFS, expected_full.path, tmp_path, stride, prefix=prefix)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.split()
    steps = [int(line) for line in lines[:-1]]
    print(f"tmpfs: {len(lines)} sizes")
    assert lines[-1] == "None" and len(steps) > 10
    assert steps == sorted(steps) and {-1, 0, 1} <= set(steps)


# ---- Trainings killed at random moments. `PROBE_KILLS=500` is what `python -m benchmarks.kill --runs 500` does.


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("how", [None, *COMPRESSIONS])
def test_what_a_killed_training_leaves_is_exact(
    how: CompressionName | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    runs = int(os.environ.get("PROBE_KILLS", "6" if how is None else "3"))
    monkeypatch.setattr(killing, "STEPS", 20)
    monkeypatch.setattr(compression, "_LEAST", 4096)
    found = killing.kill(functools.partial(killing.train_numpy, compression=how), runs, tmp_path)
    print(found)
    assert found.exact == runs
    assert found.steps > 2 * runs
