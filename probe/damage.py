"""The one place that turns whatever damaged or hostile bytes lead to into an error that names the file and what cannot be read.

It stands around reading alone: what was read and validated is compared outside of it, where an error is one in probe itself.
"""

from __future__ import annotations

import contextlib
import csv
import json
import pickle
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from probe.errors import FormatError, ProbeError, StoreError

CAUSES = (
    OSError, EOFError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RuntimeError, MemoryError, AssertionError,
    SystemError, SyntaxError, struct.error, zlib.error, zipfile.BadZipFile, csv.Error, pickle.PickleError, tokenize.TokenError,
)  # fmt: skip
"""what libraries raise of bytes that nobody meant them to read; RuntimeError has RecursionError and what zipfile does not implement"""
AGAIN = "copy it again from where it was written, or write it again"
"""what to do about a damaged file"""
_LONGEST = 300
"""characters of a cause that are said"""
_WHOLE = 20
"""digits up to which an integer in JSON is kept as one: HDF5 and numpy have none of more"""


_POINTER = b"version https://git-lfs.github.com/spec/"


def refuse_pointer(path: str | Path, kind: type[ProbeError] = FormatError) -> None:
    """Raise an error of a kind where a file is a pointer of Git LFS, which stands in the place of a large file until that is fetched.

    A file that cannot be read raises nothing.
    """
    try:
        with open(path, "rb") as file:
            head = file.read(len(_POINTER))
    except OSError:
        return
    if head == _POINTER:
        raise kind(f"{path} is a pointer of Git LFS, not the file itself: run git lfs pull there, or download the file")


class Damaged(Exception):
    """What was read cannot be; `reading` says in which file and where."""


@contextlib.contextmanager
def reading(
    path: str | Path, what: str = "", advice: str = AGAIN, kind: type[ProbeError] = FormatError
) -> Iterator[None]:
    """Turn what reading a damaged file leads to into an error of probe.

    Parameters
    ----------
    path
        the file
    what
        the table, entry or line of it; all of it when empty
    advice
        what to do
    kind
        the error to raise

    Raises
    ------
    ProbeError
        of that kind; one that was raised inside is passed on
    """
    try:
        yield
    except ProbeError:
        raise
    except (PermissionError, IsADirectoryError) as error:
        raise StoreError(f"{path} may not be read: {error.strerror}") from None
    except (Damaged, *CAUSES) as error:
        raise kind(said_of(path, what, error, advice)) from error


def said_of(path: str | Path, what: str, error: BaseException, advice: str = AGAIN) -> str:
    """Return what is said of a damaged file."""
    cause = str(error) or type(error).__name__
    cause = cause if len(cause) <= _LONGEST else f"{cause[:_LONGEST]} …"
    return f"{path} is damaged: {what + ' ' if what else ''}cannot be read ({cause}); {advice}"


def closed(path: str | Path, how: str = "probe.open") -> StoreError:
    """Return the error of reading from a file that was closed; ``how`` opens it again."""
    return StoreError(
        f"{path} was closed, by close() or at the end of its with block: read from it before that, or open it again with {how}"
    )


def parsed(text: str | bytes, digits: int = _WHOLE) -> Any:
    """Return what JSON says; whole numbers of more digits have become floats.

    Raises
    ------
    Damaged
        it is no JSON, or nested too deeply
    """
    try:
        return json.loads(text, parse_int=lambda number: int(number) if len(number) <= digits else float(number))
    except RecursionError:
        raise Damaged("its JSON is nested too deeply") from None
    except (ValueError, TypeError) as error:
        raise Damaged(f"no JSON: {error}") from None
