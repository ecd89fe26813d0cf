"""The file under HDF5: what it holds back, and what reaches the disk when."""

from __future__ import annotations

import contextlib
import errno
import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from probe.store import journal
from probe.store.writing import disk as disk_module
from probe.store.writing import system
from probe.store.writing.disk import PAGE, Disk
from tests.failing import Failing

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
