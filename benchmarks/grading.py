"""What an answer is worth: the truth about a pair, the places that a comparison names, and the grade."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

PHASES = ("init", "forward", "loss", "backward", "gradient", "update")
GRADES = ("exact", "parent", "top-3", "other phase", "wrong name", "undecided", "missed", "aligned", "false alarm")
"""
Of a fault: exact (module, phase and step), parent (the module directly around it, in the right phase and step), top-3 (exact, but
second or third), other phase (the module in another phase or step), wrong name, undecided, missed. Of a clean pair: aligned,
undecided, false alarm.
"""


@dataclass(frozen=True)
class Truth:
    """The right answer for a faulty pair."""

    path: str
    """of the module on side A; "" is the model, the loss or the optimizer as a whole"""
    phases: tuple[str, ...]
    """the phase of the first divergence, and others that are as right"""
    step: int = 0
    also: tuple[str, ...] = ()
    """globs of other paths that are as right, because the fault is in all of them"""
    only_b: tuple[str, ...] = ()
    """modules of B that are right where what is named has no counterpart in A"""

    def names(self, path: str) -> bool:
        """Tell whether `path` is the right module."""
        return path == self.path or any(fnmatchcase(path, glob) for glob in self.also)

    def near(self, path: str) -> bool:
        """Tell whether `path` is the module directly around the right one."""
        return "." in self.path and path == self.path.rpartition(".")[0]


class Named(NamedTuple):
    """A place that a comparison names."""

    step: int
    phase: str
    paths: tuple[str, ...]
    """in A where A has it"""
    is_only_b: bool = False


def places(found: Any) -> list[Named]:
    """Return the places that a comparison names, in its order."""
    return [Named(one.step, one.phase.label, tuple(paths_of(one)), not one.a) for one in found.divergences]


def grade(truth: Truth | None, found: Any) -> str:
    """Say what a comparison is worth as an answer to the truth, None for a clean pair."""
    return grade_of_places(truth, found.verdict, places(found))


def grade_of_places(truth: Truth | None, verdict: str, named: Sequence[Named]) -> str:
    """Say what a verdict and the places that it names, in its order, are worth as an answer to the truth, None for a clean pair."""
    if verdict == "undecided":
        return "undecided"
    if truth is None:
        return "aligned" if verdict == "aligned" else "false alarm"
    if verdict == "aligned":
        return "missed"
    first, *others = named
    if _is_right(truth, first):
        return "exact"
    if _is_in_place(truth, first) and all(map(truth.near, first.paths)):
        return "parent"
    if any(_is_right(truth, other) for other in others[:2]):
        return "top-3"
    return "other phase" if _names(truth, first) else "wrong name"


def expected(truth: Truth | None) -> str:
    """Return the right answer in one line."""
    if truth is None:
        return "aligned"
    place = " or ".join(truth.also) if truth.path == "*" else truth.path or "as a whole"
    return f"step {truth.step} · {' or '.join(truth.phases)} · {place}"


def said(found: Any) -> str:
    """Return what a comparison says first, in one line: a place, or why nothing was decided."""
    first = found.first_divergence
    text = found.verdict.value if first is None else _line(first)
    if found.verdict == "undecided":
        text = "; ".join(["undecided", *found.doubts]) + (f" ({text})" if first is not None else "")
    return text


def counted(grades: Iterable[str]) -> str:
    """Return in words how often each grade was given."""
    counts = Counter(grades)
    return ", ".join(f"{counts[one]} {one}" for one in dict.fromkeys((*GRADES, *counts)) if counts[one])


def paths_of(found: Any) -> list[str]:
    """Return the modules of a finding, of A where A has them."""
    return [ref.path for ref in found.a or found.b]


def _is_in_place(truth: Truth, found: Named) -> bool:
    return found.phase in truth.phases and found.step == truth.step


def _is_right(truth: Truth, found: Named) -> bool:
    return _is_in_place(truth, found) and _names(truth, found)


def _names(truth: Truth, found: Named) -> bool:
    is_of_b = found.is_only_b and bool(truth.only_b) and all(path in truth.only_b for path in found.paths)
    return is_of_b or all(map(truth.names, found.paths))


def _line(first: Any) -> str:
    paths = ", ".join(dict.fromkeys(path or "as a whole" for path in paths_of(first)))
    side = "" if first.a else "B's "
    return f"step {first.step} · {first.phase.label} · {side}{paths} ({first.kind.value} {first.role.label})"
