"""Which modules were taken for the same, by their paths."""

from __future__ import annotations

from dataclasses import dataclass

from probe.matching import Matching, Reason
from probe.structure.tree import Tree


@dataclass(frozen=True, slots=True)
class ModulePair:
    """Modules of A and the modules of B that do the same; several of one side where the other fuses them."""

    a: tuple[str, ...]
    b: tuple[str, ...]
    reason: Reason
    confidence: float
    """below 1 where the pair was found by structure or values"""

    def as_json(self) -> dict[str, object]:
        """Return the fields by their names in JSON."""
        return {
            "a": list(self.a),
            "b": list(self.b),
            "because": self.reason.value,
            "confidence": round(self.confidence, 3),
        }


def module_pairs(matching: Matching, tree_a: Tree, tree_b: Tree) -> tuple[ModulePair, ...]:
    """Return all pairs in the order of A's modules."""
    parts = {(bundle.side, bundle.parts[0]): bundle.parts for bundle in matching.bundles}
    return tuple(
        ModulePair(
            tuple(map(tree_a.path, parts.get(("A", pair.a), (pair.a,)))),
            tuple(map(tree_b.path, parts.get(("B", pair.b), (pair.b,)))),
            pair.reason,
            pair.confidence,
        )
        for pair in sorted(matching.pairs, key=lambda pair: pair.a)
    )
