"""Writing past the system's cache: the same bytes, and the cache wherever it cannot be done."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies as st

from probe.store.writing import system, uncached
from probe.store.writing.disk import Disk
from probe.store.writing.uncached import ALIGNMENT, LEAST, Uncached

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
