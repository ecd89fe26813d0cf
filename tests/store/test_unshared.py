"""A recording that a process has opened more than once, and one that is open as the process ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from probe.store.places import Unshared
from tests.limits import HANGS
from tests.toys import record

MANY = """
import sys, h5py
from pathlib import Path
from probe.store.reading.recorded_file import RecordedFile
path = Path(sys.argv[1])
for other in (RecordedFile, lambda path: h5py.File(path, "r", locking=False)):
    for turn in range(20):
        before, file = other(path), RecordedFile(path)
        rows = before.rows("modules") if other is RecordedFile else before["modules"][:]
        assert file.rows("modules").tolist() == rows.tolist()
        before.close()
        assert file.rows("modules").tolist() == rows.tolist()
        file.close()
"""

OPEN = """
import gc, sys
from probe.store.reading.reader import Reader
reader = Reader(sys.argv[1])
reader.modules
reader.itself = reader  # only the garbage collector could close it
gc.freeze()
"""


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("unshared") / "a.h5", task="tensor")


@pytest.mark.parametrize("code", [MANY, OPEN], ids=["others that are closed before", "open as the process ends"])
def test_a_process_does_not_crash(code: str, recording: Path) -> None:
    """HDF5 takes two that are opened by path for one, and calls Python where a file is open at the end."""
    done = subprocess.run(
        [sys.executable, "-c", code, recording], capture_output=True, text=True, timeout=HANGS, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_forked_process_reads_at_places_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(100)))
    file = Unshared(path)
    file.seek(10)
    child = os.fork()
    if not child:
        file.seek(50)
        os._exit(file.read(5)[0])
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 50
    assert file.read(200) == bytes(range(10, 100)) and file.tell() == 100
    file.close()
    file.close()  # as often as one likes
