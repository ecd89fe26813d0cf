"""`python -m benchmarks.oracle`: judge the benchmark's pairs by this tree and by another commit, and print what changed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress

from benchmarks.grading import GRADES
from benchmarks.localisation.pairs.pair import Pair
from benchmarks.localisation.pairs.registry import PARTS
from benchmarks.localisation.tools.suite import MODES, ROOT, chosen
from benchmarks.oracle.changes import KINDS, Change, changes, grade_of
from benchmarks.oracle.recordings import files_of, record_all

_JUDGING = Path(__file__).with_name("judging.py")
_MOST_SHOWN = 12
"""changes of one kind that are printed"""
_LONGEST = 400
"""characters of what is printed of one change"""


@click.command()
@click.option("--share", type=click.FloatRange(0, 1), default=1.0, show_default=True, help="Of the pairs; always the same.")  # fmt: skip
@click.option("--part", type=click.Choice([*PARTS]), default="all", show_default=True)
@click.option("--only", multiple=True, help="Pairs whose names match this glob; may be repeated.")
@click.option("--mode", "modes", multiple=True, type=click.Choice(MODES), default=MODES, show_default=True)
@click.option("--commit", default="HEAD", show_default=True, help="Whose answers this tree's are held against.")
@click.option("--recordings", type=click.Path(path_type=Path, file_okay=False), default=ROOT / "build" / "oracle", help="Keep them here, and the answers of commits.")  # fmt: skip
@click.option("--jobs", type=click.IntRange(1), default=2, show_default=True, help="Processes.")
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Write this tree's answers here, as JSON.")  # fmt: skip
def main(
    share: float,
    part: str,
    only: Sequence[str],
    modes: Sequence[str],
    commit: str,
    recordings: Path,
    jobs: int,
    output: Path | None,
) -> None:
    """Judge the pairs by this tree and by a commit, and print which answers changed; exit status 1 if one did.

    The recordings are made once, whatever becomes of the engine, and the answers of a commit are kept beside them. Example:
    python -m benchmarks.oracle --share 0.1 --commit main
    """
    pairs = [pair for pair in chosen(share, part) if not only or any(fnmatchcase(pair.name, glob) for glob in only)]
    with Progress(console=Console(stderr=True), transient=True) as shown:
        wanted = shown.add_task("recording", total=len(pairs) * len(modes))
        record_all(pairs, modes, recordings, jobs, lambda: shown.advance(wanted))
    before = _of_commit(commit, pairs, modes, recordings, jobs)
    after = dict(_judged(ROOT, pairs, modes, recordings, jobs))
    if output:
        output.write_text(json.dumps(after, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    found = sorted(changes(before, after), key=lambda change: (KINDS.index(change.kind), change.name))
    _print(found, len(after))
    for mode in modes:
        for title, answers in (("before", before), ("now", after)):
            counts = Counter(grade_of(pair, answers[_name(pair, mode)]) for pair in pairs)
            print(
                f"{mode}, {title}: "
                + ", ".join(f"{counts[grade]} {grade}" for grade in (*GRADES, "error") if counts[grade])
            )
    raise SystemExit(1 if found else 0)


def _of_commit(commit: str, pairs: list[Pair], modes: Sequence[str], folder: Path, jobs: int) -> dict[str, Any]:
    """Return the answers of a commit: those that are kept, and the others, which are kept then."""
    sha = subprocess.run(["git", "rev-parse", f"{commit}^{{commit}}"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()  # fmt: skip
    file = folder / f"answers-{sha[:12]}.json"
    known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    missing = [pair for pair in pairs if any(_name(pair, mode) not in known for mode in modes)]
    if missing:
        with _tree_of(sha) as tree:
            known |= dict(_judged(tree, missing, modes, folder, jobs))
        file.write_text(json.dumps(known, ensure_ascii=False), encoding="utf-8")
    return known


@contextmanager
def _tree_of(sha: str) -> Iterator[Path]:
    """Give a folder with the tree of a commit, and with this tree's compiled loop."""
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "archive", sha, "probe", "layer_mappings"], cwd=ROOT, capture_output=True, check=True)  # fmt: skip
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        for file in (ROOT / "probe").rglob("*.so"):
            shutil.copy(file, next(Path(folder).rglob("kernel.c")).parent)  # wherever that commit has it
        yield Path(folder)


def _judged(
    tree: Path, pairs: list[Pair], modes: Sequence[str], folder: Path, jobs: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the answer of a tree for each pair and mode."""
    tasks = [[_name(pair, mode), *map(str, files_of(pair, mode, folder)), pair.mapping] for pair in pairs for mode in modes]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}

    def work(some: list[list[Any]]) -> str:
        command = [sys.executable, str(_JUDGING)]
        done = subprocess.run(command, input=json.dumps(some), env=environment, cwd=tree, text=True, stdout=subprocess.PIPE)  # fmt: skip
        if done.returncode:
            raise click.ClickException(f"judging by {tree} ended with status {done.returncode}")
        return done.stdout

    with ThreadPoolExecutor(jobs) as pool:
        for lines in pool.map(work, (tasks[number::jobs] for number in range(jobs))):
            yield from map(json.loads, lines.splitlines())


def _name(pair: Pair, mode: str) -> str:
    return f"{pair.name} {mode}"


def _print(found: list[Change], number: int) -> None:
    for kind in KINDS:
        of_kind = [change for change in found if change.kind == kind]
        for change in of_kind[:_MOST_SHOWN]:
            print(f"{kind}: {change.name}\n  - {change.before[:_LONGEST]}\n  + {change.after[:_LONGEST]}")
        if len(of_kind) > _MOST_SHOWN:
            print(f"{kind}: {len(of_kind) - _MOST_SHOWN} more")
    counts = Counter(change.kind for change in found)
    said = ", ".join(f"{counts[kind]} in {kind}" for kind in KINDS if counts[kind])
    print(f"{number - len(found)} of {number} answers are as they were" + (f"; changed: {said}" if said else ""))


if __name__ == "__main__":
    main()
