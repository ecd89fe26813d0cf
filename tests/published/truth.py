"""Which module is which, said by hand for every module of both sides.

A truth is text. A line pairs two paths, a line that ends in ``:`` holds for those indented below it, and `.` is the root
or what the line above stands for. ``{i}`` stands for a number, the same one on both sides::

    decoder.layers.{i} = model.layers.{i}:
      . = .
      self_attention.linear_qkv = self_attn.q_proj | self_attn.k_proj | self_attn.v_proj
    A: **.core_attention           has no counterpart in B
    B: **.act_fn                   the same the other way
    -A: 0                          a wrapper or container that matching may step over: not counted either way
    -B: module

In patterns behind ``A:`` and its kin ``*`` is one component and ``**`` any number. Every module must stand in exactly one
line, or the truth itself is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

ROOT = "."
_PLACE = re.compile(r"\\\{(\w+)\\\}")


@dataclass(frozen=True)
class Truth:
    """What is right for one pair of models; modules are named by their paths, the root is ``""``."""

    pairs: frozenset[tuple[str, str]]
    """(path in A, path in B)"""
    bundles: frozenset[tuple[str, str, tuple[str, ...]]]
    """(side that has the parts, path of the whole on the other side, paths of the parts in the order in which they lie)"""
    none_a: frozenset[str]
    none_b: frozenset[str]
    """modules without counterpart"""
    skipped_a: frozenset[str]
    skipped_b: frozenset[str]
    """modules that may or may not be paired"""

    @property
    def relations(self) -> frozenset[tuple[str, str]]:
        """Every (path in A, path in B), each part of a bundle with its whole."""
        parts = {(part, whole) for side, whole, parts in self.bundles if side == "A" for part in parts}
        parts |= {(whole, part) for side, whole, parts in self.bundles if side == "B" for part in parts}
        return self.pairs | parts


def read_truth(text: str, paths_a: Iterable[str], paths_b: Iterable[str]) -> Truth:
    """Read a truth for two lists of module paths.

    Raises
    ------
    ValueError
        it names what is not there, or leaves a module out, or has one twice
    """
    reading = _Reading(frozenset(paths_a), frozenset(paths_b))
    for line in _lines(text):
        reading.take(line)
    return reading.finished()


class _Reading:
    def __init__(self, paths_a: frozenset[str], paths_b: frozenset[str]) -> None:
        self.paths = {"A": paths_a, "B": paths_b}
        self.pairs: set[tuple[str, str]] = set()
        self.bundles: set[tuple[str, str, tuple[str, ...]]] = set()
        self.used: dict[str, list[str]] = {"A": [], "B": []}
        self.found: dict[str, set[str]] = {"A": set(), "B": set(), "-A": set(), "-B": set()}

    def take(self, line: str) -> None:
        side, _, pattern = line.partition(":")
        if side in self.found:
            self._listed(side, pattern.strip())
            return
        left, _, right = line.partition(" = ")
        lefts, rights = ([part.strip() for part in names.split("|")] for names in (left, right))
        if len(lefts) > 1:
            for whole, parts in self._matched("B", rights[0], lefts):
                self.bundles.add(("A", whole, parts))
        elif len(rights) > 1:
            for whole, parts in self._matched("A", lefts[0], rights):
                self.bundles.add(("B", whole, parts))
        else:
            self.pairs |= {(a, b) for a, (b,) in self._matched("A", lefts[0], rights)}

    def _matched(self, side: str, pattern: str, others: list[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yield the modules of one side that a pattern names, with what it says of the other."""
        other_side = "B" if side == "A" else "A"
        form = re.compile(_PLACE.sub(r"(?P<\1>\\d+)", re.escape(_path(pattern))))
        found = [(path, match.groupdict()) for path in self.paths[side] if (match := form.fullmatch(path))]
        if not found:
            raise ValueError(f"{pattern} names no module of {side}")
        for path, numbers in found:
            parts = tuple(_path(other).format(**numbers) for other in others)
            for part in parts:
                if part not in self.paths[other_side]:
                    raise ValueError(
                        f"{part} is no module of {other_side} (of the line {pattern} = {' | '.join(others)})"
                    )
            self.used[side].append(path)
            self.used[other_side] += parts
            yield path, parts

    def _listed(self, side: str, pattern: str) -> None:
        form = re.compile(_glob(_path(pattern)))
        found = {path for path in self.paths[side[-1]] if form.fullmatch(path)}
        if not found:
            raise ValueError(f"{side}: {pattern} names no module")
        self.found[side] |= found
        self.used[side[-1]] += found

    def finished(self) -> Truth:
        for side, paths in self.paths.items():
            counts: dict[str, int] = dict.fromkeys(paths, 0)
            for path in self.used[side]:
                counts[path] += 1
            wrong = sorted(path or ROOT for path, count in counts.items() if count != 1)
            if wrong:
                raise ValueError(f"modules of {side} that stand in no line, or in two: {', '.join(wrong)}")
        sets = (frozenset(self.found[side]) for side in ("A", "B", "-A", "-B"))
        return Truth(frozenset(self.pairs), frozenset(self.bundles), *sets)


def _lines(text: str) -> Iterator[str]:
    """Yield the lines with the paths that stand above them put before theirs."""
    above: list[tuple[int, str, str]] = [(-1, "", "")]
    for raw in text.splitlines():
        line = raw.partition("#")[0].rstrip()
        if not line:
            continue
        depth = len(line) - len(line.lstrip())
        line = line.strip()
        while above[-1][0] >= depth:
            above.pop()
        prefix = {"A": above[-1][1], "B": above[-1][2]}
        side, _, pattern = line.partition(":")
        if side in ("A", "B", "-A", "-B"):
            yield f"{side}: {_below(prefix[side[-1]], pattern.split()[0])}"
            continue
        left, _, right = line.removesuffix(":").partition(" = ")
        lefts = " | ".join(_below(prefix["A"], part.strip()) for part in left.split("|"))
        rights = " | ".join(_below(prefix["B"], part.strip()) for part in right.split("|"))
        if line.endswith(":"):
            above.append((depth, lefts, rights))
        else:
            yield f"{lefts} = {rights}"


def _below(prefix: str, path: str) -> str:
    if path == ROOT:
        return prefix or ROOT
    return f"{prefix}.{path}" if prefix and prefix != ROOT else path


def _path(text: str) -> str:
    return "" if text == ROOT else text


def _glob(pattern: str) -> str:
    """Return the regular expression of a pattern of components."""
    form = re.escape(pattern).replace(r"\*\*\.", r"(?:[^.]+\.)*").replace(r"\.\*\*", r"(?:\.[^.]+)*")
    return re.sub(r"\\\{\w+\\\}", r"\\d+", form.replace(r"\*", r"[^.]+"))
