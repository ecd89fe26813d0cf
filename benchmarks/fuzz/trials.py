"""What probe does with an input of each kind: all that a command would read of it, and a comparison with the valid one."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import probe
from probe.checkpoints import open_checkpoint
from probe.comparing import compare
from probe.config import RecordConfig
from probe.curve_comparison.judge import curves
from probe.curve_comparison.reading.files import read_curves
from probe.mapping import load_mapping
from probe.records import Phase, Role
from probe.report import inspect, text
from probe.reproducibility.batches import load_batches
from probe.store.reading.reader import Reader

_SMALL = 200
"""bytes of a mapping that may be for the recordings here"""
NORM = 1e-2
"""a relative difference of two norms that no rounding explains"""


class FalseAligned(Exception):
    """Two recordings that hold different things were found to be the same."""


def recording(valid: Path, path: Path) -> str:
    """Read a recording as a whole, and compare it."""
    with Reader(path) as reader:
        read_whole(reader)
    inspect.summary(path)
    result = compare(valid, path)
    text.render(result)
    if result.verdict == "aligned" and not result.left_out and not result.warnings:
        check_aligned(valid, path)
    return str(result.verdict.value)


def read_whole(reader: Reader) -> None:
    """Read all that a recording offers."""
    _ = (
        reader.info,
        reader.modules,
        reader.parameters,
        reader.slots,
        reader.shapes,
        reader.records,
        reader.calls,
        reader.sketches,
    )
    _ = reader.scalars, reader.notes, reader.optimizer, reader.environment, reader.behind_last_step, reader.steps_made
    for index in range(len(reader.parameters)):
        reader.axis_sums(0, index, range(len(reader.parameters[index].shape)))
    for tensor in set(reader.records["tensor"].tolist()) - {-1}:
        reader.values(tensor)


def check_aligned(valid: Path, path: Path) -> None:
    """Raise FalseAligned where what two recordings hold cannot be the same by rounding, whatever its names and dtypes."""
    with Reader(valid) as a, Reader(path) as b:
        one, two = held(a), held(b)
    known = {each[0] for found in one.values() for each in found} & {
        each[0] for found in two.values() for each in found
    }
    for place in one.keys() | two.keys():
        mine, theirs = one.get(place, []), two.get(place, [])
        if len(mine) != len(theirs):  # a tensor that is handed on is compared once
            mine, theirs = ([each for each in found if each[0] not in known] for found in (mine, theirs))
        mine, theirs = (sorted(each[1:] for each in found) for found in (mine, theirs))
        if len(mine) != len(theirs):
            raise FalseAligned(f"{_named(place)}: {len(mine)} tensors and {len(theirs)}")
        for tensor, other in zip(mine, theirs, strict=True):
            if tensor[:-1] != other[:-1] or not np.isclose(tensor[-1], other[-1], rtol=NORM, atol=1e-6, equal_nan=True):
                raise FalseAligned(f"{_named(place)}: {tensor[:1]} and others")


def _named(place: tuple[int, ...]) -> str:
    return f"{Phase(place[2]).label} {Role(place[3]).label}"


def held(reader: Reader) -> dict[tuple[int, ...], list[tuple[Any, ...]]]:
    """Return hash, size, numbers that are not finite, and norm of each tensor, by step, micro, phase and role."""
    found: dict[tuple[int, ...], list[tuple[Any, ...]]] = {}
    for row in reader.records:
        place = int(row["step"]), int(row["micro"]), int(row["phase"]), int(row["role"])
        counts = int(row["nan"]), int(row["posinf"]), int(row["neginf"])
        digest, norm = (int(row["hash_lo"]), int(row["hash_hi"])), float(row["norm"])
        found.setdefault(place, []).append(
            (digest, math.prod(reader.shapes[row["shape"]]), *counts, norm if norm == norm else -1.0)
        )
    return found


def mapping(valid: Path, path: Path) -> str:
    """Read a layer mapping, and compare by it."""
    load_mapping(path)
    if path.stat().st_size > _SMALL:
        return "read"
    return str(compare(valid, valid, path).verdict.value)


def option(valid: Path, path: Path) -> str:
    """Read a configuration of recording, or rules, and use it."""
    if ".rules" in path.name:
        return str(compare(valid, valid, rules=path).verdict.value)
    config = RecordConfig.from_options(path)
    _ = config.wants_step(3), config.is_over(3), config.steps_from(0), config.as_json()
    return "read"


def curve(valid: Path, path: Path) -> str:
    """Read the curves of a run, and compare them."""
    read_curves(path)
    answer = curves(valid, path)
    answer.as_json()
    return str(answer.verdict.value)


def checkpoint(valid: Path, path: Path) -> str:
    """Read all weights of a file."""
    found = open_checkpoint(path)
    for name in found.tensors:
        np.ascontiguousarray(found.read(name))
    return "read"


def batch(valid: Path, path: Path) -> str:
    """Go over the batches of a file, and compare them."""
    found = load_batches(path)
    list(found)
    found.close()
    return "equal" if probe.compare_batches(valid, path).equal else "different"


TRIALS: dict[str, Callable[[Path, Path], str]] = {
    "recordings": recording, "mappings": mapping, "options": option, "curves": curve, "checkpoints": checkpoint, "batches": batch,
}  # fmt: skip


def quietly(trial: Callable[[Path, Path], str], valid: Path, path: Path) -> str:
    """Try an input; return the verdict, or that it was refused. What falls is raised."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return trial(valid, path)
        except probe.errors.ProbeError:
            return "refused"
