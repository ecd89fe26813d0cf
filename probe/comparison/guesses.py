"""Pairs of modules that neither the mapping nor the path says: what to say of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from probe.comparison.result import Divergence
from probe.matching import Matching, Pair, Reason
from probe.matching.automatic import complete, leaves_something, outline_of, without_guesses
from probe.store.reader import Reader
from probe.tree import Tree

MIN_CONFIDENCE = 0.6


def with_guesses(matching: Matching, a: tuple[Reader, Tree], b: tuple[Reader, Tree], min_confidence: float) -> Matching:
    """Return a matching with pairs for what it leaves on both sides, those that are sure enough."""
    if min_confidence >= 1 or not leaves_something(matching, a[1], b[1]):
        return matching
    return without_guesses(complete(matching, outline_of(*a), outline_of(*b)), min_confidence)


@dataclass
class Guesses:
    """What was paired without a mapping."""

    matching: Matching
    tree_a: Tree
    tree_b: Tree

    @cached_property
    def pairs(self) -> dict[tuple[str, str], Pair]:
        """By both paths."""
        return {
            (self.tree_a.path(pair.a), self.tree_b.path(pair.b)): pair
            for pair in self.matching.pairs
            if pair.confidence < 1
        }

    def notes(self) -> Iterator[str]:
        """Say how many pairs were found by structure and values, and which is the least sure."""
        found = [pair for pair in self.pairs.values() if self.tree_a.wrapped(pair.a) is None]
        if not found:
            return
        least = min(found, key=lambda pair: pair.confidence)
        by_values = sum(pair.reason is Reason.SAME_VALUES for pair in found)
        parts = [f"{by_values} by recorded values"] if by_values else []
        parts += [f"{len(found) - by_values} by structure"] if by_values < len(found) else []
        yield (
            f"{len(found)} of {len(self.matching.pairs)} pairs of modules were found without a mapping, "
            f"{' and '.join(parts)}; the least sure ({least.confidence:.2f}) is {self.tree_a.path(least.a)} with "
            f"{self.tree_b.path(least.b)}"
        )

    def weighed(self, finding: Divergence) -> Divergence:
        """Let a finding at modules that may be no pair be no surer than the pair is, and say so."""
        pair = self.pairs.get((finding.a[0].path, finding.b[0].path)) if finding.a and finding.b else None
        if pair is None:
            return finding
        fact = f"that these two are a pair is a guess by {pair.reason.value} ({pair.confidence:.2f})"
        return replace(finding, confidence=finding.confidence * pair.confidence, evidence=(*finding.evidence, fact))
