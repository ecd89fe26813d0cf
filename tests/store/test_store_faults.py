"""What is left when something goes wrong: kills, forks, full disks, slow disks, readers at the same time."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import h5py
import numpy as np
import pytest

from probe.errors import FormatError, StoreError
from probe.numbers.packed import pack
from probe.numbers.statistics import measure
from probe.store import journal
from probe.store.reading import opening
from probe.store.reading.reader import Reader
from probe.store.tree import write_tree
from probe.store.writing.writer import Writer
from probe.testing import sample
from tests.limits import HANGS
from tests.store.rows import INFO, add_record, end_step, write

ROOT = Path(__file__).parents[2]
PER_STEP = 10
COMMON = """
import os, random, resource, signal, sys, threading, time
from pathlib import Path
import numpy as np
from probe.errors import StoreError
from probe.store.writing.writer import Writer
from tests.store.rows import INFO, add_record, end_step

def add_step(writer, step):
    for number in range(PER_STEP):
        array = np.random.default_rng(PER_STEP * step + number).standard_normal(1 << number)
        add_record(writer, array, step=step, path=f"m{number}.x{step}", slot=f"{number}.{step}")
    end_step(writer, step)

def wait(writer):
    written = threading.Event()
    writer._queue.put(written.set)
    while not written.wait(0.01) and writer._thread.is_alive():
        pass
""".replace("PER_STEP", str(PER_STEP))

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def run(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh process."""
    command = [sys.executable, "-c", COMMON + code, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, timeout=HANGS, check=False, env=environment)


def complete_steps(path: Path) -> int:
    """Check every record and every value of every step that stands in the file; return how many steps."""
    with Reader(path) as reader:
        steps = len(reader.steps)
        assert reader.steps["step"].tolist() == [*range(steps)]
        assert reader.records["step"].tolist() == [step for step in range(steps) for _ in range(PER_STEP)]
        assert reader.sketches.shape == (PER_STEP * steps, 61)
        for place, row in enumerate(reader.records):
            values = reader.values(int(row["tensor"]))
            expected = np.random.default_rng(place).standard_normal(1 << place % PER_STEP)
            np.testing.assert_array_equal(values, expected)
            assert reader.slots[row["slot"]] == f"{place % PER_STEP}.{row['step']}"
            assert row["norm"] == measure(expected).norm
    return steps


# ---- kills and exits -----------------------------------------------------------------------------------

KILLED = """
for number in range(int(sys.argv[2])):
    told, tell = os.pipe()
    child = os.fork()
    if not child:
        writer = Writer(Path(sys.argv[1]) / f"{number}.h5", INFO)
        for step in range(100_000):
            add_step(writer, step)
            if step % 4 == 3:
                wait(writer)
            os.write(tell, b".")
    for _ in range(3 + 2 * number):
        os.read(told, 1)
    time.sleep(random.random() / 50)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
"""


@pytest.mark.thorough
@needs_fork
def test_a_killed_process_leaves_its_complete_steps(tmp_path: Path) -> None:
    done = run(KILLED, tmp_path, 12)
    assert done.returncode == 0, done.stderr
    steps = [complete_steps(tmp_path / f"{number}.h5") for number in range(12)]
    assert max(steps) > 15


KILLED_AT = """
from probe.store.writing import system

def kill_at(number):
    calls = iter(range(number, -1, -1))
    def last():
        return next(calls) == 0
    def die(descriptor, data, offset):
        write(descriptor, [data[: len(data) // 2]], offset)
        os.kill(os.getpid(), signal.SIGKILL)
    def many(descriptor, parts, offset):
        return die(descriptor, b"".join(parts), offset) if last() else write(descriptor, parts, offset)
    def one(descriptor, data, size, offset):
        return die(descriptor, data, offset) if last() else overwrite(descriptor, data, size, offset)
    def cut(descriptor, size):
        return os.kill(os.getpid(), signal.SIGKILL) if last() else truncate(descriptor, size)
    write, overwrite, truncate = system.pwritev, system.overwrite, system.ftruncate
    system.pwritev, system.overwrite, system.ftruncate = many, one, cut

number = status = 0
while True:
    child = os.fork()
    if not child:
        kill_at(number)
        writer = Writer(Path(sys.argv[1]) / f"{number}.h5", INFO)
        for step in range(3):
            add_step(writer, step)
            wait(writer)
        writer.close()
        os._exit(0)
    if os.waitpid(child, 0)[1] == 0:
        break
    number += 1
print(number)
"""


@pytest.mark.thorough
@needs_fork
def test_a_process_that_is_killed_in_any_write_leaves_its_complete_steps(tmp_path: Path) -> None:
    """In the middle of each in turn, of the first to the last."""
    done = run(KILLED_AT, tmp_path)
    assert done.returncode == 0, done.stderr
    kills, steps = int(done.stdout), []
    for number in range(kills):
        path = tmp_path / f"{number}.h5"
        try:
            steps.append(complete_steps(path))
        except FormatError:
            assert not steps, "killed before there was a recording"
    assert kills > 40 and steps == sorted(steps) and set(steps) == {0, 1, 2, 3}


def test_a_commit_that_was_cut_off_is_completed_by_the_export_of_the_tree(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    write(path, [[sample((5000,)), sample((3,))]])
    whole = path.read_bytes()
    torn = b"x" * 4096 + whole[4096:]
    path.write_bytes(torn + b"".join(journal.parts([(0, whole[:4096])])))
    with h5py.File(journal.readable(path), "r") as file:
        assert file["tensors/0"].shape == (5000,)
    assert path.read_bytes()[: len(whole)] == torn, "reading changes nothing"
    assert write_tree(path) == 2
    with Reader(path) as reader:
        assert len(reader.steps) == 1 and reader.values(0).tobytes() == sample((5000,)).tobytes()


ENDED = """
def go():
    writer = Writer(Path(sys.argv[1]), INFO)
    for step in range(5):
        add_step(writer, step)
    wait(writer)
    add_record(writer, np.ones(100_000), step=5)  # a step that is never closed
    writer._take_records()
    writer._hand_over()
    return writer

kept = go()
{ending}
"""


@pytest.mark.parametrize(
    "ending, status",
    [
        ("os._exit(3)", 3),
        ("sys.exit(4)", 4),
        ("raise ValueError", 1),
        ("os.abort()", -6),
        ("os.kill(os.getpid(), signal.SIGTERM)", -15),
        ("del kept", 0),
    ],
)
def test_a_process_that_ends_in_the_middle_of_a_step(ending: str, status: int, tmp_path: Path) -> None:
    done = run(ENDED.format(ending=ending), tmp_path / "a.h5")
    assert done.returncode == status, done.stderr
    assert complete_steps(tmp_path / "a.h5") == 5


FORKED = """
writer = Writer(Path(sys.argv[1]), INFO)
for step in range(9):
    add_step(writer, step)
    child = os.fork()
    if not child:
        if step % 3 == 0:
            os._exit(0)
        if step % 3 == 1:  # its own recording, and its file not closed by it
            other = Writer(Path(f"{sys.argv[1]}.{step}"), INFO)
            add_step(other, 0)
            other.close()
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
writer.close()
"""


@pytest.mark.thorough
@needs_fork
def test_forked_processes_leave_the_file_alone(tmp_path: Path) -> None:
    done = run(FORKED, tmp_path / "a.h5")
    assert (done.returncode, done.stderr) == (0, "")
    assert complete_steps(tmp_path / "a.h5") == 9
    assert complete_steps(tmp_path / "a.h5.4") == 1
    with Reader(tmp_path / "a.h5") as reader:
        assert reader.info.closed


# ---- readers -------------------------------------------------------------------------------------------


def test_a_reader_sees_nothing_of_an_open_step(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "a.h5", INFO)
    for number in range(1100):
        add_record(writer, sample((3,), number), step=0)
    while writer._queue._items:
        time.sleep(0.01)
    with Reader(tmp_path / "a.h5") as reader:
        assert not len(reader.steps) and not len(reader.records) and not len(reader.sketches)
        assert not reader.info.closed
    end_step(writer)
    add_record(writer, sample((3,)), step=1)
    writer.close()
    with Reader(tmp_path / "a.h5") as reader:
        assert len(reader.steps) == 1 and len(reader.records) == 1100


WRITTEN = """
writer, step = Writer(Path(sys.argv[1]), INFO), 0
print("begun", flush=True)
while not Path(sys.argv[1] + ".enough").exists():
    add_step(writer, step)
    step += 1
    time.sleep(0.02)
writer.close()
print(step, flush=True)
"""


@pytest.mark.thorough
def test_readers_while_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    command = [sys.executable, "-c", COMMON + WRITTEN, str(path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None and process.stdout.readline() == b"begun\n"
        seen: list[int] = []
        try:
            while len(set(seen)) < 10:
                with Reader(path) as reader:
                    seen.append(len(reader.steps))
                    for row in reader.records[-PER_STEP:]:
                        found = measure(reader.values(int(row["tensor"])))
                        assert (found.hash_lo, found.hash_hi) == (row["hash_lo"], row["hash_hi"])
        finally:
            path.with_name("a.h5.enough").touch()
        written = int(process.stdout.readline())
    assert process.returncode == 0
    assert seen == sorted(seen)
    assert complete_steps(path) == written


def test_a_file_that_was_opened_long_before_it_grew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Writer(tmp_path / "a.h5", INFO)

    def add_step(step: int) -> None:
        for number in (
            2 * step,
            2 * step + 1,
        ):  # few, so that HDF5 keeps the names of tensors elsewhere once they are many
            add_record(writer, sample((64, 64), number), step=step, path=f"m{number}", slot=f"{number}")
        end_step(writer, step)
        written = threading.Event()
        writer._queue.put(written.set)
        assert written.wait(HANGS)

    add_step(0)
    with Reader(tmp_path / "a.h5") as reader:
        for step in range(1, 20):
            add_step(step)
        monkeypatch.setattr(opening, "_SETTLED", -1)  # all of that was long ago
        for number, row in enumerate(reader.records):
            np.testing.assert_array_equal(reader.values(int(row["tensor"])), sample((64, 64), number))
    writer.close()


# ---- slow and full disks -------------------------------------------------------------------------------


def test_a_slow_writer_makes_the_producer_wait(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "a.h5", INFO, queue_bytes=1 << 20)
    disk_is_slow, handed_over = threading.Event(), []
    alive: weakref.WeakValueDictionary[int, np.ndarray] = weakref.WeakValueDictionary()
    writer._queue.put(disk_is_slow.wait)

    def fresh(number: int) -> np.ndarray:
        array = np.full(1 << 15, number, np.float64)
        alive[number] = array
        return array

    def produce() -> None:
        for number in range(40):
            stats = pack(measure(np.array(number, float)))
            writer.tensor(stats, "float64", (1 << 15,), lambda: fresh(number))  # noqa: B023
            handed_over.append(number)
        end_step(writer)

    producer = threading.Thread(target=produce)
    producer.start()
    while len(handed_over) < 4 and producer.is_alive():
        time.sleep(0.01)
    producer.join(0.5)
    waiting, in_memory, done = producer.is_alive(), len(alive), len(handed_over)
    disk_is_slow.set()
    producer.join(HANGS)
    assert waiting and done == 4, "4 times 256 KiB fill the queue"
    assert in_memory <= 5
    assert not producer.is_alive()
    writer.close()
    with Reader(tmp_path / "a.h5") as reader:
        assert all(reader.values(number)[-1] == number for number in range(40))


def test_a_tensor_that_is_larger_than_the_queue_passes(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "a.h5", INFO, queue_bytes=1000)
    tensors = [add_record(writer, sample((5000,), number)) for number in range(3)]
    end_step(writer)
    writer.close()
    with Reader(tmp_path / "a.h5") as reader:
        assert all(np.array_equal(reader.values(t), sample((5000,), t)) for t in tensors)


LIMITED = """
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
writer = Writer(Path(sys.argv[1]), INFO)
room = os.path.getsize(sys.argv[1]) + int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
for step in range(60):
    add_step(writer, step)
    wait(writer)
try:
    writer.close()
except StoreError as error:
    print(error)
assert threading.active_count() == 1
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
again = Writer(Path(sys.argv[1] + ".again"), INFO)
add_step(again, 0)
again.close()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs RLIMIT_FSIZE")
@pytest.mark.parametrize("kilobytes", [0, 550, 611, 733])
def test_a_full_disk_leaves_the_complete_steps(kilobytes: int, tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    done = run(LIMITED, path, kilobytes * 1000)
    assert (done.returncode, done.stderr) == (0, ""), "HDF5 would crash the process at its end"
    assert done.stdout == (
        f"writing {path} failed ([Errno 27] File too large); the recording has stopped, "
        "complete steps in it can be read\n"
    )
    steps = complete_steps(path)
    assert steps < 60 and (steps > 0) is (kilobytes > 400)
    assert complete_steps(tmp_path / "a.h5.again") == 1


def test_a_disk_that_is_full_from_the_start(tmp_path: Path) -> None:
    code = """
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
try:
    Writer(Path(sys.argv[1]), INFO)
except StoreError as error:
    print(error)
"""
    done = run(code, tmp_path / "a.h5")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"cannot write {tmp_path / 'a.h5'}: File too large; make room there, or give another place\n"
    assert not (tmp_path / "a.h5").exists()


def test_rows_that_cannot_be_written_do_not_end_the_process(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "a.h5", INFO)
    add_record(writer, sample((3,)))
    end_step(writer)
    end_step(writer, 1, scalars=[(1, "loss", "a mistake of ours")])
    for step in range(2, 5):
        end_step(writer, step)
    with pytest.raises(StoreError, match="could not convert string to float"):
        writer.close()
    with Reader(tmp_path / "a.h5") as reader:
        assert len(reader.steps) == 1 and len(reader.records) == 1
