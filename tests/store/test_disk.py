"""The file under HDF5: what it holds back, what reaches the disk when, and writing past the system's cache."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from probe.store import journal
from probe.store.writing import disk as disk_module
from probe.store.writing import system, uncached
from probe.store.writing.disk import PAGE, Disk
from probe.store.writing.uncached import ALIGNMENT, LEAST, Uncached
from tests.store.failing import Failing

# ---- The file under HDF5: what it holds back, and what reaches the disk when.

SIZES = st.sampled_from([0, 1, 100, 4095, 4096, 4097, 9000, 65_535, 65_536, 200_000])
OFFSETS = st.sampled_from([0, 1, 96, 4000, 4096, 8191, 50_000, 66_000, 210_000])
WRITES = st.tuples(st.just("write"), OFFSETS, SIZES, st.integers(1, 255))
OTHERS = st.tuples(st.sampled_from(["commit", "read", "truncate"]), OFFSETS, SIZES, st.just(0))
TENSORS = st.tuples(st.sampled_from(["tensors", "tensors between"]), OFFSETS, SIZES, st.integers(1, 255))


def write(disk: Disk, offset: int, data: bytes) -> None:
    disk.seek(offset)
    assert disk.write(data) == len(data)


def read(disk: Disk, offset: int, size: int) -> bytes:
    disk.seek(offset)
    return disk.read(size)


@pytest.mark.thorough
@hypothesis.settings(max_examples=120, deadline=None)
@hypothesis.given(steps=st.lists(WRITES | TENSORS | OTHERS, max_size=25))
@hypothesis.example(steps=[("write", 0, 50, 1), ("tensors between", 96, 9000, 2), ("commit", 0, 0, 0)])
def test_it_reads_as_written_and_keeps_what_was_committed(
    steps: list[tuple[Any, ...]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("disk") / "file"
    disk, model, committed = Disk(path), bytearray(), b""
    for action, offset, size, value in steps:
        if action == "write":
            write(disk, offset, bytes([value]) * size)
            if size:
                model.extend(bytes(max(offset + size - len(model), 0)))
                model[offset : offset + size] = bytes([value]) * size
        elif action.startswith("tensors"):  # where HDF5 has given them their place: large ones at the border of a page
            places = [-(-(len(model) + hole) // PAGE) * PAGE for hole in (offset, offset + size + 5000)]
            if action == "tensors between":  # metadata lie before and behind them, and may have been written before
                places = [offset, offset + size + 96]
            disk.write_many([(place, memoryview(bytes([value]) * size)) for place in places])
            for place in places:
                model.extend(bytes(max(place + size - len(model), 0)))
                model[place : place + size] = bytes([value]) * size
        elif action == "truncate" and size >= len(model):  # HDF5 cuts nothing off that it needs
            disk.truncate(size)
            model.extend(bytes(size - len(model)))
        elif action == "read":
            expected = bytes(model[offset : offset + size]).ljust(size, b"\0")
            assert read(disk, offset, size) == expected
        elif action == "commit":
            disk.commit()
            committed = bytes(model)
            assert path.read_bytes() == committed
        assert path.read_bytes()[: len(committed)] == committed
        assert disk.seek(0, os.SEEK_END) == disk.tell() == len(model)
    disk.close()


def limited(size: int) -> AbstractContextManager[object]:
    """No file can grow beyond a size: as good as a full disk."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    stack = contextlib.ExitStack()
    stack.callback(resource.setrlimit, resource.RLIMIT_FSIZE, before)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    return stack


@hypothesis.settings(max_examples=80, deadline=None)
@hypothesis.given(
    old=st.lists(WRITES, min_size=1, max_size=4),
    new=st.lists(WRITES, max_size=4),
    room=st.integers(-1, 9000) | st.integers(0, 300_000),
)
def test_a_commit_without_room_changes_nothing(
    old: list[tuple[Any, ...]], new: list[tuple[Any, ...]], room: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("disk") / "file"
    disk = Disk(path)
    for _, offset, size, value in old:
        write(disk, offset, bytes([value]) * size)
    disk.commit()
    committed = path.read_bytes()
    with limited(len(committed) + room):
        try:
            for _, offset, size, value in new:
                write(disk, offset, bytes([value]) * size)
            disk.commit()
        except OSError as error:
            assert error.errno == errno.EFBIG
            assert path.read_bytes()[: len(committed)] == committed
        else:
            assert path.stat().st_size <= len(committed) + max(room, 0)
    disk.close()


class Killed(BaseException):
    """Raised where a process is killed: nothing of ours runs after it."""


def killed_in_commit(path: Path, old: list[Any], new: list[Any], done: int) -> tuple[bytes, bytes]:
    """Commit some writes, and others until ``done`` parts of the committed bytes are changed; return before, after."""

    def some(descriptor: int, runs: list[tuple[int, bytes]]) -> None:
        at_once(descriptor, runs[:done])
        raise Killed

    disk = Disk(path)
    for _, offset, size, value in old:
        write(disk, offset, bytes([value]) * size)
    disk.commit()
    before = path.read_bytes()
    for _, offset, size, value in new:
        write(disk, offset, bytes([value]) * size)
    after = read(disk, 0, disk.seek(0, os.SEEK_END))
    at_once = disk_module._write_at_once
    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(Killed):
        patch.setattr(disk_module, "_write_at_once", some)
        disk.commit()
    os.close(disk._descriptor)
    return before, after


def content(path: Path) -> bytes:
    """Return what HDF5 is given to read."""
    source = journal.readable(path)
    size = source.seek(0, os.SEEK_END)
    source.seek(0)
    data = source.read(size)
    source.close()
    return data


KILLS = {
    "old": st.lists(WRITES, min_size=1, max_size=4),
    "new": st.lists(WRITES, min_size=1, max_size=4),
    "done": st.integers(0, 3),
}


@hypothesis.settings(max_examples=80, deadline=None)
@hypothesis.given(**KILLS)
def test_a_commit_that_is_killed_can_be_completed(
    old: list[Any], new: list[Any], done: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("disk") / "file"
    before, after = killed_in_commit(path, old, new, done)
    changed = before != after[: len(before)]
    assert content(path)[: len(after)] == after
    assert bool(journal.pending(path)) or not changed
    journal.repair(path)
    assert path.read_bytes() == after
    assert not journal.pending(path)


@hypothesis.settings(max_examples=80, deadline=None)
@hypothesis.given(**{**KILLS, "done": st.just(0)}, cut=st.floats(0, 0.999), flip=st.booleans())
def test_a_journal_that_is_not_whole_does_not_count(
    old: list[Any], new: list[Any], done: int, cut: float, flip: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("disk") / "file"
    before, after = killed_in_commit(path, old, new, done)
    hypothesis.assume(journal.pending(path))
    raw = bytearray(path.read_bytes())
    place = len(after) + int(cut * (len(raw) - len(after)))
    if flip:
        raw[place] ^= 0x40
    path.write_bytes(raw if flip else raw[:place])
    assert not journal.pending(path)
    assert content(path)[: len(before)] == before
    journal.repair(path)
    assert path.read_bytes()[: len(before)] == before


def test_what_is_cut_off_stays_until_the_commit(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "file")
    write(disk, 0, b"x" * 10_000)
    disk.commit()
    disk.truncate(5000)
    assert (tmp_path / "file").stat().st_size == 10_000
    disk.commit()
    assert (tmp_path / "file").read_bytes() == b"x" * 5000
    disk.close()


def test_what_is_cut_off_and_written_again_is_written(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "file")
    for size, data in ((12_288, b"y"), (4096, b"x"), (12_288, b"x")):
        for page in range(3):
            write(disk, page * PAGE, data * PAGE)
        disk.truncate(size)
        disk.commit()
    assert (tmp_path / "file").read_bytes() == b"x" * 12_288
    disk.close()


def test_a_journal_never_lies_over_what_was_committed(tmp_path: Path) -> None:
    """Where a commit makes the file shorter, too."""
    path = tmp_path / "file"
    disk = Disk(path)
    write(disk, 0, b"x" * 40_000)
    disk.commit()
    disk.truncate(5000)
    write(disk, 0, b"new")
    with Failing("overwrite", lasting=True), pytest.raises(OSError):
        disk.commit()
    assert content(path)[:5000] == b"new" + b"x" * 4997
    assert path.read_bytes()[:40_000] == b"x" * 40_000
    disk.close()
    assert path.read_bytes() == b"new" + b"x" * 4997, "what was written down is done when the file is closed"


def test_a_read_that_returns_less_goes_on(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 10_000)
    disk = Disk(tmp_path / "file", system.CHANGED)
    with Failing("pread", lasting=True, short=True):
        assert read(disk, 0, 12_288) == b"x" * 10_000 + bytes(2288)
    disk.close()
    assert (tmp_path / "file").read_bytes() == b"x" * 10_000


def test_memory_is_bounded_where_nothing_is_overwritten(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "file")
    for number in range(4000):
        write(disk, number * 4096, b"x" * 4096)
    assert (tmp_path / "file").stat().st_size > 7 << 20
    disk.close()


def test_after_a_failure_everything_is_held(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "file")
    write(disk, 0, b"old" * 5000)
    disk.commit()
    os.close(disk._descriptor)
    disk._descriptor = os.open(tmp_path / "file", os.O_RDONLY)  # as good as a full disk
    write(disk, 100_000, b"x" * 70_000)
    write(disk, 0, b"new")
    assert read(disk, 0, 3) == b"new" and read(disk, 169_999, 2) == b"x\0"
    with pytest.raises(OSError) as caught:
        disk.commit()
    assert caught.value.errno == errno.EBADF
    assert (tmp_path / "file").read_bytes() == b"old" * 5000
    os.close(disk._descriptor)
    disk._descriptor = os.open(tmp_path / "file", os.O_RDWR)  # there is room again
    write(disk, 0, b"new")
    with pytest.raises(OSError):
        disk.commit()
    assert (tmp_path / "file").read_bytes() == b"old" * 5000
    disk.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_writes_nothing(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "file")
    write(disk, 0, b"old" * 5000)
    disk.commit()
    child = os.fork()
    if not child:
        write(disk, 0, b"new")
        write(disk, 100_000, b"x" * 70_000)
        disk.commit()
        os._exit(0 if read(disk, 0, 3) == b"new" else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert (tmp_path / "file").read_bytes() == b"old" * 5000
    disk.close()


def test_an_existing_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    with pytest.raises(FileExistsError):
        Disk(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "precious"


# ---- Writing past the system's cache: the same bytes, and the cache wherever it cannot be done.

PLACES = st.tuples(
    st.sampled_from([0, 1, LEAST - 1, LEAST, LEAST + 100, 2 * LEAST + ALIGNMENT]),  # bytes
    st.sampled_from([0, 0, 0, ALIGNMENT, 5 * LEAST]),  # pages left free before it
    st.sampled_from([0, 0, 0, 64]),  # from where on in an aligned block
)


def aligned(size: int, start: int = 0, value: int = 7) -> memoryview:
    block = mmap.mmap(-1, size + start + ALIGNMENT)
    block.write(bytes(start) + bytes([value]) * size)
    return memoryview(block)[start : start + size]


def new_file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"")
    return path


def works(tmp_path: Path) -> bool:
    """Return True if this file system writes past its cache, by the system's own call."""
    try:
        descriptor = os.open(new_file(tmp_path), os.O_WRONLY | os.O_DIRECT)
    except (AttributeError, OSError):
        return False
    try:
        return os.pwrite(descriptor, aligned(LEAST), 0) == LEAST
    except OSError:
        return False
    finally:
        os.close(descriptor)


@hypothesis.settings(max_examples=40, deadline=None)
@hypothesis.given(tensors=st.lists(PLACES, min_size=1, max_size=8), commits=st.booleans())
def test_the_file_is_the_same(
    tensors: list[tuple[int, int, int]], commits: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("uncached") / "file"
    disk, expected = Disk(path), bytearray(b"head")
    disk.write(b"head")
    if commits:
        disk.commit()
    parts = []
    for number, (size, hole, start) in enumerate(tensors):
        place = -(-len(expected) // ALIGNMENT) * ALIGNMENT + hole
        parts.append((place, aligned(size, start, number + 1)))
        expected.extend(bytes(place + size - len(expected)))
        expected[place:] = bytes([number + 1]) * size
    disk.write_many(parts)
    disk.commit()
    assert path.read_bytes() == bytes(expected)
    disk.close()


def is_in_cache(path: Path) -> bool:
    """Return True if the system keeps a file's first page in memory. Raises AttributeError or OSError where nobody can tell.

    A read that may not wait does not tell: it starts to read ahead, and a quick disk has it before the read looks.
    """
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        found = ctypes.c_ubyte()
        start = ctypes.c_char.from_buffer(mapped)
        refused = ctypes.CDLL(None).mincore(ctypes.byref(start), ctypes.c_size_t(ALIGNMENT), ctypes.byref(found))
        del start
    if refused:
        raise OSError(f"mincore refused {path}")
    return bool(found.value & 1)


def test_what_is_written_is_not_kept_in_memory(tmp_path: Path) -> None:
    (tmp_path / "cached").write_bytes(bytes(LEAST))
    try:
        can_tell = works(tmp_path) and is_in_cache(tmp_path / "cached")
    except (AttributeError, OSError):
        can_tell = False
    if not can_tell:
        pytest.skip("this file system writes everything through its cache, or does not tell")
    disk = Disk(tmp_path / "a")
    disk.write_many([(0, aligned(4 * LEAST))])
    assert not is_in_cache(tmp_path / "a")
    disk.close()


@pytest.mark.parametrize(("size", "start", "offset"), [(LEAST - 1, 0, 0), (LEAST, 64, 0), (LEAST, 0, 512)])
def test_what_is_small_or_lies_crooked_is_left(size: int, start: int, offset: int, tmp_path: Path) -> None:
    path = new_file(tmp_path)
    assert Uncached(path).write(aligned(size, start), offset) == 0
    assert path.read_bytes() == b""


def test_the_last_odd_part_is_left(tmp_path: Path) -> None:
    if not works(tmp_path):
        pytest.skip("this file system writes everything through its cache")
    assert Uncached(new_file(tmp_path)).write(aligned(LEAST + 100), 0) == LEAST


def test_a_file_system_that_does_not_have_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> int:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(system, "pwrite", refuse)
    disk = Disk(tmp_path / "a")
    disk.write_many([(0, aligned(3 * LEAST))])
    disk.commit()
    assert (tmp_path / "a").read_bytes() == bytes([7]) * (3 * LEAST)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EFBIG, errno.EDQUOT])
def test_a_refused_write_ends_the_recording_as_any_other(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> int:
        raise OSError(number, os.strerror(number))

    if not works(tmp_path):
        pytest.skip("this file system writes everything through its cache")
    disk = Disk(tmp_path / "a")
    disk.write(b"head")
    disk.commit()
    with monkeypatch.context() as patch:
        patch.setattr(system, "pwrite", refuse)
        disk.write_many([(ALIGNMENT, aligned(3 * LEAST))])
    with pytest.raises(OSError, match=os.strerror(number)):
        disk.commit()
    disk.close()
    assert (tmp_path / "a").read_bytes() == b"head"


def test_a_slow_disk_is_left_to_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1000))  # a second for every write
    monkeypatch.setattr(uncached.time, "perf_counter", lambda: float(next(clock)))
    monkeypatch.setattr(system, "pwrite", lambda descriptor, data, offset: len(data))
    path = new_file(tmp_path)
    file = Uncached(path)
    if file._descriptor < 0:
        pytest.skip("this file system writes everything through its cache")
    piece = aligned(33 << 20)
    assert [file.write(piece, 0) for _ in range(3)] == [len(piece), len(piece), 0]


def test_nothing_stays_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").is_dir() else 0
    disk = Disk(tmp_path / "a")
    disk.write_many([(0, aligned(LEAST))])
    disk.commit()
    disk.close()
    assert not before or len(os.listdir("/proc/self/fd")) == before
