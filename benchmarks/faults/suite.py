"""Record the rows of the suite, compare them and grade the answers against the truth table."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import probe
from benchmarks.faults.truth import CLEAN, FAULTS, Clean, Truth

MODES = ("tensor", "statistics")
ROWS: dict[str, Truth | Clean] = {row.name: row for row in (*FAULTS, *CLEAN)}
NO_REASON = "no reason given"
ROOT = Path(__file__).parents[2]
UNDECIDED_ALLOWED = {"tensor": 0, "statistics": 1}
"""How many faults of a mode may end undecided, with the reason said; a wrong name is never allowed."""


@dataclass(frozen=True)
class Answer:
    """What probe said about one row in one mode, and what it is worth."""

    row: str
    mode: str
    grade: str
    """A fault: exact, other place (right module, wrong phase, kind or step), parent, wrong name, undecided or
    missed. A clean pair: aligned, undecided or false alarm."""
    said: str
    """The first divergence in one line, or why nothing was decided."""

    @property
    def right(self) -> bool:
        """Whether this is what the truth table asks for."""
        return self.grade in ("exact", "aligned")


def record(folder: Path, rows: Iterable[str], modes: Iterable[str]) -> None:
    """Write the recordings of `rows` below `folder`, each side in its own process, both at once."""
    rows = list(rows)
    sides = {"a": sorted({ROWS[row].baseline for row in rows}), "b": rows}
    workers = []
    for side, names in sides.items():
        command = [sys.executable, "-m", "benchmarks.faults.record", "--side", side]
        command += ["--out", str(folder.resolve())]
        command += [word for mode in modes for word in ("--task", mode)]
        command += [word for name in names for word in ("--name", name)]
        workers.append(subprocess.Popen(command, cwd=ROOT))
    codes = [worker.wait() for worker in workers]
    if any(codes):
        raise RuntimeError(f"recording failed: exit status {codes[0]} on side a, {codes[1]} on side b")


def judge(folder: Path, row: str, mode: str) -> Answer:
    """Compare the two recordings of `row` and grade what probe says."""
    truth = ROWS[row]
    comparison = probe.compare(folder / mode / "a" / f"{truth.baseline}.h5", folder / mode / "b" / f"{row}.h5")
    first, reason = comparison.first_divergence, "; ".join(map(str, comparison.warnings))
    if comparison.verdict == "undecided":
        return Answer(row, mode, "undecided", reason or NO_REASON)
    if isinstance(truth, Clean) and comparison.verdict == "aligned":
        return Answer(row, mode, "aligned", "aligned")
    if isinstance(truth, Clean):
        return Answer(row, mode, "false alarm", _line(first))
    if first is None:
        return Answer(row, mode, "missed", comparison.verdict)
    return Answer(row, mode, grade(truth, first), _line(first))


def grade(truth: Truth, first: Any) -> str:
    """How good the first divergence `first` is as an answer to `truth`."""
    nodes = first.a or first.b
    if all(truth.names(node.path) for node in nodes):
        place = (_word(first.phase), _word(first.kind)), nodes[0].step
        return "exact" if place == (truth.told or (truth.phase, truth.kind), truth.step) else "other place"
    return "parent" if all(truth.near(node.path) for node in nodes) else "wrong name"


def failures(answers: Iterable[Answer]) -> list[Answer]:
    """The answers that are not good enough, after what may stay undecided has been let through."""
    failed, left = [], dict(UNDECIDED_ALLOWED)
    for answer in answers:
        excusable = answer.grade == "undecided" and isinstance(ROWS[answer.row], Truth)
        if excusable and answer.said != NO_REASON and left[answer.mode] > 0:
            left[answer.mode] -= 1
        elif not answer.right:
            failed.append(answer)
    return failed


def _word(value: Any) -> str:
    return str(getattr(value, "label", value))


def _line(first: Any) -> str:
    nodes = first.a or first.b
    paths = ", ".join(dict.fromkeys(node.path or '""' for node in nodes))
    return f"step {nodes[0].step} · {_word(first.phase)} · {_word(first.kind)} · {paths}"
