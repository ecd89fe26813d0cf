"""What other tools say about the pairs, graded by the same script; `peer_rows` are lines of the same table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from types import SimpleNamespace
from typing import NamedTuple

from benchmarks.localisation.pairs.pair import Pair
from benchmarks.localisation.tools.suite import GRADES, expected, grade
from probe.comparison.result import Verdict

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
    found = SimpleNamespace(verdict=Verdict.ALIGNED, first_divergence=None, divergences=())
    said = "aligned"
    if named is not None:
        ref = SimpleNamespace(path=named.path)
        first = SimpleNamespace(phase=SimpleNamespace(label=named.phase), step=named.step, a=(ref,), b=(ref,))
        found = SimpleNamespace(verdict=Verdict.DIVERGED, first_divergence=first, divergences=(first,))
        said = f"step {named.step} · {named.phase} · {named.path or 'as a whole'}"
    return PeerAnswer(tool, pair.name, pair.truth is not None, grade(pair.truth, found), expected(pair.truth), said)


def peer_rows(answers: Iterable[PeerAnswer], of_probe: Iterable[PeerAnswer] = ()) -> list[list[str]]:
    """Return a line for each tool and for faulty and clean pairs; those of probe are about the same pairs."""
    answers = [*answers, *of_probe]
    lines = []
    for tool in dict.fromkeys(answer.tool for answer in answers):
        for is_faulty in (True, False):
            grades = Counter(x.grade for x in answers if x.tool == tool and x.is_faulty == is_faulty)
            if grades:
                counts = [str(grades[name]) if grades[name] else "·" for name in (*GRADES, CANNOT)]
                lines.append([tool, "faulty" if is_faulty else "clean", str(grades.total()), *counts])
    return lines
