"""What changed between two sets of answers, the gravest first."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.grading import Named, grade_of_places
from benchmarks.localisation.pairs.pair import Pair

KINDS = (
    "verdict",
    "first finding",
    "later findings",
    "doubts",
    "left out",
    "coverage",
    "numbers",
    "hints",
    "evidence",
    "notes",
)
"""what may have changed, the gravest first; a pair is listed under the first that did"""  # fmt: skip


@dataclass(frozen=True)
class Change:
    """One answer that is not what it was."""

    name: str
    kind: str
    """one of `KINDS`"""
    before: str
    after: str


def grade_of(pair: Pair, answer: Mapping[str, Any]) -> str:
    """Return what an answer is worth, one of `GRADES`, or ``error``."""
    if answer["verdict"] == "error":
        return "error"
    named = [
        Named(each["step"], each["phase"], tuple(path for path, _, _ in each["a"] or each["b"]))
        for each in answer["findings"]
    ]
    return grade_of_places(pair.truth, answer["verdict"], named)


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Change]:
    """Yield a change for each answer of both that differs."""
    for name in before.keys() & after.keys():
        for kind in KINDS:
            old, new = (_part(kind, answers[name]) for answers in (before, after))
            if old != new:
                yield Change(name, kind, *_shown(old, new))
                break


def _part(kind: str, answer: Mapping[str, Any]) -> Any:
    findings = answer["findings"]
    places = [{key: finding[key] for key in ("step", "phase", "role", "kind", "a", "b")} for finding in findings]
    parts = {
        "verdict": answer["verdict"],
        "first finding": places[:1],
        "later findings": places[1:],
        "doubts": answer["doubts"],
        "left out": answer["left_out"],
        "coverage": answer["coverage"],
        "numbers": [[finding["confidence"], finding["limit"]] for finding in findings],
        "hints": [[finding["hint"], finding["hints"]] for finding in findings],
        "evidence": [finding["evidence"] for finding in findings],
        "notes": answer["notes"],
    }
    return parts[kind]


def _shown(old: Any, new: Any) -> tuple[str, str]:
    """Return both as text; of lists only what the other has not."""
    if isinstance(old, list) and isinstance(new, list):
        old, new = [each for each in old if each not in new], [each for each in new if each not in old]
    return tuple(each if isinstance(each, str) else json.dumps(each, ensure_ascii=False) for each in (old, new))
