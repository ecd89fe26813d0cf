"""The recordings of pairs, made once: they do not depend on the engine, so that they outlive its changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from multiprocessing import get_context
from pathlib import Path

from benchmarks.localisation.pairs.pair import Pair
from benchmarks.localisation.tools.suite import pair_of, record, record_ports, recording_of, sources_digest

_MADE_BY = "made-by"


def digest_of(folder: Path) -> str:
    """Return the digest of the code that the recordings of a folder were made by; of the code as it is where there are none."""
    file = folder / _MADE_BY
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        file.write_text(sources_digest(), encoding="utf-8")
    return file.read_text(encoding="utf-8")


def files_of(pair: Pair, mode: str, folder: Path) -> tuple[Path, Path]:
    """Return the recordings of A and of B."""
    digest = digest_of(folder)
    return recording_of(pair.a, mode, folder, digest), recording_of(pair.b, mode, folder, digest)


def record_all(pairs: Iterable[Pair], modes: Iterable[str], folder: Path, jobs: int, done: Callable[[], None]) -> None:
    """Write the recordings that are not there yet."""
    digest, pairs, modes = digest_of(folder), list(pairs), tuple(modes)
    record_ports(pairs, modes, folder, digest)
    tasks = [(pair.name, mode, folder, digest) for pair in pairs for mode in modes]
    missing = [task for task in tasks if not all(file.exists() for file in files_of(pair_of(task[0]), task[1], folder))]
    with get_context("spawn").Pool(jobs) as pool:
        for _ in pool.imap_unordered(_record, missing):
            done()


def _record(task: tuple[str, str, Path, str]) -> None:
    name, mode, folder, digest = task
    pair = pair_of(name)
    for setup in (pair.a, pair.b):
        record(setup, mode, folder, digest)
