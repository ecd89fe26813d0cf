"""Processes that a training forks leave its file alone, however they end; and it records on as if they had not been."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from probe.store.reading.reader import Reader
from probe.store.writing.writer import Writer
from tests.limits import HANGS
from tests.store import killing
from tests.store.rows import INFO

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

ROOT = Path(__file__).parents[2]
STEPS = 6
SCRIPT = """
import concurrent.futures, multiprocessing, os, signal, sys
from pathlib import Path
import numpy as np
import probe
from tests.store import killing

killing.STEPS = {steps}

def forked(step):
    child = os.fork()
    if not child:
        {child}
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert os.waitstatus_to_exitcode(status) == {status}, status

def pool(step):
    with multiprocessing.get_context("fork").Pool(2) as workers:
        assert workers.map(abs, range(-20, 0)) == [*range(20, 0, -1)]

def executor(step):
    context = multiprocessing.get_context("fork")
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as workers:
        assert [*workers.map(abs, range(-20, 0))] == [*range(20, 0, -1)]

def process(step):
    worker = multiprocessing.get_context("fork").Process(target=print, args=("hello",))
    worker.start()
    worker.join()
    assert worker.exitcode == 0

killing.train_numpy(Path(sys.argv[1]), {between})
probe.stop()
"""


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> killing.Expected:
    path = tmp_path_factory.mktemp("whole") / "a.h5"
    train(path, "lambda step: None")  # in a process of its own, as the others: this one may round otherwise
    return killing.Expected(path, 0.0)


def train(path: Path, between: str = "forked", child: str = "pass", status: int = 0) -> str:
    """Record a training that forks in the middle of every step; return what it printed."""
    code = SCRIPT.format(steps=STEPS, child=child, status=status, between=between)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANGS, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def check(path: Path, expected: killing.Expected) -> None:
    """Require the whole file: every step, the readable tree, closed, and no other file beside it."""
    assert expected.check(path) == STEPS
    with Reader(path) as reader:
        assert reader.info.closed and not reader.notes
    assert [file.name for file in path.parent.iterdir()] == [path.name]


CHILDREN = {
    "it exits": ("sys.exit(0)", 0),
    "it exits with a failure": ("sys.exit(3)", 3),
    "it exits at once": ("os._exit(4)", 4),
    "terminated": ("os.kill(os.getpid(), signal.SIGTERM)", -15),
    "killed": ("os.kill(os.getpid(), signal.SIGKILL)", -9),
    "it goes on recording": ("probe.step(loss=1.0); probe.log('x', 2.0); probe.step(); sys.exit(0)", 0),
    "it stops the recording": ("probe.stop(); sys.exit(0)", 0),
    "it forks in its turn": ("os.fork(); sys.exit(0)", 0),
    "it opens the file": ("probe.open(sys.argv[1]); sys.exit(0)", 0),
}


@pytest.mark.parametrize("name", CHILDREN)
def test_a_child(name: str, tmp_path: Path, expected: killing.Expected) -> None:
    code, status = CHILDREN[name]
    printed = train(tmp_path / "a.h5", child=code, status=status)
    assert "Error" not in printed and "probe: " not in printed
    check(tmp_path / "a.h5", expected)


def test_a_child_that_raises(tmp_path: Path, expected: killing.Expected) -> None:
    """Its traceback runs through the training's own frames, and its exit handlers through probe's."""
    printed = train(tmp_path / "a.h5", child="print(); raise SystemExit(1)", status=1)
    assert "Traceback" not in printed
    check(tmp_path / "a.h5", expected)


@pytest.mark.parametrize("between", ["pool", "executor", "process"])
def test_workers(between: str, tmp_path: Path, expected: killing.Expected) -> None:
    train(tmp_path / "a.h5", between=between)
    check(tmp_path / "a.h5", expected)


def test_a_child_that_records_its_own_training(tmp_path: Path, expected: killing.Expected) -> None:
    other = tmp_path / "others"
    other.mkdir()
    own = f"probe.stop(); killing.STEPS = 2; killing.train_numpy(Path({str(other)!r}) / f'{{step}}.h5'); sys.exit(0)"
    (tmp_path / "own").mkdir()
    train(tmp_path / "own" / "a.h5", child=own)
    check(tmp_path / "own" / "a.h5", expected)
    for step in range(STEPS):
        assert expected.check(other / f"{step}.h5") == 2


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_fork_waits_until_the_writer_has_done_what_it_is_at(tmp_path: Path) -> None:
    """Or its child might find HDF5 locked for ever: h5py sees to that itself in its newest versions only."""
    writer = Writer(tmp_path / "a.h5", INFO)
    begun, ended = threading.Event(), threading.Event()

    def job() -> None:
        begun.set()
        time.sleep(0.2)
        ended.set()

    writer._queue.put(job)
    assert begun.wait(HANGS)
    child = os.fork()
    if not child:
        os._exit(not ended.is_set())
    assert os.waitpid(child, 0)[1] == 0
    writer.close()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_fork_leaves_no_writer_stopped(tmp_path: Path) -> None:
    """Neither here nor in the child, which may fork in its turn."""
    writer = Writer(tmp_path / "a.h5", INFO)
    child = os.fork()
    if not child:
        os._exit(writer._working.locked())
    assert os.waitpid(child, 0)[1] == 0 and not writer._working.locked()
    writer.close()


BUSY = """
import os, sys, time
from pathlib import Path
import numpy as np
from probe.store.writing.disk import Disk
from probe.store.writing.writer import Writer
from tests.store.rows import INFO, add_record, end_step

def slow(self, data, write=Disk.write):
    time.sleep(0.01)
    return write(self, data)

Disk.write = slow
writer = Writer(Path(sys.argv[1]), INFO)
array = np.zeros(1024, np.float32)
for step in range(8):
    for number in range(100):
        array[0] = 100 * step + number
        add_record(writer, array, step=step)
    end_step(writer, step)
    while not writer._working.locked():
        pass
    time.sleep(0.05)
    child = os.fork()
    if not child:
        sys.exit(0)
    for _ in range(LIMIT):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        time.sleep(0.01)
    else:
        os.kill(child, 9)
        sys.exit("a child hangs")
    assert status == 0, status
writer.close()
"""


@pytest.mark.thorough
def test_forks_while_the_writer_is_busy(tmp_path: Path) -> None:
    """A process that was forked while a thread was inside HDF5 would find it locked for ever, or half way through."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", BUSY.replace("LIMIT", str(100 * HANGS)), str(tmp_path / "a.h5")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANGS, check=False, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    with Reader(tmp_path / "a.h5") as reader:
        assert len(reader.steps) == 8 and len(reader.records) == 800
        assert all(reader.values(tensor)[0] == tensor for tensor in range(800))
