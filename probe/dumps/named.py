"""Any folder or file of named tensors; MindSpore's Dump, whose statistic.csv has the parts of the same names."""

from __future__ import annotations

import csv
import functools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from probe.dumps.arrays import SUFFIXES, dtype_named, is_of_objects, tensors_in
from probe.dumps.files import natural, text_of
from probe.dumps.naming import MINDSPORE, Named, patterns_of, said_by
from probe.dumps.seen import OF_WEIGHTS, Call, Dump, Seen, Step, Summary, nested, summary_of
from probe.errors import ConversionError
from probe.records import Role

_ORDERS = {False: "of tensors in their file", True: "in which files were written"}
"""what stands for the order of calls, by whether there are several files"""
_CSV = "statistic.csv"
_NAME = ("Op Type", "Op Name", "Task ID", "Stream ID", "Timestamp", "IO", "Slot", "Format", "Data Type")
"""columns that make the name of a tensor; some versions call IO otherwise, and not all have a format"""
_NUMBERS = ("Min Value", "Max Value", "Avg Value", "L2Norm Value")


def is_named(source: Path, files: list[str]) -> bool:
    """Return True for a file or folder that holds tensors."""
    return any(name.endswith(SUFFIXES) for name in files)


def is_mindspore(source: Path, files: list[str]) -> bool:
    """Return True for a folder of MindSpore's Dump."""
    return any(re.fullmatch(MINDSPORE, name) or name.rpartition("/")[2] == _CSV for name in files)


def is_reprod_log(source: Path, files: list[str]) -> bool:
    """Return True for a file that ``ReprodLogger.save`` wrote."""
    return source.suffix == ".npy" and source.is_file() and is_of_objects(source)


def read_named(source: Path, files: list[str], pattern: str | None) -> Iterator[Dump]:
    """Yield the dump of each rank. Raises ConfigError where the pattern is none, ConversionError where no name fits it."""
    patterns, framework = patterns_of(pattern), "mindspore" if is_mindspore(source, files) else ""
    of_tensors = [name for name in files if name.endswith(SUFFIXES)] or [name for name in files if name.endswith(_CSV)]
    paths = [source / name if source.is_dir() else source for name in of_tensors]
    paths.sort(key=lambda path: (path.stat().st_mtime_ns, natural(path.name)))
    told = ((name, said_by(name, patterns, SUFFIXES), seen) for path in paths for name, seen in _of_file(source, path))
    yield from dumps_of(source, framework, told, "classes of modules", len(paths) > 1)


def dumps_of(
    source: Path, framework: str, tensors: Iterable[tuple[str, Named | None, Seen]], lacks: str, has_files: bool = True,
) -> Iterator[Dump]:  # fmt: skip
    """Yield the dump of each rank, of tensors and what their names say. Raises ConversionError where no name says anything."""
    ranks: dict[int, dict[int, list[tuple[Named, Seen]]]] = defaultdict(lambda: defaultdict(list))
    unread, is_ordered = list[str](), True
    for name, said, seen in tensors:
        if said is None:
            unread.append(name)
            continue
        summary = Summary(dtype_named(said.dtype), ()) if said.dtype and seen.load else seen.summary
        ranks[said.rank][said.step].append((said, Seen(said.role, said.slot, seen.load, summary)))
        is_ordered &= said.order >= 0
    notes = [f"left out: {len(unread)} tensors with names that do not fit the pattern, {each} …" for each in unread[:1]]
    if not ranks:
        raise ConversionError(f"{source} has no tensor with a name that the pattern fits; {', '.join(notes)[:300]}")
    order = f"the order of calls is taken to be that {_ORDERS[has_files]}: {{order:int}} in --pattern gives another"
    notes += [order] if not is_ordered else []
    lacking = (lacks, "the order of calls")[: 1 + (not is_ordered)]
    for rank, steps in sorted(ranks.items()):
        yield Dump(framework, sorted(steps), functools.partial(_step, steps, notes), rank, lacking)


def _of_file(source: Path, path: Path) -> Iterator[tuple[str, Seen]]:
    """Yield the tensors of a file by what a pattern is held against: its path in the folder, its name where a file has several."""
    name = path.relative_to(source).as_posix() if source.is_dir() else path.name
    for row in csv.DictReader(text_of(path).decode().splitlines()) if path.name == _CSV else ():
        told = {"IO": row.get("Input/Output"), "Format": "ND", **row}
        numbers = [float(row[key]) if row.get(key) else None for key in _NUMBERS]
        shape = [int(size) for size in re.findall(r"\d+", row["Shape"])]
        summary = summary_of(name, dtype_named(row["Data Type"]), shape, *numbers)
        full = ".".join(str(told[key]) for key in _NAME)
        yield f"{name.removesuffix(_CSV)}{full}.npy", Seen(Role.VALUE, "", None, summary)
    found = list(tensors_in(path)) if path.name != _CSV else []
    for inner, load in found:
        yield (name if len(found) == 1 else f"{name}/{inner}" if source.is_dir() else inner), Seen(Role.VALUE, "", load)


def _step(steps: Mapping[int, list[tuple[Named, Seen]]], notes: list[str], number: int) -> Step:
    step, calls = Step(number, notes=notes[:]), dict[tuple[int, str, int], Call]()
    for said, seen in sorted(steps[number], key=lambda each: each[0].order):
        if said.role in OF_WEIGHTS:
            step.weights.append((said.module, seen))
        else:
            key, call = (said.micro, said.module, said.call), Call(said.module, said.call, said.micro)
            calls.setdefault(key, call).seen.append(seen)
    step.calls = nested(list(calls.values()))
    return step
