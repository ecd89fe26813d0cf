"""Which module of A is which of B, before B has run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from probe.mapping import LayerMapping
from probe.matching import Bundle, Direction, Matching
from probe.matching.automatic.outline import outline_of
from probe.matching.automatic.weights.lying import may_lie_otherwise
from probe.matching.automatic.weights.packing import packed_as_read
from probe.matching.one_to_many import completed
from probe.matching.paired import paired_modules
from probe.replaying.recorded import Cut
from probe.store.reading.reader import Reader
from probe.structure.tree import Tree


@dataclass(frozen=True)
class Partner:
    """What A recorded for a module of B."""

    module: int
    """of A, or the one that stands for several of A's"""
    cut: Cut | None = None
    """of what that returned, the part which the module of B has; None where it has all"""

    @property
    def is_part(self) -> bool:
        """Whether A's module does what several of B do."""
        return self.cut is not None and len(self.cut.bundle.parts) > 1


@dataclass(frozen=True)
class Pairing:
    """Which module of A is which of B."""

    modules: Matching
    """by which weights are converted"""
    complete: Matching
    """with the weights that lie in one: by which recordings are compared"""


def matched(
    a: Reader, b: Reader, mapping: LayerMapping, direction: str | None, strict: bool, min_confidence: float
) -> Pairing:
    """Pair the modules as `probe.compare` does, given what B begins with.

    Raises
    ------
    MappingError
        the mapping cannot be used
    ConfigError
        the direction is none
    """
    sides = (a, Tree(a.modules)), (b, Tree(b.modules))
    found = paired_modules(*sides, mapping, Direction.named(direction), strict, min_confidence)
    if may_lie_otherwise(found, a, b):
        found = packed_as_read(found, *(outline_of(*side) for side in sides)).matching
    return Pairing(found, completed(found, a, b))


def partners_of(matching: Matching, b: Reader) -> Mapping[int, Partner]:
    """Return, by module of B, what A recorded for it."""
    unknown = {bundle.parts[0] for bundle in matching.bundles if bundle.side == "A" and not _is_known(bundle)}
    found = {pair.b: Partner(pair.a) for pair in matching.pairs if pair.has_calls and pair.a not in unknown}
    for bundle in matching.bundles:
        if bundle.side == "B":
            for number, part in enumerate(bundle.parts):
                found.pop(part, None)
                if _is_known(bundle):
                    found[part] = Partner(bundle.whole, Cut(bundle, number, _sizes(bundle, b)))
    return found


def _is_known(bundle: Bundle) -> bool:
    """Return True if it is known in which order the parts lie."""
    return bundle.groups > 0 and bundle.rotary >= 0


def _sizes(bundle: Bundle, b: Reader) -> tuple[int, ...]:
    """Return how long the parts of what is returned are, by the rows of their weights."""
    rows = {each.module: each.shape[each.axes[0] if each.axes else 0] for each in b.parameters
            if each.canonical_slot == "weight" and each.shape}  # fmt: skip
    return tuple(rows.get(part, 0) for part in bundle.parts) if len(bundle.parts) > 1 else ()
