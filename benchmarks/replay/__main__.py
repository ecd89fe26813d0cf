"""`python -m benchmarks.replay`: replay side B of pairs of `benchmarks.localisation` with what side A recorded."""

from __future__ import annotations

import json
import os
import random
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import click

import probe
from benchmarks.localisation.faults.registry import FAULTS
from benchmarks.localisation.pairs.pair import Pair, Setup
from benchmarks.localisation.tools.run import Run
from benchmarks.localisation.tools.suite import PAIRS, pair_of
from benchmarks.localisation.tools.training import run_of
from probe.answer.comparison import Comparison

OF_MODULES = ("forward", "backward", "gradient")
"""phases of faults that lie in the code of a module"""


@dataclass(frozen=True)
class Answer:
    """What a replay said of a pair."""

    pair: str
    grade: str
    """of a fault: exact (it alone is named), among others, parent, wrong name, missed; of a clean pair: aligned, false alarm"""
    named: tuple[str, ...]
    expected: str
    left: tuple[str, ...]
    seconds: float
    error: str = ""


def record(setup: Setup, path: Path, steps: int) -> None:
    """Record some steps of a side."""
    run = run_of(setup)
    with probe.capture(run.parts[0], path, task="tensor", steps=[steps - 1], quiet=True):
        for index in range(steps):
            probe.step(loss=run.step(index))


def faulty(setup: Setup, step: int) -> Run:
    """Return a side with the faults that it has in a step."""
    run = run_of(setup)
    for planted in setup.planted:
        if planted.step <= step:
            FAULTS[planted.fault].plant(run, planted)
    return run


def answer(pair: Pair, folder: Path) -> Answer:
    """Replay a pair, and grade what is said."""
    step = 0 if pair.truth is None else pair.truth.step
    recording = folder / "a.h5"
    record(pair.a, recording, step + 1)
    model = faulty(pair.b, step).parts[0]
    begun = time.perf_counter()
    weights = "b" if pair.phase == "init" else "a"
    try:
        found = probe.replay(model, recording, mapping=pair.mapping, step=step, weights=weights)
    except Exception as error:  # noqa: BLE001  it is counted
        return Answer(pair.name, "error", (), _expected(pair), (), 0.0, repr(error))
    finally:
        recording.unlink()
    return graded(pair, found, time.perf_counter() - begun)


def graded(pair: Pair, found: Comparison, seconds: float) -> Answer:
    """Grade what a replay found of a pair."""
    named = tuple(
        f"{each.phase.label} {(each.a or each.b)[0].path} {each.error:.1e}/{each.limit:.1e}"
        for each in found.divergences
    )
    left = () if found.replayed is None else tuple(map(str, found.replayed.left))
    grade = _grade(pair, [(each.a or each.b)[0].path for each in found.divergences])
    return Answer(pair.name, grade, named, _expected(pair), left, seconds)


def _expected(pair: Pair) -> str:
    return "aligned" if pair.truth is None else f"{pair.truth.phases[0]} {pair.truth.path or 'as a whole'}"


def _grade(pair: Pair, paths: Sequence[str]) -> str:
    if pair.truth is None:
        return "false alarm" if paths else "aligned"
    if not paths:
        return "missed"
    if all(map(pair.truth.names, paths)):
        return "exact"
    if any(map(pair.truth.names, paths)):
        return "among others"
    return "parent" if any(map(pair.truth.near, paths)) else "wrong name"


def chosen(kind: str, dtypes: Sequence[str], number: int, seed: int) -> list[Pair]:
    """Return pairs, drawn."""

    def fits(pair: Pair) -> bool:
        is_of_kind = (
            pair.phase == "clean"
            if kind == "clean"
            else pair.phase in OF_MODULES and bool(pair.truth and pair.truth.path)
        )
        is_torch = not pair.a.architecture.startswith("port-") and pair.a.architecture != "gan"
        return is_of_kind and is_torch and (not dtypes or pair.a.dtype in dtypes)

    found = [pair for pair in PAIRS.values() if fits(pair)]
    random.Random(seed).shuffle(found)
    return found[:number] if number else found


@click.command()
@click.option("--kind", type=click.Choice(["clean", "faulty"]), default="clean", show_default=True)
@click.option("--dtype", "dtypes", multiple=True, help="fp32, bf16, fp16 or autocast; may be repeated.")
@click.option("--number", default=0, help="How many, drawn; 0 for all.")
@click.option("--seed", default=0, show_default=True)
@click.option("--only", multiple=True, help="Pairs whose names match this glob; may be repeated.")
@click.option("--names", type=click.Path(path_type=Path), help="A file with names of pairs, one a line.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write all answers here, as JSON.")
def main(
    kind: str,
    dtypes: tuple[str, ...],
    number: int,
    seed: int,
    only: tuple[str, ...],
    names: Path | None,
    output: Path | None,
) -> None:
    """Replay pairs, and print what was said of those that are not answered exactly."""
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    warnings.simplefilter("ignore")
    pairs = [pair_of(name) for name in names.read_text().split()] if names else chosen(kind, dtypes, number, seed)
    pairs = [pair for pair in pairs if not only or any(fnmatchcase(pair.name, glob) for glob in only)]
    found = []
    for pair in pairs:
        with tempfile.TemporaryDirectory() as folder:
            said = answer(pair, Path(folder))
        found.append(said)
        if said.grade not in ("exact", "aligned"):
            print(f"{said.grade}: {said.pair}: {said.named[:5]} expected {said.expected} {said.error}", flush=True)
        if output:
            output.write_text(json.dumps([asdict(each) for each in found], indent=1) + "\n", encoding="utf-8")
    print(dict(Counter(said.grade for said in found)))


if __name__ == "__main__":
    main()
