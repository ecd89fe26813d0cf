"""`python -m benchmarks.ablation`: which functions of the comparison earn their place.

Every function that can have nothing to say (returns False, nothing, an empty text …) is traced over all pairs: where does it say something?
Then it is left out, and the pairs where it did are judged again. What it says nowhere, or changes nowhere, is a candidate to go.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import track

from benchmarks.ablation.cases import Case, localisation, public
from benchmarks.ablation.neutral import functions
from benchmarks.localisation.tools.suite import ROOT, Named, grade_of_places

_GOOD = ("exact", "aligned")
_BATCH = 20
"""cases that a worker is asked for at once"""


@dataclass
class Effect:
    """What leaving a function out does."""

    name: str
    lines: int
    fires: int
    """cases in which it says something"""
    judged: int = 0
    """those of them that were judged again"""
    lost: list[str] = field(default_factory=list)
    """right answers that are not right without it"""
    gained: list[str] = field(default_factory=list)
    moved: list[str] = field(default_factory=list)
    """answers that change otherwise: another wrong one, a later finding"""
    kinds: int = 0
    """architectures of the right answers that are lost"""
    alarms: int = 0
    """right pairs among those that are lost"""


class Worker:
    """A process that judges, and answers one question after the other."""

    def __init__(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "benchmarks.ablation.worker"]
        self._process = subprocess.Popen(command, cwd=ROOT, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip

    def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer by case."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


@click.command()
@click.option("--share", type=click.FloatRange(0, 1), default=0.3, show_default=True, help="Of the pairs of the localisation benchmark.")  # fmt: skip
@click.option("--recordings", type=click.Path(path_type=Path, file_okay=False), default=ROOT / "build" / "oracle", help="Made by benchmarks.oracle.")  # fmt: skip
@click.option("--public", "packages", type=click.Path(path_type=Path, file_okay=False), default=ROOT / "build" / "public-ports", help="Made by benchmarks.public_ports.")  # fmt: skip
@click.option("--most", type=click.IntRange(1), default=60, show_default=True, help="Cases that are judged again for one function.")  # fmt: skip
@click.option("--only", multiple=True, help="Functions whose names contain this; may be repeated.")
@click.option("--minutes", type=float, default=600.0, help="Stop leaving out after this long; what is traced is kept.")
@click.option("--jobs", type=click.IntRange(1), default=2, show_default=True)
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), required=True, help="Write what was found here, as JSON; what is there is gone on with.")  # fmt: skip
def main(
    share: float,
    recordings: Path,
    packages: Path,
    most: int,
    only: Sequence[str],
    minutes: float,
    jobs: int,
    output: Path,
) -> None:
    """Trace, leave out one function at a time, and write which answers each changes."""
    cases = {case.name: case for case in (*localisation(share, recordings), *public(packages))}
    cases = {name: case for name, case in cases.items() if case.a.exists() and case.b.exists()}
    known: dict[str, Any] = json.loads(output.read_text(encoding="utf-8")) if output.exists() else {"traced": {}, "effects": {}}  # fmt: skip
    workers = [Worker() for _ in range(jobs)]
    ends = time.monotonic() + 60 * minutes
    for some in _asked(workers, [{"trace": batch} for batch in _batches(cases.values(), known["traced"])], "tracing"):
        known["traced"] |= some
        output.write_text(json.dumps(known, ensure_ascii=False), encoding="utf-8")
    fired: dict[str, list[str]] = {}
    for name, (_, said) in known["traced"].items():
        for function in said:
            fired.setdefault(function, []).append(name)
    waiting = []
    for name, function in sorted(functions().values(), key=lambda each: len(fired.get(each[0], []))):
        where = [each for each in fired.get(name, []) if each in cases]
        lines = len({number for *_, number in function.__code__.co_lines() if number})
        effect = Effect(name, lines, len(where))
        if not where:
            known["effects"].setdefault(name, asdict(effect))
        elif name not in known["effects"] and (not only or any(part in name for part in only)):
            waiting.append((effect, where[:: -(-len(where) // most)]))

    def work(task: tuple[Effect, list[str]]) -> Effect:
        effect, names = task
        if time.monotonic() < ends:
            worker = workers.pop()
            try:
                answers = worker.ask({"without": [effect.name], "cases": [cases[name].as_task() for name in names]})
            finally:
                workers.append(worker)
            _weigh(effect, cases, known["traced"], answers)
        return effect

    with ThreadPoolExecutor(jobs) as pool:
        for effect in track(pool.map(work, waiting), "leaving out", len(waiting), console=Console(stderr=True)):
            if effect.judged:
                known["effects"][effect.name] = asdict(effect)
                output.write_text(json.dumps(known, ensure_ascii=False), encoding="utf-8")
    for worker in workers:
        worker.close()
    _print([Effect(**each) for each in known["effects"].values()])


def _batches(cases: Iterator[Case] | Any, known: Mapping[str, Any]) -> list[list[Any]]:
    tasks = [case.as_task() for case in cases if case.name not in known]
    return [tasks[at : at + _BATCH] for at in range(0, len(tasks), _BATCH)]


def _asked(workers: list[Worker], questions: list[dict[str, Any]], title: str) -> Iterator[dict[str, Any]]:
    def work(question: dict[str, Any]) -> dict[str, Any]:
        worker = workers.pop()
        try:
            return worker.ask(question)
        finally:
            workers.append(worker)

    with ThreadPoolExecutor(len(workers)) as pool:
        yield from track(pool.map(work, questions), title, len(questions), console=Console(stderr=True))


def _weigh(effect: Effect, cases: Mapping[str, Case], traced: Mapping[str, Any], answers: Mapping[str, Any]) -> None:
    effect.judged = len(answers)
    lost = []
    for name, answer in answers.items():
        before, after = (_grade(cases[name], each) for each in (traced[name][0], answer))
        if before in _GOOD and after not in _GOOD:
            lost.append(cases[name])
        elif after in _GOOD and before not in _GOOD:
            effect.gained.append(f"{name}: {before}")
        elif answer != traced[name][0]:
            effect.moved.append(name)
    effect.lost = [case.name for case in lost]
    effect.kinds = len({case.kind for case in lost})
    effect.alarms = sum(case.truth is None for case in lost)


def _grade(case: Case, answer: Any) -> str:
    verdict, places = answer
    if verdict.startswith("error"):
        return "error"
    return grade_of_places(case.truth, verdict, [Named(step, phase, tuple(paths)) for step, phase, paths in places])


def _print(effects: list[Effect]) -> None:
    silent = [each for each in effects if not each.fires]
    idle = [each for each in effects if each.fires and not each.lost and not each.gained and not each.moved]
    weak = [each for each in effects if each.lost and not each.alarms and (len(each.lost) < 3 or each.kinds < 2)]
    for title, some in (("say nothing anywhere", silent), ("change no answer", idle), ("are needed by fewer than 3 pairs of 2 architectures", weak)):  # fmt: skip
        print(f"{len(some)} of {len(effects)} functions {title}: {sum(each.lines for each in some)} lines")


if __name__ == "__main__":
    main()
