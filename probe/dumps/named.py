"""Any folder or file of named tensors: ``.npy``, ``.npz``, safetensors, ``.pt`` and other files of weights."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from probe.dumps.arrays import SUFFIXES, Load, is_of_objects, tensors_in
from probe.dumps.files import natural
from probe.dumps.naming import Named, Naming
from probe.dumps.seen import OF_WEIGHTS, Call, Dump, Seen, Step, nested
from probe.errors import ConversionError

_BY_TIME = (
    "the order of calls, for which the times at which files were written stand ({order:int} in --pattern gives it)"
)
_BY_FILE = "the order of calls, for which that of tensors in their files stands ({order:int} in --pattern gives it)"


@dataclass(frozen=True)
class _Entry:
    said: Named
    load: Load


def is_named(source: Path, files: list[str]) -> bool:
    """Return True for a file or folder that holds tensors."""
    return any(name.endswith(SUFFIXES) for name in files)


def is_reprod_log(source: Path, files: list[str]) -> bool:
    """Return True for a file that ``ReprodLogger.save`` wrote."""
    return source.suffix == ".npy" and source.is_file() and is_of_objects(source)


def read_named(source: Path, files: list[str], pattern: str | None) -> Iterator[Dump]:
    """Yield the dump of each rank.

    Raises
    ------
    ConfigError
        the pattern is none
    ConversionError
        no name fits it
    """
    paths = [source / name if source.is_dir() else source for name in files if name.endswith(SUFFIXES)]
    paths.sort(key=lambda path: (path.stat().st_mtime_ns, natural(path.name)))
    named = ((_name(source, path, inner, count), load) for path in paths for inner, load, count in _counted(path))
    yield from dumps_of(named, Naming(pattern, SUFFIXES), source, _BY_TIME if len(paths) > 1 else _BY_FILE)


def _counted(path: Path) -> Iterator[tuple[str, Load, int]]:
    found = list(tensors_in(path))
    yield from ((inner, load, len(found)) for inner, load in found)


def _name(source: Path, path: Path, inner: str, count: int) -> str:
    """Return what a pattern is held against: the file's path in the folder, and the tensor's name where a file has several."""
    if source.is_file():
        return inner or path.stem
    name = path.relative_to(source).as_posix()
    return name if count == 1 else f"{name}/{inner}"


def dumps_of(
    named: Iterable[tuple[str, Load]], naming: Naming, source: Path, lacks: str, framework: str = ""
) -> Iterator[Dump]:
    """Yield the dump of each rank, given tensors by name in their order."""
    ranks: dict[int, dict[int, list[_Entry]]] = defaultdict(lambda: defaultdict(list))
    unread: list[str] = []
    for name, load in named:
        said = naming.read(name)
        if said is None:
            unread.append(name)
        else:
            ranks[said.rank][said.step].append(_Entry(said, load))
    if not ranks:
        first = f": the first is {unread[0][:200]!r}" if unread else ""
        raise ConversionError(f"{source} has {len(unread)} tensors whose names the pattern does not fit{first}")
    notes = [
        f"left out: {len(unread)} tensors whose names the pattern does not fit, first {each}" for each in unread[:1]
    ]
    lacking = ("module classes", *(() if naming.has_order else (lacks,)))
    for rank, steps in sorted(ranks.items()):
        yield Dump(
            framework, sorted(steps), lambda number, steps=steps: _step(number, steps[number], notes),
            rank, lacks=lacking,
        )  # fmt: skip


def _step(number: int, entries: list[_Entry], notes: list[str]) -> Step:
    step, calls = Step(number, notes=notes), {}
    for entry in sorted(entries, key=lambda each: each.said.order):
        said = entry.said
        seen = Seen(said.role, said.slot, entry.load)
        if said.role in OF_WEIGHTS:
            step.weights.append((said.module, seen))
            continue
        call = calls.setdefault((said.micro, said.module, said.call), Call(said.module, said.call, said.micro))
        call.seen.append(seen)
    step.calls = nested(list(calls.values()))
    return step
