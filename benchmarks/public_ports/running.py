"""Record the sides of pairs, compare them, grade the answers."""

from __future__ import annotations

import hashlib
import importlib
import json
import pkgutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import probe
from benchmarks.grading import expected, grade, said
from benchmarks.public_ports import pairs as pair_files
from benchmarks.public_ports.pair import Fault, Pair
from benchmarks.recording import recorded as recorded_at
from tests.published.score import found_without_mapping, relations_of

ROOT = Path(__file__).parents[2]
MODES = ("tensor", "statistics")
WAYS = ("bare", "mapping")
SETS = ("tuned", "blind")
_SOURCES = ("probe/recorder", "probe/adapters", "probe/store")


@dataclass(frozen=True)
class Answer:
    """What probe said of one pair."""

    pair: str
    fault: str
    """"" for the right pair"""
    mode: str
    way: str
    """bare: without a mapping"""
    grade: str
    """one of `benchmarks.grading.GRADES`"""
    expected: str
    said: str
    confidence: float


@dataclass(frozen=True)
class Recall:
    """How many of the true pairs are found without a mapping."""

    pair: str
    mode: str
    true: int
    found: int
    missed: tuple[str, ...]
    wrong: tuple[str, ...]
    """pairs of which one module has another true counterpart"""


def names(which: str = "") -> list[str]:
    """Return the names of all pairs, or of those of a set: one of `SETS`."""
    found = [module.name for module in pkgutil.iter_modules(pair_files.__path__)]
    return [name for name in found if not which or pair_of(name).set == which]


def pair_of(name: str) -> Pair:
    """Return the pair of a name: that of the file in ``pairs``."""
    return importlib.import_module(f"{pair_files.__name__}.{name}").PAIR


def answers(
    name: str, faults: tuple[str, ...], modes: tuple[str, ...], ways: tuple[str, ...], folder: Path
) -> Iterator[Answer]:
    """Record and judge a pair: right, and with each fault whose name fits a glob."""
    pair = pair_of(name)
    chosen = [None, *(fault for fault in pair.faults if any(fnmatchcase(fault.name, glob) for glob in faults))]
    for fault in chosen:
        for mode in modes:
            files = recorded(pair, "a", None, mode, folder), recorded(pair, "b", fault, mode, folder)
            for way in ways:
                yield _judged(pair, fault, mode, way, files)


def recall(name: str, mode: str, folder: Path) -> Recall:
    """Return how many of the true pairs of modules are found without a mapping."""
    pair = pair_of(name)
    files = recorded(pair, "a", None, mode, folder), recorded(pair, "b", None, mode, folder)
    tree_a, tree_b, matching = found_without_mapping(*files)
    found = {(a, b) for a, b, _ in relations_of(matching, tree_a, tree_b)}
    true = pair.relations(tree_a.path(index) for index in range(len(tree_a)))
    known_a, known_b = {a for a, _ in true}, {b for _, b in true}
    wrong = {(a, b) for a, b in found - true if a in known_a and b in known_b}
    missed = tuple(sorted(f"{a} = {b}" for a, b in true - found))
    return Recall(name, mode, len(true), len(true & found), missed, tuple(sorted(f"{a} = {b}" for a, b in wrong)))


def recorded(pair: Pair, side: str, fault: Fault | None, mode: str, folder: Path) -> Path:
    """Write the recording of a side, or return the one that is there."""
    from benchmarks.public_ports.training import training_of

    name = fault.name if fault else ""
    path = folder / f"{pair.name}.{side}.{name or 'right'}.{mode}.{_digest(pair)}.h5"
    return recorded_at(path, lambda: training_of(pair, side, name), pair.steps, mode)


def as_json(found: list[Answer], recalls: list[Recall]) -> dict[str, Any]:
    """Return everything for a program to read."""
    return {"answers": [asdict(each) for each in found], "recall": [asdict(each) for each in recalls]}


def read_json(path: Path) -> tuple[list[Answer], list[Recall]]:
    """Return what `as_json` returned, from a file."""
    found = json.loads(path.read_text(encoding="utf-8"))
    return [Answer(**each) for each in found["answers"]], [Recall(**each) for each in found["recall"]]


def _judged(pair: Pair, fault: Fault | None, mode: str, way: str, files: tuple[Path, Path]) -> Answer:
    mapping = pair.mapping if way == "mapping" else None
    found = probe.compare(*files, mapping=mapping)
    truth = fault.truth if fault else None
    first = found.first_divergence
    confidence = first.confidence if first is not None else 1.0
    name = fault.name if fault else ""
    return Answer(pair.name, name, mode, way, grade(truth, found), expected(truth), said(found), confidence)


def _digest(pair: Pair) -> str:
    """Return a hash of all code that a recording of the pair depends on."""
    files = sorted(path for folder in _SOURCES for path in (ROOT / folder).rglob("*.py"))
    here = Path(__file__).parent
    files += [here / "training.py", here / "planting.py", here / "pairs" / f"{pair.name}.py"]
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:12]
