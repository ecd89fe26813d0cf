"""`python -m benchmarks.ablation.thresholds`: what each threshold of the comparison decides, half and twice as large.

Every named number of `probe/comparison` is set to half and to twice its value, and the recordings of the oracle are judged again: how many right
answers are lost, how many are gained? A number that decides nothing is one that a principle could replace; one that loses right answers both
ways has its evidence.
"""

from __future__ import annotations

import ast
import importlib
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import track

from benchmarks.ablation.cases import Case, localisation
from benchmarks.localisation.suite import MODES, ROOT, Named, grade_of_places

PACKAGE = ROOT / "probe" / "comparison"
PAGE = ROOT / "docs" / "evidence" / "thresholds.md"
FACTORS = {"half": 0.5, "twice": 2.0}
_GOOD = ("exact", "aligned")
_RULE = ("k", "k16", "gain")
"""numbers of a `Rule`"""


@dataclass(frozen=True)
class Threshold:
    """A named number."""

    module: str
    name: str
    field: str
    """of a `Rule`; empty for a plain number"""
    value: float
    text: str
    """what its module says of it"""

    @property
    def title(self) -> str:
        """Its name on the page."""
        place = self.module.removeprefix("probe.comparison.")
        return f"{place}:{self.name}{'.' + self.field if self.field else ''}"


def thresholds() -> Iterator[Threshold]:
    """Yield the numbers that modules of the comparison name, in the order of their files."""
    for path in sorted(PACKAGE.rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        body = ast.parse(path.read_text(encoding="utf-8")).body
        for place, line in enumerate(body):
            if not (isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name)):
                continue
            name = line.targets[0].id
            value = getattr(importlib.import_module(module), name, None)
            after = body[place + 1] if place + 1 < len(body) else None
            text = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
            if type(value) in (int, float) and name.strip("_").isupper():
                yield Threshold(module, name, "", float(value), str(text))
            elif type(value).__name__ == "Rule" and not name.startswith("_"):
                yield from (
                    Threshold(module, name, field, getattr(value, field), str(text))
                    for field in _RULE
                    if getattr(value, field)
                )


@contextmanager
def changed(threshold: Threshold, factor: float) -> Iterator[None]:
    """Multiply a threshold by a factor, wherever it was imported to."""
    home = importlib.import_module(threshold.module)
    value = getattr(home, threshold.name)
    if threshold.field:
        numbers = [getattr(value, field) for field in _RULE]
        rules = [
            each
            for each in vars(home).values()
            if type(each) is type(value) and [getattr(each, field) for field in _RULE] == numbers
        ]
        for each in rules:
            object.__setattr__(each, threshold.field, threshold.value * factor)
        try:
            yield
        finally:
            for each in rules:
                object.__setattr__(each, threshold.field, threshold.value)
        return
    other = value * factor
    other = max(1, round(other)) if isinstance(value, int) else other
    is_private = threshold.name.startswith("_")
    others = (module for name, module in list(sys.modules.items()) if name.startswith("probe.comparison"))
    places = [home] if is_private else [module for module in others if vars(module).get(threshold.name) is value]
    for module in places:
        setattr(module, threshold.name, other)
    try:
        yield
    finally:
        for module in places:
            setattr(module, threshold.name, value)


def grades(cases: list[Case]) -> dict[str, str]:
    """Judge cases, and return what each answer is worth."""
    import probe

    found = {}
    for case in cases:
        try:
            answer = probe.compare(case.a, case.b, mapping=case.mapping)
        except Exception:
            found[case.name] = "error"
            continue
        places = [
            Named(each.step, each.phase.label, tuple(ref.path for ref in each.a or each.b))
            for each in answer.divergences[:3]
        ]
        found[case.name] = grade_of_places(case.truth, answer.verdict.value, places)
    return found


_CASES: list[Case] = []


def _begin(cases: list[Case]) -> None:
    _CASES.extend(cases)


def _work(task: tuple[Threshold | None, str]) -> dict[str, str]:
    threshold, way = task
    if threshold is None:
        return grades(_CASES)
    with changed(threshold, FACTORS[way]):
        return grades(_CASES)


@click.command()
@click.option("--share", type=click.FloatRange(0, 1), default=0.05, show_default=True, help="Of the pairs of the localisation benchmark.")  # fmt: skip
@click.option("--mode", "modes", multiple=True, type=click.Choice(MODES), default=("statistics",), show_default=True)
@click.option("--recordings", type=click.Path(path_type=Path, file_okay=False), default=ROOT / "build" / "oracle", help="Made by benchmarks.oracle.")  # fmt: skip
@click.option("--jobs", type=click.IntRange(1), default=2, show_default=True)
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), required=True, help="Grades, as JSON; what is there is gone on with.")  # fmt: skip
@click.option("--page", is_flag=True, help="Write the page of evidence too.")
def main(share: float, modes: tuple[str, ...], recordings: Path, jobs: int, output: Path, page: bool) -> None:
    """Judge the pairs with each threshold half and twice as large."""
    cases = [case for case in localisation(share, recordings) if case.name.endswith(modes) and case.a.exists() and case.b.exists()]  # fmt: skip
    known: dict[str, Any] = json.loads(output.read_text(encoding="utf-8")) if output.exists() else {}
    every = list(thresholds())
    tasks = [(None, "")] + [(each, way) for each in every for way in FACTORS]
    waiting = [task for task in tasks if _key(*task) not in known]
    began = time.monotonic()
    with get_context("spawn").Pool(jobs, _begin, (cases,)) as pool:
        found = pool.imap(_work, waiting)
        for task, some in zip(
            waiting, track(found, "judging", len(waiting), console=Console(stderr=True)), strict=True
        ):
            known[_key(*task)] = some
            output.write_text(json.dumps(known), encoding="utf-8")
    print(f"{len(every)} thresholds, {len(cases)} recorded pairs, {time.monotonic() - began:.0f} s")
    text = written(every, known, len(cases), share, modes)
    print(text if not page else f"wrote {PAGE.relative_to(ROOT)}")
    if page:
        PAGE.write_text(text, encoding="utf-8")


def _key(threshold: Threshold | None, way: str) -> str:
    return "" if threshold is None else f"{threshold.title} {way}"


def written(every: list[Threshold], known: dict[str, dict[str, str]], count: int, share: float, modes: tuple[str, ...]) -> str:  # fmt: skip
    """Return the page."""
    base = known[""]
    right = sum(grade in _GOOD for grade in base.values())
    rows, idle = [], []
    for each in every:
        cells = [_effect(base, known[_key(each, way)]) for way in FACTORS]
        line = f"| `{each.title}` | {each.value:g} | {cells[0]} | {cells[1]} | {' '.join(each.text.split())} |"
        (rows if any(cells) else idle).append(line)
    head = "| threshold | value | half | twice | what it is |\n|---|---:|---|---|---|\n"
    return (
        "# What each threshold decides\n\n"
        f"Written by `python -m benchmarks.ablation.thresholds --page`: {count} recorded pairs of the localisation benchmark (a share of {share:g}, "
        f"from {' and '.join(modes)}), of which {right} are answered rightly, are judged again with each named number of `probe/comparison` half and twice as "
        "large. −n: right answers lost, of which (a) right pairs that are called wrong; +n: gained.\n\n"
        f"{len(rows)} of {len(every)} thresholds decide an answer here.\n\n{head}" + "\n".join(rows) + "\n\n"
        f"## The other {len(idle)}\n\nNone of these answers depends on them: they stand for rarer faults, or limit what is read or said.\n\n"
        "| threshold | value | | | what it is |\n|---|---:|---|---|---|\n" + "\n".join(idle) + "\n"
    )


def _effect(before: dict[str, str], after: dict[str, str]) -> str:
    lost = [name for name, grade in before.items() if grade in _GOOD and after[name] not in _GOOD]
    gained = sum(grade not in _GOOD and after[name] in _GOOD for name, grade in before.items())
    alarms = sum(before[name] == "aligned" for name in lost)
    said = [f"−{len(lost)}" + (f" ({alarms} a)" if alarms else "")] if lost else []
    return " ".join([*said, *([f"+{gained}"] if gained else [])])


if __name__ == "__main__":
    main()
