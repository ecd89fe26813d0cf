"""Opening a recording, and what to say of a file that is none."""

from __future__ import annotations

import glob
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from h5py import h5g

from probe.damage import CAUSES, Damaged, refuse_pointer, said_of
from probe.errors import FormatError, StoreError
from probe.store import journal, schema
from probe.store.reading import heaps, layout
from probe.store.reading.hdf5 import open_on

_BINARY = re.compile(rb"[\0-\x08\x0e-\x1a\x1c-\x1f]")
_ATTEMPTS = 5
"""how often a file is read that a writer may be changing"""
_PAUSE = 0.01
"""seconds before the second attempt; before each later one so much more"""
_SETTLED = 2.0
"""seconds after the last write, from which on no writer is in the middle of one"""
_PATIENCE = 10.0
"""seconds for which a file is read anew that was written to during each attempt"""


def attempts(path: Path) -> Iterator[None]:
    """Yield for each attempt to read a file that a writer may be changing.

    An attempt during which the file was written to does not count, for a while. A file that did not change during the attempt, and
    that nobody has written to for some seconds, would be read alike again.
    """
    ends, attempt = time.monotonic() + _PATIENCE, 0
    while attempt < _ATTEMPTS:
        if attempt:  # sleeping for no time, too, hands the processor over
            time.sleep(_PAUSE * attempt)
        before = _last_write(path)
        yield
        after = _last_write(path)
        if before == after or time.monotonic() > ends:
            attempt += 1
        if after is None or (before == after and abs(time.time() - after[0]) > _SETTLED):
            return


def _last_write(path: Path) -> tuple[float, int] | None:
    """Return when a file was written to last, and its size; None where it is gone."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime, found.st_size


def opened(path: Path) -> tuple[h5py.File, dict[str, dict[str, Any]]]:
    """Open a recording; return the attributes of its groups too. Raise `StoreError` where that cannot be done, `FormatError` where it is none."""
    if path.is_dir():
        raise StoreError(f"{path} is a folder; give the recording in it, a file that probe.start wrote (.h5)")
    if not path.is_file():
        raise StoreError(f"there is no file {path}{of_ranks(path)}")
    for _ in attempts(path):
        try:
            file = open_on(journal.readable(path), "r", locking=False)
        except PermissionError as error:
            raise StoreError(f"{path} may not be read: {error.strerror}") from None
        except (Damaged, *CAUSES) as error:
            failure = error
            continue
        try:
            attributes = _attributes(path)
            _check_format(path, attributes["/"].get("format"), attributes["/"].get("version"))
            return file, attributes
        except FormatError:
            file.close()
            raise
        except (Damaged, *CAUSES) as error:
            file.close()
            failure = error
    if isinstance(failure, Damaged):
        raise FormatError(said_of(path, "/", failure)) from failure
    raise FormatError(_why_not_hdf5(path, failure)) from failure


def _attributes(path: Path) -> dict[str, dict[str, Any]]:
    """Return the attributes of ``/`` and ``/environment``, read by a file that looks at the texts before HDF5 does."""
    size = path.stat().st_size
    with journal.readable(path) as raw, open_on(heaps.Watched(raw, size), "r", locking=False) as file:
        found = {"/": layout.attributes(h5g.open(file.id, b"/"), size)}
        if layout.has(file.id, "environment"):
            found["environment"] = layout.attributes(layout.opened(file, "environment"), size)
        return found


def of_ranks(path: Path) -> str:
    """Say so where there are files of that name which several ranks wrote."""
    found = sorted(
        each.name for each in path.parent.glob(f"{glob.escape(path.stem)}.rank[0-9]*{glob.escape(path.suffix)}")
    )
    if not found:
        return ""
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return (
        f", but {found[0]}{more}: each rank writes a file of its own; give one of A's and the one of the same rank of B"
    )


def _why_not_hdf5(path: Path, failure: Exception) -> str:
    """Say that a file is one of weights, where it begins as one, or that it is no HDF5 file; raise FormatError of a pointer of Git LFS."""
    refuse_pointer(path)
    with path.open("rb") as file:
        head = file.read(1 << 10)
    size = int.from_bytes(head[:8], "little")
    kinds = {
        "a zip archive, as torch.save writes": head.startswith(b"PK\x03\x04"),
        "a pickle": head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"),
        "safetensors": head[8:9] == b"{" and 0 < size < path.stat().st_size,
    }
    kind = next((name for name, fits in kinds.items() if fits), "")
    if kind:
        return (
            f"{path} looks like a checkpoint ({kind}), not a recording: probe compares what probe.start records while a model "
            "runs; record both sides and give these files"
        )
    if not head:
        return f"{path} is empty; expected a recording, a file that probe.start wrote"
    kind = f"not an HDF5 file, or is truncated ({failure})" if _BINARY.search(head) else "a text file"
    return f"{path} is {kind}; expected a recording, a file that probe.start wrote"


def _check_format(path: Path, name: object, version: object) -> None:
    if name != schema.FORMAT or version is None:
        raise FormatError(
            f"{path} is an HDF5 file, but not a recording of probe; expected a file that probe.start wrote"
        )
    if not isinstance(version, (int, np.integer)) or version < 1:
        raise FormatError(f"{path} is damaged: its format is {version!r}, expected a number from 1")
    if version > schema.VERSION:
        raise FormatError(
            f"{path} has format {version}, this probe reads up to format {schema.VERSION}: upgrade probe-align"
        )
