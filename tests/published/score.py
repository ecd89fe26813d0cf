"""How much of what matching finds is right, and how much of what is right it finds."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from probe.defaults import MIN_CONFIDENCE
from probe.mapping import LayerMapping
from probe.matching import Matching, match
from probe.matching.automatic import without_guesses
from probe.matching.automatic.completing import complete
from probe.matching.automatic.outline import outline_of
from probe.store.reading.reader import Reader
from probe.structure.tree import Tree
from tests.published.pairs import ModelPair, scramble
from tests.published.truth import Truth

Relation = tuple[str, str, bool]
"""path in A, path in B, and whether one of them is part of the other"""


@dataclass(frozen=True)
class Score:
    """Counts of relations: pairs, and each part of a bundle with its whole."""

    modules: tuple[int, int]
    found: int
    right: int
    true: int
    wrong: tuple[Relation, ...]
    missed: tuple[Relation, ...]
    seconds: float

    @property
    def precision(self) -> float:
        return self.right / self.found if self.found else 1.0

    @property
    def recall(self) -> float:
        return self.right / self.true if self.true else 1.0


def found_without_mapping(a: Path, b: Path) -> tuple[Tree, Tree, Matching]:
    """Match two recordings as a comparison without ``-lm`` does."""
    with Reader(a) as reader_a, Reader(b) as reader_b:
        trees = Tree(reader_a.modules), Tree(reader_b.modules)
        found = match(*trees, LayerMapping(), lambda index: frozenset(), lambda index: frozenset())
        guessed = complete(found, outline_of(reader_a), outline_of(reader_b))
        return *trees, without_guesses(guessed, MIN_CONFIDENCE)


def score(pair: ModelPair, is_scrambled: bool = False) -> Score:
    """Record both sides, match them, and hold the result against the truth."""
    with tempfile.TemporaryDirectory() as folder:
        files = pair.record(Path(folder))
        with Reader(files[0]) as a, Reader(files[1]) as b:
            truth = pair.truth_of(a.modules, b.modules)
        old = scramble(files[1]) if is_scrambled else {}
        began = time.perf_counter()
        tree_a, tree_b, matching = found_without_mapping(*files)
        seconds = time.perf_counter() - began
    relations = {(a, old.get(b, b), is_part) for a, b, is_part in relations_of(matching, tree_a, tree_b)}
    return judged(relations, truth, (len(tree_a), len(tree_b)), seconds)


def relations_of(matching: Matching, a: Tree, b: Tree) -> set[Relation]:
    """Return what matching says is which."""
    parts = {
        (part, bundle.whole) if bundle.side == "A" else (bundle.whole, part)
        for bundle in matching.bundles
        if not bundle.rotary
        for part in bundle.parts
    }
    plain = {(pair.a, pair.b) for pair in matching.pairs} - parts
    return {(a.path(i), b.path(j), False) for i, j in plain} | {(a.path(i), b.path(j), True) for i, j in parts}


def judged(found: set[Relation], truth: Truth, modules: tuple[int, int], seconds: float = 0.0) -> Score:
    """Hold relations against the truth; those of wrappers and containers that may be stepped over do not count."""
    counted = {(a, b, part) for a, b, part in found if a not in truth.skipped_a and b not in truth.skipped_b}
    true = {(a, b, (a, b) not in truth.pairs) for a, b in truth.relations}
    right = counted & true
    wrong, missed = tuple(sorted(counted - right)), tuple(sorted(true - right))
    return Score(modules, len(counted), len(right), len(true), wrong, missed, seconds)
