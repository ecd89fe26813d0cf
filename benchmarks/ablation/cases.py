"""The pairs that functions have to earn their place on: those of the localisation benchmark, and of public packages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.localisation.pairs.pair import Truth
from benchmarks.localisation.tools.suite import MODES, chosen
from benchmarks.oracle.recordings import files_of


@dataclass(frozen=True)
class Case:
    """Two recordings, and what is to be said of them."""

    name: str
    kind: str
    """the architecture, or the pair of packages"""
    a: Path
    b: Path
    mapping: Any
    truth: Truth | None

    def as_task(self) -> list[Any]:
        """Return what a worker needs."""
        return [self.name, str(self.a), str(self.b), self.mapping]


def localisation(share: float, folder: Path) -> Iterator[Case]:
    """Yield a share of the benchmark's pairs, in both modes; their recordings are there."""
    for pair in chosen(share, "all"):
        for mode in MODES:
            files = files_of(pair, mode, folder)
            yield Case(f"{pair.name} {mode}", pair.b.architecture, *files, pair.mapping, pair.truth)


def public(folder: Path) -> Iterator[Case]:
    """Yield the pairs of public packages of which recordings are there, without a mapping."""
    from benchmarks.public_ports.running import SETS, names, pair_of

    for name in names(SETS[0]):
        pair = pair_of(name)
        for fault in (None, *pair.faults):
            for mode in MODES:
                found = [
                    sorted(folder.glob(f"{name}.{side}.{what}.{mode}.*.h5"))
                    for side, what in (("a", "right"), ("b", fault.name if fault else "right"))
                ]
                if all(found):
                    truth = fault.truth if fault else None
                    yield Case(f"{name} {fault.name if fault else 'right'} {mode}", name, found[0][-1], found[1][-1], None, truth)  # fmt: skip
