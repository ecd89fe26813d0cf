"""mindstudio-probe's compare.json: which two recordings to compare."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probe.damage import CAUSES, Damaged, parsed
from probe.errors import ConfigError, StoreError

_BENCH = ("bench_path", "bench_json_path", "golden_path")
_NPU = ("npu_path", "npu_json_path", "target_path")
_NOT_NEEDED = ("stack_path", "stack_json_path", "is_print_compare_log")
_DUMPS = ("dump.json", "debug.json")
_OF_A_DUMP = re.compile(r"step\d+|rank\d*|proc\d*|dump\.json|debug\.json|stack\.json")
"""parts of a path that lie inside the folder of mindstudio-probe's dump_path"""
_RANK = re.compile(r"rank(\d+)")
_MOST_NAMED = 4


@dataclass(frozen=True)
class CompareFile:
    """What a compare.json asks for."""

    a: Path
    """of the benchmark, which is trusted"""
    b: Path
    """of the NPU"""
    ignored: tuple[str, ...]
    """fields that probe does not know"""


def read_compare_json(path: str | Path) -> CompareFile:
    """Return the recordings that a compare.json names.

    A path may be a recording, or lead to the folder of ``dump_path`` or into what mindstudio-probe would have made of
    it (``step0``, ``rank0``, ``dump.json``): then the recording in that folder is taken. Where there is none, a path
    to a dump of mindstudio-probe stands for that dump.

    Raises StoreError where a file is not there, or a folder holds no recording or several, and ConfigError where it
    is not JSON, or names no two paths.
    """
    path = Path(path)
    fields = _fields(path)
    found = []
    for names in (_BENCH, _NPU):
        name = next((name for name in names if name in fields), names[0])
        value = fields.get(name)
        if not isinstance(value, str) or not value:
            raise ConfigError(f"{path}: {name}={value!r}; expected a recording, or the folder that holds it")
        found.append(_recording(path, name, value))
    ignored = tuple(name for name in fields if name not in (*_BENCH, *_NPU, *_NOT_NEEDED))
    return CompareFile(*found, ignored)


def _fields(path: Path) -> Mapping[str, Any]:
    try:
        fields = parsed(path.read_bytes())
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from None
    except (Damaged, *CAUSES) as error:
        raise ConfigError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(fields, Mapping):
        raise ConfigError(f'{path}: expected {{"npu_path": ..., "bench_path": ...}}')
    return fields


def _recording(file: Path, name: str, value: str) -> Path:
    """Return the recording that a path means: itself, or the one in the folder that it leads to."""
    given = Path(value)
    where = f"{file}: {name}={value!r}"
    if given.is_file() and given.name not in _DUMPS:
        return given
    folder, rank = given, ""
    while not (found := _in(folder, rank)) and _OF_A_DUMP.fullmatch(folder.name):
        named = _RANK.fullmatch(folder.name)
        folder, rank = folder.parent, named[1] if named else rank
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(each.name for each in found[:_MOST_NAMED]) + (" …" if len(found) > _MOST_NAMED else "")
        raise StoreError(f"{where}: {folder} holds {len(found)} recordings ({names}); name one of them")
    if given.name in _DUMPS and given.is_file() or any(next(given.glob(f"**/{dump}"), None) for dump in _DUMPS):
        return given
    raise StoreError(
        f"{where}: {'no recording in' if folder.is_dir() else 'there is no'} {folder}; expected a .h5 file there"
    )


def _in(folder: Path, rank: str) -> list[Path]:
    """Return the recordings in a folder, of one rank where that is named."""
    found = sorted(folder.glob("*.h5")) if folder.is_dir() else []
    of_rank = [each for each in found if rank and each.stem.endswith(f".rank{int(rank):05d}")]
    return of_rank or found
