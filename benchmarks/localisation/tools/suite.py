"""Record the pairs, compare them, grade the answers."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path

import probe
from benchmarks.grading import expected, grade, said
from benchmarks.localisation.pairs.pair import Pair, Setup
from benchmarks.localisation.pairs.registry import PAIRS, PARTS
from benchmarks.localisation.tools.noise_ladder import setups_of
from benchmarks.localisation.tools.random_pairs import random_pair
from benchmarks.recording import recorded

MODES = ("tensor", "statistics")
ROOT = Path(__file__).parents[3]
SOURCES = ("probe/recorder", "probe/adapters", "probe/store", "benchmarks/localisation")
"""folders that a recording depends on"""


@dataclass(frozen=True)
class Answer:
    """What probe said about one pair in one mode, and what that is worth."""

    pair: str
    mode: str
    grade: str
    """one of `GRADES`"""
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
    return recorded(path, lambda: run_of(setup), setup.steps, mode)


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
    return Answer(pair.name, mode, grade(pair.truth, found), expected(pair.truth), said(found))


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
