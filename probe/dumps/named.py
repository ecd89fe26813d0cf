"""Any folder or file of named tensors: ``.npy``, ``.npz``, safetensors, ``.pt`` and other files of weights."""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from probe.dumps.arrays import SUFFIXES, Load, dtype_named, is_of_objects, tensors_in
from probe.dumps.files import natural
from probe.dumps.naming import MINDSPORE, Named, patterns_of, said_by
from probe.dumps.seen import OF_WEIGHTS, Call, Dump, Seen, Step, Summary, nested
from probe.errors import ConversionError

_ORDERS = {False: "of tensors in their file", True: "in which files were written"}
"""what stands for the order of calls, by whether there are several files"""


def is_named(source: Path, files: list[str]) -> bool:
    """Return True for a file or folder that holds tensors."""
    return any(name.endswith(SUFFIXES) for name in files)


def is_mindspore(source: Path, files: list[str]) -> bool:
    """Return True for a folder of MindSpore's Dump with ``.npy`` files."""
    return any(re.fullmatch(MINDSPORE, name) for name in files)


def is_reprod_log(source: Path, files: list[str]) -> bool:
    """Return True for a file that ``ReprodLogger.save`` wrote."""
    return source.suffix == ".npy" and source.is_file() and is_of_objects(source)


def read_named(source: Path, files: list[str], pattern: str | None) -> Iterator[Dump]:
    """Yield the dump of each rank. Raises ConfigError where the pattern is none, ConversionError where no name fits it."""
    patterns = patterns_of(pattern)
    paths = [source / name if source.is_dir() else source for name in files if name.endswith(SUFFIXES)]
    paths.sort(key=lambda path: (path.stat().st_mtime_ns, natural(path.name)))
    ranks: dict[int, dict[int, list[tuple[Named, Load]]]] = defaultdict(lambda: defaultdict(list))
    unread: list[str] = []
    for name, load in (each for path in paths for each in _of_file(source, path)):
        said = said_by(name, patterns, SUFFIXES)
        if said is None:
            unread.append(name)
        else:
            ranks[said.rank][said.step].append((said, load))
    notes = [
        f"left out: {len(unread)} tensors with names that the pattern does not fit, {each} …" for each in unread[:1]
    ]
    if not ranks:
        raise ConversionError(f"{source} has no tensor with a name that the pattern fits; {', '.join(notes)[:300]}")
    is_ordered = all(said.order >= 0 for steps in ranks.values() for each in steps.values() for said, _ in each)
    order = f"the order of calls, for which that {_ORDERS[len(paths) > 1]} stands ({{order:int}} in --pattern gives it)"
    lacks = ("classes of modules", *(() if is_ordered else (order,)))
    for rank, steps in sorted(ranks.items()):
        yield Dump(
            "mindspore" if is_mindspore(source, files) else "",
            sorted(steps),
            functools.partial(_step, steps, notes),
            rank,
            lacks,
        )


def _of_file(source: Path, path: Path) -> Iterator[tuple[str, Load]]:
    """Yield the tensors of a file by what a pattern is held against: its path in the folder, its name where a file has several."""
    found = list(tensors_in(path))
    for inner, load in found:
        name = path.relative_to(source).as_posix() if source.is_dir() else path.name
        yield (name if len(found) == 1 else f"{name}/{inner}" if source.is_dir() else inner), load


def _step(steps: Mapping[int, list[tuple[Named, Load]]], notes: list[str], number: int) -> Step:
    step, calls = Step(number, notes=notes[:]), dict[tuple[int, str, int], Call]()
    for said, load in sorted(steps[number], key=lambda each: each[0].order):
        seen = Seen(said.role, said.slot, load, Summary(dtype_named(said.dtype), ()) if said.dtype else None)
        key = said.micro, said.module, said.call
        if said.role in OF_WEIGHTS:
            step.weights.append((said.module, seen))
        else:
            calls.setdefault(key, Call(said.module, said.call, said.micro)).seen.append(seen)
    step.calls = nested(list(calls.values()))
    return step
