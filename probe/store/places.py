"""Where recordings lie: on a disk, or behind a URL that fsspec reads."""

from __future__ import annotations

import glob
import os
from pathlib import Path
from typing import IO, Any, cast

from probe.errors import StoreError

_URL = "://"


def place_of(given: str | os.PathLike[str]) -> Path:
    """Return a path; for a URL (``s3://runs/a.h5``, ``memory://…``) an object that is used as one, of universal_pathlib.

    Raises
    ------
    StoreError
        what reads such URLs is not installed, or no URL begins so
    """
    if not isinstance(given, (str, Path)) or _URL not in str(given):
        return Path(given) if isinstance(given, str) else cast(Path, given)
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
    """Tell whether a path is one of this machine."""
    return isinstance(path, Path)


def opened_raw(path: Path) -> IO[bytes]:
    """Open the bytes of a file; on a disk without a buffer, for large reads."""
    return cast(IO[bytes], open(path, "rb", buffering=0)) if is_local(path) else path.open("rb")  # noqa: SIM115


def matching(given: str) -> list[Path]:
    """Return the files that a glob stands for."""
    if _URL not in given:
        return [Path(each) for each in glob.glob(given) if Path(each).is_file()]
    place = place_of(given)
    return [each for each in place.parent.glob(place.name) if each.is_file()]
