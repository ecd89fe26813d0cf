"""How often a finding is at the right place, by what is known of it: fits `probe.diagnosis.confidence`, and says how it does.

    python -m benchmarks.confidence [--share 0.15] [--folder benchmarks/results/confidence] [--jobs 2] [--recorded] [--blind build/blind]

Pairs are recorded once into the folder; those of the blind set count too where ``python -m benchmarks.blind`` has recorded them. It writes the weights into ``probe/diagnosis/confidence.py`` and the table of what is said against what
is true into ``docs/evidence/confidence.md``: of each architecture by weights that were fitted on the others.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.blind import catalogue
from benchmarks.blind.confirm import confirmed
from benchmarks.blind.judge import TASKS, recordings
from benchmarks.grading import grade
from benchmarks.localisation.pairs.pair import Pair
from benchmarks.localisation.tools.suite import MODES, ROOT, chosen
from benchmarks.oracle.recordings import files_of, record_all
from probe.answer.comparison import Comparison
from probe.comparing import compare
from probe.diagnosis import beside, told
from probe.diagnosis.confidence import Known, known_of

_PAGE, _CODE = ROOT / "docs/evidence/confidence.md", ROOT / "probe/diagnosis/confidence.py"
_FOLDS = 8
_RIDGE = 1.0
"""what a weight of 1 costs, in log-likelihood times 2: few findings are wrong"""
_EDGES = (0.0, 0.7, 0.85, 0.9, 0.95, 0.975, 1.0)


@dataclass(frozen=True)
class Case:
    """The first finding of a pair."""

    name: str
    mode: str
    architecture: str
    known: Known
    is_right: bool


def cases(pairs: Iterable[Pair], folder: Path) -> Iterator[Case]:
    """Compare the pairs that are recorded; yield those of which something is said to be wrong."""
    for pair in pairs:
        for mode in MODES:
            files = files_of(pair, mode, folder)
            if not all(file.exists() for file in files):
                continue
            found, known = _compared(files, pair.mapping)
            if found.divergences and known:
                yield Case(pair.name, mode, pair.a.architecture, known, grade(pair.truth, found) == "exact")


def blind_cases(folder: Path) -> Iterator[Case]:
    """Do so with the pairs of the blind set that are recorded: nobody wrote a rule for them."""
    sure = confirmed()
    for pair in (pair for pair in catalogue.pairs() if pair.name in sure):
        for kind in TASKS:
            files = recordings(folder, pair, kind)
            if all(file.exists() for file in files):
                found, known = _compared(files, pair.mapping)
                if found.divergences and known:
                    right = grade(pair.fault and pair.fault.truth, found) == "exact"
                    yield Case(pair.name, kind, f"blind {pair.model.name}", known, right)


def _compared(files: Sequence[Path], mapping: Any) -> tuple[Comparison, Known]:
    """Return an answer without what stands beside it, and what is known of its first finding."""
    seen: list[Known] = []

    def watched(finding: told.Finding) -> float:
        seen.append(known_of(finding) if finding.is_shown else {})
        return 0.9

    with (
        patch.object(told, "confidence_of", watched),
        patch.object(beside, "evidence_of", lambda *_: None),
        patch.object(beside, "with_settings_by_numbers", lambda step, finding, said, notes: said),
    ):
        found = compare(*files, mapping)
    return found, seen[0] if seen else {}


def _is_right(case: Case) -> bool:
    return case.is_right


def _is_blind(case: Case) -> bool:
    return case.architecture.startswith("blind ")


def fitted(found: Sequence[Case]) -> dict[str, float]:
    """Return the weights under which what was found is likeliest, small ones preferred; both sets of pairs count the same."""
    names = ["always", *sorted({name for case in found for name in case.known} - {"always"})]
    x = np.array([[case.known.get(name, 0.0) for name in names] for case in found])
    y, is_blind = (np.array([each(case) for case in found], float) for each in (_is_right, _is_blind))
    counts = np.where(is_blind > 0, max(np.sum(1 - is_blind), 1) / max(np.sum(is_blind), 1), 1.0)
    ridge = np.diag([1e-6, *[_RIDGE] * (len(names) - 1)])
    weights = np.zeros(len(names))
    for _ in range(50):
        p = 1 / (1 + np.exp(-x @ weights))
        slope = x.T @ (counts * (y - p)) - ridge @ weights
        weights = weights + np.linalg.solve((x.T * (counts * p * (1 - p))) @ x + ridge, slope)
    return {name: round(float(weight), 2) for name, weight in zip(names, weights, strict=True)}


def said_of(known: Known, weights: dict[str, float]) -> float:
    """Return the confidence that weights give."""
    return 1 / (1 + math.exp(-sum(weights.get(name, 0.0) * value for name, value in known.items())))


def in_order(found: Sequence[Case]) -> list[Case]:
    """Return the cases by fold: an architecture lies in one of them."""
    architectures = sorted({case.architecture for case in found})
    fold_of = {name: at % _FOLDS for at, name in enumerate(architectures)}
    return sorted(found, key=lambda case: fold_of[case.architecture])


def held_out(found: Sequence[Case]) -> list[tuple[float, bool]]:
    """Return what is said of each case, in the order of `in_order`, by weights of the other folds, and whether it is right."""
    architectures, told = sorted({case.architecture for case in found}), []
    for fold in range(_FOLDS):
        left = set(architectures[fold::_FOLDS])
        weights = fitted([case for case in found if case.architecture not in left])
        told += [(said_of(case.known, weights), case.is_right) for case in in_order(found) if case.architecture in left]
    return told


def reliability(told: Sequence[tuple[float, bool]]) -> list[str]:
    """Return rows of what is said against what is right."""
    rows = ["| said | findings | said, mean | right |", "|---|---|---|---|"]
    for low, high in zip(_EDGES, _EDGES[1:], strict=False):
        here = [(said, right) for said, right in told if low <= said < high or said == high == 1]
        if here:
            said, right = (sum(each[k] for each in here) / len(here) for k in (0, 1))
            rows.append(f"| {low:g} to {high:g} | {len(here)} | {said:.3f} | {right:.3f} |")
    return rows


def page(found: Sequence[Case], weights: dict[str, float], share: float) -> str:
    """Return the page."""
    told = held_out(found)
    blind_told = [each for case, each in zip(in_order(found), told, strict=True) if _is_blind(case)]
    off = sum((said - right) ** 2 for said, right in told) / len(told)
    base = sum(right for _, right in told) / len(told)
    architectures = len({case.architecture for case in found})
    lines = [
        "# Confidence: said against true",
        "",
        f"A finding's confidence is how likely its place is the right one. `python -m benchmarks.confidence --share {share:g}` fits it on the "
        f"first findings of pairs whose truth is known ({len(found)} findings, {architectures} architectures; a finding in a clean pair is "
        f"wrong; the pairs that the rules were tuned on and those of the blind set count the same), and wrote this page. What is said of each finding here is said by weights that were fitted without its architecture.",
        "",
        *reliability(told),
        "",
        f"All of them: {base:.3f} are right; Brier score {off:.4f}, that of one number for all {base * (1 - base):.4f}.",
        "",
        f"The {len(blind_told)} of the blind set among them, for whose models nobody wrote a rule:",
        "",
        *reliability(blind_told),
        "",
        "| known of a finding | log-odds |",
        "|---|---|",
        *(f"| {name} | {weight:+.2f} |" for name, weight in weights.items()),
        "",
        "`times the limit` is a share of four orders of magnitude above it, `near the limit` 1 at the limit and 0 from ten times it on. A pair "
        "of modules or parameters that is a guess multiplies the confidence by that of the guess.",
        "",
    ]
    return "\n".join(lines)


def with_weights(code: str, weights: dict[str, float]) -> str:
    """Return the code of `probe.diagnosis.confidence` with other weights."""
    rows = "".join(f'    "{name}": {weight},\n' for name, weight in weights.items())
    return re.sub(r"WEIGHTS = \{\n(.*?)\}\n", lambda _: f"WEIGHTS = {{\n{rows}}}\n", code, count=1, flags=re.DOTALL)


def main() -> None:
    """Record, compare, fit, write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--share", type=float, default=0.15, help="of the pairs")
    parser.add_argument("--folder", type=Path, default=ROOT / "benchmarks/results/confidence", help="for recordings")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--blind", type=Path, default=ROOT / "build/blind", help="recordings of the blind set")
    parser.add_argument("--recorded", action="store_true", help="record nothing: count the pairs that are recorded")
    arguments = parser.parse_args()
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    warnings.simplefilter("ignore")
    pairs = [pair for pair in chosen(arguments.share, "all") if not pair.a.architecture.startswith("port-")]
    if not arguments.recorded:
        record_all(pairs, MODES, arguments.folder, arguments.jobs, lambda: None)
    found = [*cases(pairs, arguments.folder), *blind_cases(arguments.blind)]
    (arguments.folder / "confidence.json").write_text(json.dumps([asdict(case) for case in found]), encoding="utf-8")
    weights = fitted(found)
    _CODE.write_text(with_weights(_CODE.read_text(encoding="utf-8"), weights), encoding="utf-8")
    _PAGE.write_text(page(found, weights, arguments.share), encoding="utf-8")
    print(_PAGE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
