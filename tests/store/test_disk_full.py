"""A disk that is full at any write: the training ends as without probe, one message, complete steps can be read.

Twice: no file can grow beyond a limit, and, where a tmpfs can be mounted, one really has no more room. `PROBE_FULL=1` tries
every page of that tmpfs in place of some. `test_failing_calls` lets each call in turn fail.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import kill
from benchmarks.failing_calls import training
from probe.records import CompressionName
from probe.store import compression
from tests.compressing import COMPRESSIONS
from tests.limits import HANGS

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parents[2]
STEPS = 3


def record(
    path: Path, alone: bytes, expected: kill.Expected, why: str, how: CompressionName | None = None
) -> int | None:
    """Train while writing may fail; return the complete steps, None when nothing failed, −1 when no file was made."""
    compression._LEAST = 4096
    said = training.record(path, alone, steps=STEPS, run=functools.partial(training.train, compression=how))
    assert said is None or f": {why}; " in said or f"] {why}); " in said, said
    steps = training.check(path, expected, said, 0)
    return None if said is None else steps


@pytest.fixture(scope="module")
def alone() -> bytes:
    return training.train(None, STEPS)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> kill.Expected:
    path = tmp_path_factory.mktemp("whole") / "a.h5"
    training.train(path, STEPS)
    return kill.Expected(path, 0.0)


LIMITED = """
import resource, signal, sys
from pathlib import Path
from tests.store.test_disk_full import *

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # as Python has it, unless somebody changed it
alone = training.train(None, STEPS)
whole = kill.Expected(Path(sys.argv[1]), 0.0)
for size in map(int, sys.argv[4:]):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    print(record(Path(sys.argv[2]) / f"{size}.h5", alone, whole, "File too large", sys.argv[3] or None))
"""


def in_a_process(code: str, *arguments: object, prefix: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [*prefix, sys.executable, "-c", code, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, timeout=HANGS, check=False, env=environment)


@pytest.mark.parametrize("how", ["", *COMPRESSIONS])
def test_a_limit_on_the_size_of_files(how: str, expected: kill.Expected, tmp_path: Path) -> None:
    pytest.importorskip("resource")
    whole = expected.path.stat().st_size
    sizes = [*range(1000, 2 * whole, whole // (8 if how else 20))]
    done = in_a_process(LIMITED, expected.path, tmp_path, how, *sizes)
    assert (done.returncode, done.stderr) == (0, "")
    steps = [None if line == "None" else int(line) for line in done.stdout.split()]
    failed = [step for step in steps if step is not None]
    assert steps[0] == -1 and steps[-1] is None
    assert failed == sorted(failed) and {-1, 0, 1} <= set(failed)


TMPFS = """
import sys
from tests.store.test_disk_full import *

shutil.disk_usage = lambda path: shutil._ntuple_diskusage(1 << 50, 0, 1 << 50)  # what is foretold is another message
place, stride = Path(sys.argv[2]), int(sys.argv[3])
alone, whole = training.train(None, STEPS), kill.Expected(Path(sys.argv[1]), 0.0)
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


def test_a_tmpfs_without_room(expected: kill.Expected, tmp_path: Path) -> None:
    """In a mount namespace of its own, which goes with the process."""
    prefix = ("unshare", "--map-root-user", "--mount", "sh", "-c", MOUNT, str(tmp_path))
    if not shutil.which("unshare") or subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no tmpfs can be mounted here; every write in turn was made to fail all the same")
    stride = 1 if os.environ.get("PROBE_FULL") else 13
    done = in_a_process(TMPFS, expected.path, tmp_path, stride, prefix=prefix)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.split()
    steps = [int(line) for line in lines[:-1]]
    print(f"tmpfs: {len(lines)} sizes")
    assert lines[-1] == "None" and len(steps) > 10
    assert steps == sorted(steps) and {-1, 0, 1} <= set(steps)
