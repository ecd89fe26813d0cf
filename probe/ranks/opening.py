"""Opening a recording, be it of one process or of all ranks of a run; what puts ranks together is imported where there are some."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeGuard

from probe.ranks.layout.files import files_of
from probe.store.reading.reader import Reader

if TYPE_CHECKING:
    from probe.ranks.reader import RanksReader


def open_reader(given: str | os.PathLike[str], layouts: Mapping[str, str] | None = None) -> Reader:
    """Open a recording, or those of all ranks of a run as one.

    ``given`` is a file; a prefix, a folder or a glob of the files of ranks. ``layouts`` is how tensors are divided,
    by globs of module paths: what the user says. Raises StoreError or FormatError where there is none, or a file is
    of another run.
    """
    paths = files_of(given)
    if len(paths) == 1:
        return Reader(paths[0])
    from probe.ranks.reader import RanksReader

    return RanksReader(given, paths, layouts)


def is_of_ranks(reader: Reader) -> TypeGuard[RanksReader]:
    """Return True if a recording is that of all ranks."""
    return reader.is_of_ranks
