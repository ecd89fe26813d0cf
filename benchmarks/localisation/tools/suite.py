"""Record the pairs, compare them, grade the answers."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import probe
from benchmarks.localisation.pairs.pair import Pair, Setup, Truth
from benchmarks.localisation.pairs.registry import PAIRS, PARTS
from benchmarks.localisation.tools.noise_ladder import setups_of
from benchmarks.localisation.tools.random_pairs import random_pair

MODES = ("tensor", "statistics")
ROOT = Path(__file__).parents[3]
SOURCES = ("probe/recorder", "probe/adapters", "probe/store", "benchmarks/localisation")
"""folders that a recording depends on"""
GRADES = ("exact", "parent", "top-3", "other phase", "wrong name", "undecided", "missed", "aligned", "false alarm")


@dataclass(frozen=True)
class Named:
    """A place that a comparison names."""

    step: int
    phase: str
    paths: tuple[str, ...]
    """in A where A has it"""


@dataclass(frozen=True)
class Answer:
    """What probe said about one pair in one mode, and what that is worth."""

    pair: str
    mode: str
    grade: str
    """
    One of `GRADES`. Of a fault: exact (module, phase and step), parent (the module directly around it, in the right
    phase and step), top-3 (exact, but second or third), other phase (the module in another phase or step), wrong
    name, undecided, missed. Of a clean pair: aligned, undecided, false alarm.
    """
    expected: str
    said: str
    """the first divergence in one line, or why nothing was decided"""


def chosen(share: float, part: str) -> list[Pair]:
    """Return a share of the pairs, the same ones each time, in the order of the tables.

    Parameters
    ----------
    part
        a key of `registry.PARTS`
    """
    pairs = PARTS[part]
    return [pair for pair in pairs if _place(pair.name) < share]


def pair_of(name: str) -> Pair:
    """Return the pair of a name, also one that was drawn."""
    return random_pair(int(name.split("/")[1])) if name.startswith("random/") else PAIRS[name]


def answers(
    pairs: Iterable[Pair], modes: Iterable[str], folder: Path, jobs: int, rung: str = "built-in"
) -> Iterator[list[Answer]]:
    """Record and judge the pairs in several processes; yields each pair's answers when they are there."""
    pairs, modes = list(pairs), tuple(modes)
    digest = sources_digest()
    record_ports(pairs, modes, folder, digest)
    tasks = [(pair.name, modes, folder, digest, rung) for pair in pairs]
    if jobs == 1:
        yield from map(_work, tasks)
        return
    with get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(_work, tasks)


def record(setup: Setup, mode: str, folder: Path, digest: str) -> Path:
    """Write the recording of a setup, or return the one that is there."""
    from benchmarks.localisation.tools.training import run_of

    path = recording_of(setup, mode, folder, digest)
    if path.exists():
        return path
    if setup.architecture.startswith("port-"):
        raise FileNotFoundError(f"{path}: ports are recorded first, by record_ports")
    unfinished = path.with_suffix(f".{os.getpid()}.h5")
    run = run_of(setup)
    parts = run.parts
    probe.start(parts if len(parts) > 1 else parts[0], unfinished, task=mode)
    try:
        for index in range(setup.steps):
            probe.step(loss=run.step(index))
    finally:
        probe.stop()
    unfinished.rename(path)
    return path


def recording_of(setup: Setup, mode: str, folder: Path, digest: str) -> Path:
    """Return where the recording of a setup lies."""
    name = hashlib.sha256(f"{digest} {mode} {setup!r}".encode()).hexdigest()[:24]
    return folder / f"{name}.h5"


def record_ports(pairs: Iterable[Pair], modes: Iterable[str], folder: Path, digest: str) -> None:
    """Write the recordings of all sides of ports, each framework in one process of its own."""
    setups = {s: None for pair in pairs for s in (pair.a, pair.b) if s.architecture.startswith("port-")}
    for framework in ("torch", "paddle", "mindspore"):  # the others' weights are converted from PyTorch's
        places = {
            (setup, mode): recording_of(setup, mode, folder, digest)
            for setup in setups if setup.framework == framework for mode in modes
        }  # fmt: skip
        tasks = [(asdict(setup), mode, str(path)) for (setup, mode), path in places.items() if not path.exists()]
        if tasks:
            command = [
                sys.executable,
                "-m",
                "benchmarks.localisation.tools.frameworks.worker",
                framework,
                str(folder / digest[:16]),
            ]
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            done = subprocess.run(command, input=json.dumps(tasks), capture_output=True, text=True, env=environment)
            if done.returncode:
                raise RuntimeError(f"{framework}: {done.stderr[-3000:]}")


def judge(pair: Pair, mode: str, folder: Path, digest: str, rung: str = "built-in") -> Answer:
    """Compare the two recordings of a pair on a rung of the noise ladder, and grade what probe says."""
    files = [record(setup, mode, folder, digest) for setup in (pair.a, pair.b)]
    more = {
        option: [record(setup, mode, folder, digest) for setup in setups]
        for option, setups in setups_of(pair, rung).items()
    }
    noise, references = more.get("noise", []), more.get("reference", [None])
    found = probe.compare(*files, mapping=pair.mapping, noise=noise, reference=references[0])
    first = found.first_divergence
    said = _line(first) if first is not None else found.verdict.value
    if found.verdict == "undecided":
        said = "; ".join(["undecided", *found.doubts]) + (f" ({said})" if first is not None else "")
    return Answer(pair.name, mode, grade(pair.truth, found), expected(pair.truth), said)


def grade(truth: Truth | None, found: Any) -> str:
    """Say what a comparison is worth as an answer to the truth, None for a clean pair."""
    places = [Named(each.step, each.phase.label, tuple(_paths(each))) for each in found.divergences]
    return grade_of_places(truth, found.verdict, places)


def grade_of_places(truth: Truth | None, verdict: str, named: Sequence[Named]) -> str:
    """Say what a verdict and the places that it names, in its order, are worth as an answer to the truth, None for a clean pair."""
    if verdict == "undecided":
        return "undecided"
    if truth is None:
        return "aligned" if verdict == "aligned" else "false alarm"
    if verdict == "aligned":
        return "missed"
    first, *others = named
    if _is_right(truth, first):
        return "exact"
    if _is_in_place(truth, first) and all(map(truth.near, first.paths)):
        return "parent"
    if any(_is_right(truth, other) for other in others[:2]):
        return "top-3"
    return "other phase" if all(map(truth.names, first.paths)) else "wrong name"


def expected(truth: Truth | None) -> str:
    """Return the right answer in one line."""
    if truth is None:
        return "aligned"
    place = " or ".join(truth.also) if truth.path == "*" else truth.path or "as a whole"
    return f"step {truth.step} · {' or '.join(truth.phases)} · {place}"


def sources_digest() -> str:
    """Return a hash of all code that a recording depends on."""
    files = sorted(path for folder in SOURCES for path in (ROOT / folder).rglob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def _work(task: tuple[str, tuple[str, ...], Path, str, str]) -> list[Answer]:
    name, modes, folder, digest, rung = task
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    warnings.simplefilter("ignore")
    try:
        return [judge(pair_of(name), mode, folder, digest, rung) for mode in modes]
    except Exception as error:
        raise RuntimeError(f"{name}: {error!r}") from error


def _place(name: str) -> float:
    """Return a number from 0 to 1 that depends on the name alone."""
    return int(hashlib.sha256(name.encode()).hexdigest()[:8], 16) / 2**32


def _is_in_place(truth: Truth, found: Named) -> bool:
    return found.phase in truth.phases and found.step == truth.step


def _is_right(truth: Truth, found: Named) -> bool:
    return _is_in_place(truth, found) and all(map(truth.names, found.paths))


def _paths(found: Any) -> list[str]:
    return [ref.path for ref in found.a or found.b]


def _line(first: Any) -> str:
    paths = ", ".join(dict.fromkeys(path or "as a whole" for path in _paths(first)))
    return f"step {first.step} · {first.phase.label} · {paths} ({first.kind.value} {first.role.label})"
