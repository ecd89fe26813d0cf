"""Another tool's dump that a comparison is given as a recording; what reads it is imported only where there is one."""

from __future__ import annotations

import functools
import os
from typing import Any

_HDF5 = b"\x89HDF\r\n\x1a\n"
_FILES = (".json", ".csv", ".npy", ".npz", ".safetensors", ".pt", ".pth", ".bin", ".pdparams", ".ckpt", ".pkl")


def recording_of(given: Any) -> Any:
    """Return what is given, or the recording of the dump that it leads to.

    That one is written into a folder that is removed when the process ends; a line says so. Raises what `import_dump` raises.
    """
    if not isinstance(given, (str, os.PathLike)) or not os.path.exists(given) or _is_recording(os.fspath(given)):
        return given
    path = os.path.abspath(given)
    return _imported(path, _stamp(path)) or given


def _stamp(path: str) -> int:
    """Return a number that changes where a dump is written again."""
    from pathlib import Path

    from probe.dumps.files import files_in

    found = (os.path.join(path, name) for name in files_in(Path(path)))
    known = ((each, os.lstat(each)) for each in ([path] if os.path.isfile(path) else found))
    return functools.reduce(
        lambda so_far, each: hash((so_far, each[0], each[1].st_size, each[1].st_mtime_ns)), known, 0
    )


def _is_recording(path: str) -> bool:
    if os.path.isdir(path):
        return any(name.endswith(".h5") for name in os.listdir(path))
    if not path.endswith(_FILES) or not os.path.isfile(path):
        return True
    with open(path, "rb") as file:
        return file.read(len(_HDF5)) == _HDF5


@functools.cache
def _imported(path: str, stamp: int) -> str:
    """Return the recording of a dump as it is now; nothing where a folder is none."""
    import atexit
    import shutil
    import tempfile
    from pathlib import Path

    from probe.dumps.importing import import_dump
    from probe.dumps.table import kind_of
    from probe.errors import FormatError
    from probe.messages import say

    source: Any = Path(path)
    try:
        kind, _ = kind_of(source)
    except FormatError:
        return ""
    folder = tempfile.mkdtemp(prefix="probe-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    target = Path(folder, f"{source.stem if source.is_file() else source.name}.h5")
    import_dump(source, target)
    say(f"{source.name} is a dump of {kind.tool}, imported to a temporary recording (probe import keeps it)")
    return str(target)
