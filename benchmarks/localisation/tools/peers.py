"""What other tools say about the pairs, graded by the same script; `peer_rows` are lines of the same table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from benchmarks.grading import Named as Place
from benchmarks.grading import counted, expected, grade_of_places
from benchmarks.localisation.pairs.pair import Pair

CANNOT = "cannot"


class Named(NamedTuple):
    """What a tool names first."""

    path: str
    phase: str
    step: int = 0


class PeerAnswer(NamedTuple):
    """A tool's answer about one pair."""

    tool: str
    pair: str
    is_faulty: bool
    grade: str
    """one of `GRADES`, or ``cannot``"""
    expected: str
    said: str


def cannot(tool: str, pair: Pair, why: str) -> PeerAnswer:
    """Return the answer of a tool that cannot run a pair."""
    return PeerAnswer(tool, pair.name, pair.truth is not None, CANNOT, expected(pair.truth), why)


def graded(tool: str, pair: Pair, named: Named | None) -> PeerAnswer:
    """Grade what a tool names first; None: it finds nothing."""
    said = "aligned" if named is None else f"step {named.step} · {named.phase} · {named.path or 'as a whole'}"
    places = [] if named is None else [Place(named.step, named.phase, (named.path,))]
    grade = grade_of_places(pair.truth, "diverged" if places else "aligned", places)
    return PeerAnswer(tool, pair.name, pair.truth is not None, grade, expected(pair.truth), said)


def peer_rows(answers: Iterable[PeerAnswer]) -> list[list[str]]:
    """Return a line for each tool: how many answers about faulty and about clean pairs have which grade."""
    answers, lines = list(answers), []
    for tool in dict.fromkeys(answer.tool for answer in answers):
        cells = []
        for is_faulty in (True, False):
            grades = [x.grade for x in answers if x.tool == tool and x.is_faulty == is_faulty]
            cells.append(f"{len(grades)}: {counted(grades)}")
        lines.append([tool, *cells])
    return lines
