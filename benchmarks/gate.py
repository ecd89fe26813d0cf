"""`scripts/gate`: sixty pairs, before and after a change of the verdict.

Forty faults and twenty right pairs of the tuned part, one of each architecture in turn, from statistics. Recordings are
kept in ``build/gate``: they are made anew only where the recorder changed. `gate.json` beside this file has how each
pair was answered; what is answered otherwise is printed, and the exit status is 1 if anything is worse.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from itertools import chain, zip_longest
from pathlib import Path

from benchmarks.grading import GRADES, counted
from benchmarks.localisation.pairs.pair import Pair
from benchmarks.localisation.tools.suite import Answer, answers, chosen

KNOWN = Path(__file__).with_suffix(".json")
KEPT = Path(__file__).parents[1] / "build" / "gate"
FAULTS, CLEAN = 40, 20


def pairs() -> list[Pair]:
    """Return the pairs of the gate: always the same."""
    tuned = [pair for pair in chosen(1.0, "tuned") if not pair.a.architecture.startswith("port-")]
    faults, clean = ([pair for pair in tuned if bool(pair.truth) is wanted] for wanted in (True, False))
    return [*_spread(faults, FAULTS), *_spread(clean, CLEAN)]


def _spread(all_pairs: list[Pair], count: int) -> list[Pair]:
    """Return pairs of as many architectures and kinds as there are: of each in turn, each time of another phase."""
    groups: dict[str, list[Pair]] = defaultdict(list)
    for pair in all_pairs:
        groups[pair.a.architecture].append(pair)
    turned = [group[place % len(group) :] + group[: place % len(group)] for place, group in enumerate(groups.values())]
    return [pair for pair in chain.from_iterable(zip_longest(*turned)) if pair is not None][:count]


def is_worse(before: str, after: str) -> bool:
    """Return True if a grade is further from right than it was; GRADES go from right to wrong for faults and for clean pairs."""
    return GRADES.index(after) > GRADES.index(before)


def main() -> int:
    """Judge the pairs; print what is answered otherwise than before."""
    parser = argparse.ArgumentParser(prog="scripts/gate", description=__doc__)
    parser.add_argument("--write", action="store_true", help="keep these answers as those to compare with")
    options = parser.parse_args()
    KEPT.mkdir(parents=True, exist_ok=True)
    began, found = time.perf_counter(), {}
    for each in chain.from_iterable(answers(pairs(), ("statistics",), KEPT, 2)):
        found[each.pair] = each
    known: dict[str, str] = json.loads(KNOWN.read_text()) if KNOWN.exists() else {}
    if options.write:
        KNOWN.write_text(json.dumps({name: found[name].grade for name in sorted(found)}, indent=0) + "\n")
    changed = [each for name, each in sorted(found.items()) if known.get(name, each.grade) != each.grade]
    for each in changed:
        print(_line(each, known[each.pair]))
    told = counted(each.grade for each in found.values())
    print(f"{len(found)} pairs in {time.perf_counter() - began:.0f} s: {told}; {len(changed)} answered otherwise")
    return int(any(is_worse(known[each.pair], each.grade) for each in changed))


def _line(answer: Answer, before: str) -> str:
    return f"{answer.pair}: {before} → {answer.grade}\n  right: {answer.expected}\n  said:  {answer.said}"


if __name__ == "__main__":
    raise SystemExit(main())
