"""Replacing a recording by a new one, which happens only when the user asks for it."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from probe.errors import ExistsError, StoreError, warn
from probe.store.reading.hdf5 import open_on
from probe.store.writing import system
from probe.store.writing.creation import remove
from probe.store.writing.disk import Disk

_SIGNATURE = b"\x89HDF\r\n\x1a\n"


@contextlib.contextmanager
def replaced(path: Path) -> Iterator[None]:
    """Remove a recording once the block has ended; put it back if the block fails.

    Raises ExistsError where what is there is no recording, StoreError where it cannot be read, or not be moved.
    """
    aside = path.with_name(f"{path.name}.replaced-{os.getpid()}")
    try:
        if not _is_there(path):
            aside = None
        elif _may_be_a_recording(path):
            system.rename(path, aside)
        else:
            raise ExistsError(
                f"{path} exists and is not a recording of probe; overwrite replaces recordings only: give another name"
            )
    except StoreError:
        raise
    except OSError as error:
        raise StoreError(f"cannot replace {path}: {error.strerror or error}; give another name") from None
    try:
        yield
    except BaseException as error:
        if aside is not None:
            _put_back(aside, path, error)
        raise
    left = remove(aside) if aside is not None else ""
    if left:
        warn(f"what {path} replaces is still there: {left}")


def _is_there(path: Path) -> bool:
    return _mode(path) != 0


def _mode(path: Path) -> int:
    """Return what kind of file there is, 0 for none. Raises OSError where nobody can tell."""
    try:
        return system.stat(path).st_mode
    except FileNotFoundError:
        return 0


def _put_back(aside: Path, path: Path, error: BaseException) -> None:
    """Give a recording its name again, unless another file has it; where it keeps the other name ``error`` says so."""
    with contextlib.suppress(OSError):
        if not _is_there(path):
            system.rename(aside, path)
            return
    error.add_note(f"probe: the recording that was to be replaced is {aside} now")


def _may_be_a_recording(path: Path) -> bool:
    """Return True if a file is a recording, an HDF5 file that a killed process left damaged, or empty. Raises OSError."""
    if not stat.S_ISREG(_mode(path)):
        return False
    disk = Disk(path, system.LOOKED_AT)
    size = disk.seek(0, os.SEEK_END)
    disk.seek(0)
    start = disk.read(min(size, len(_SIGNATURE)))
    found = _says_so(disk) if start == _SIGNATURE else not start
    disk.close()
    if disk.error is not None:  # it cannot be read now, so it may be anything
        raise disk.error
    return found


def _says_so(disk: Disk) -> bool:
    try:
        with open_on(disk, "r") as file:
            return file.attrs.get("format") == "probe"
    except (OSError, RuntimeError, KeyError):
        return True
