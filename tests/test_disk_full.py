"""A disk that is full at any write: the training ends as without probe, one message, complete steps can be read.

Twice: every write in turn fails in this process, and, where a tmpfs can be mounted, one that really has no more room.
`PROBE_FULL=1` tries every page of that tmpfs in place of some.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest

import probe
from benchmarks import kill
from probe.adapters import numpy_nn as nn
from probe.adapters.numpy_tensor import Tensor
from probe.errors import ProbeWarning, StoreError
from probe.store import disk
from probe.testing import sample

ROOT = Path(__file__).parent.parent
STEPS = 3
MESSAGE = re.compile(
    r"probe: writing (.+) failed \(\[Errno \d+\] (.+)\); the recording has stopped, "
    r"(your training goes on, and the complete steps in the file|complete steps in it) can be read"
)


def train(path: Path | None) -> bytes:
    """Train, recorded or not; return the losses and the trained parameters."""
    nn.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 60), nn.ReLU(), nn.Linear(60, 3))
    optimizer = nn.AdamW(net.parameters(), 0.01)
    ends = []
    if path is not None:
        probe.start(net, path, task="tensor")
    for step in range(STEPS):
        output = net(Tensor(sample((40, 16), step)))
        loss = (output * output).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ends.append(loss.data.tobytes())
        if path is not None:
            probe.step(loss=loss)
    if path is not None:
        probe.stop()
    return b"".join([*ends, *(p.data.tobytes() for p in net.parameters())])


def record(path: Path, alone: bytes, expected: kill.Expected, why: str) -> int | None:
    """Train while writing may fail; return the complete steps, None when nothing failed, −1 when no file was made."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            found = train(path)
        except StoreError as error:
            assert str(error) == f"cannot write {path}: {why}", error
            assert not path.exists() and not said
            return -1
    assert found == alone, "the training is another one"
    for thread in threading.enumerate():
        if thread is not threading.current_thread():  # what has failed is closed by the writer's thread
            thread.join(10)
    assert threading.active_count() == 1
    messages = [str(each.message) for each in said if each.category is ProbeWarning]
    if not messages:
        assert expected.check(path) == STEPS
        return None
    (message,) = messages
    match = MESSAGE.fullmatch(message)
    assert match and match[1] == str(path) and match[2] == why, message
    return expected.check(path)


@pytest.fixture(scope="module")
def alone() -> bytes:
    return train(None)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> kill.Expected:
    path = tmp_path_factory.mktemp("whole") / "a.h5"
    train(path)
    return kill.Expected(path, 0.0)


def full_from(number: int, patch: pytest.MonkeyPatch, *, half: bool, for_ever: bool) -> None:
    """Let the n-th write fail: after half of its bytes or none, and all that follow or only itself."""
    count = 0
    many, one = os.pwritev, disk._pwrite

    def fails() -> bool:
        nonlocal count
        count += 1
        return count > number if for_ever else count == number + 1

    def write_many(descriptor: int, parts: list[Any], offset: int) -> int:
        if not fails():
            return many(descriptor, parts, offset)
        data = b"".join(parts)
        if half and count == number + 1 and len(data) > 1:
            many(descriptor, [data[: len(data) // 2]], offset)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def write_one(descriptor: int, data: bytes, size: int, offset: int) -> int:
        return (
            one(descriptor, data, size // 2 if half else 0, offset) if fails() else one(descriptor, data, size, offset)
        )

    patch.setattr(os, "pwritev", write_many)
    patch.setattr(disk, "_pwrite", write_one)


@pytest.mark.parametrize("for_ever", [True, False], ids=["full", "once"])
@pytest.mark.parametrize("half", [False, True], ids=["none", "half"])
def test_every_write_in_turn(half: bool, for_ever: bool, alone: bytes, expected: kill.Expected, tmp_path: Path) -> None:
    steps: list[int] = []
    for number in range(1000):
        with pytest.MonkeyPatch.context() as patch:
            full_from(number, patch, half=half, for_ever=for_ever)
            done = record(tmp_path / f"{number}.h5", alone, expected, "No space left on device")
        if done is None:
            break
        steps.append(done)
    assert done is None and len(steps) > 20
    assert steps == sorted(steps) and set(steps) == {-1, 0, 1, 2, 3}


LIMITED = """
import resource, signal, sys
from pathlib import Path
from tests.test_disk_full import *

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # as Python has it, unless somebody changed it
alone = train(None)
whole = kill.Expected(Path(sys.argv[1]), 0.0)
for size in map(int, sys.argv[3:]):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    print(record(Path(sys.argv[2]) / f"{size}.h5", alone, whole, "File too large"))
"""


def in_a_process(code: str, *arguments: object, prefix: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [*prefix, sys.executable, "-c", code, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)


def test_a_limit_on_the_size_of_files(expected: kill.Expected, tmp_path: Path) -> None:
    pytest.importorskip("resource")
    whole = expected.path.stat().st_size
    sizes = [*range(1000, 2 * whole, whole // 20)]
    done = in_a_process(LIMITED, expected.path, tmp_path, *sizes)
    assert (done.returncode, done.stderr) == (0, "")
    steps = [None if line == "None" else int(line) for line in done.stdout.split()]
    failed = [step for step in steps if step is not None]
    assert steps[0] == -1 and steps[-1] is None
    assert failed == sorted(failed) and {-1, 0, 1} <= set(failed)


TMPFS = """
import sys
from tests.test_disk_full import *

shutil.disk_usage = lambda path: shutil._ntuple_diskusage(1 << 50, 0, 1 << 50)  # what is foretold is another message
place, stride = Path(sys.argv[2]), int(sys.argv[3])
alone, whole = train(None), kill.Expected(Path(sys.argv[1]), 0.0)
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
