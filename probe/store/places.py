"""Where recordings lie: on a disk, or behind a URL that fsspec reads."""

from __future__ import annotations

import glob
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, cast

from probe.errors import ConfigError, StoreError

_URL = "://"


def place_of(given: str | os.PathLike[str]) -> Path:
    """Return a path; for a URL (``s3://runs/a.h5``, ``memory://…``) what is used as one, of universal_pathlib.

    Raises ConfigError where it is no path, StoreError where what reads such URLs is not installed, or no URL begins
    so.
    """
    if hasattr(given, "is_file"):  # of pathlib, or of universal_pathlib
        if not isinstance(given, Path) or _URL not in str(given):
            return cast(Path, given)
    elif isinstance(given, (str, os.PathLike)):
        given = os.fspath(given)
    else:
        kind = type(given)
        raise ConfigError(
            f"expected a path, or a recording that probe.open opened, got {kind.__module__}.{kind.__qualname__}"
        )
    if _URL not in str(given):
        return Path(given)
    try:
        from upath import UPath

        found: Any = UPath(given)
        found.fs  # noqa: B018  loads what reads such URLs
    except ImportError as error:
        raise StoreError(f"{given} is a URL, which needs more: pip install 'probe-align[remote]' ({error})") from None
    except ValueError as error:
        raise StoreError(f"{given} is no URL that can be read: {error}") from None
    return cast(Path, found)


def is_local(path: Path) -> bool:
    """Return True if a path is one of this machine."""
    return isinstance(path, Path)


def _seek_and_read(descriptor: int, buffers: list[memoryview], offset: int) -> int:
    os.lseek(descriptor, offset, os.SEEK_SET)
    data = os.read(descriptor, len(buffers[0]))
    buffers[0][: len(data)] = data
    return len(data)


_read_at: Callable[[int, list[memoryview], int], int] = getattr(os, "preadv", _seek_and_read)
"""Windows has no call for reading at an offset, and no forked processes"""


class Unshared(io.RawIOBase):
    """A file of this machine, as `h5py.File` takes it in place of a path: to HDF5 each of these is a file of its own.

    A file that is opened twice by its path is one to HDF5, which then reads texts through the one that was closed: other bytes, or a
    crash (https://github.com/h5py/h5py/issues/2920). Reading moves no place that forked processes share.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = -1  # for `close`, where it cannot be opened
        self._descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        self._place = 0

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to an offset."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._place}.get(whence)
        self._place = offset + (os.fstat(self._descriptor).st_size if start is None else start)
        return self._place

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Fill a buffer from the offset, unless the file ends before."""
        view, count = memoryview(buffer).cast("B"), 0
        while count < len(view):
            found = _read_at(self._descriptor, [view[count:]], self._place)
            if not found:
                break
            count += found
            self._place += found
        return count

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def opened_raw(path: Path) -> io.RawIOBase | IO[bytes]:
    """Open the bytes of a file; on a disk without a buffer, for large reads."""
    return Unshared(path) if is_local(path) else path.open("rb")


def matching(given: str) -> list[Path]:
    """Return the files that a glob stands for."""
    if _URL not in given:
        return [Path(each) for each in glob.glob(given) if Path(each).is_file()]
    place = place_of(given)
    return [each for each in place.parent.glob(place.name) if each.is_file()]
