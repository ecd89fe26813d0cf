"""What a comparison says beside its answer where B's modules were replayed with A's tensors (`probe.replay`)."""

from __future__ import annotations

from dataclasses import dataclass

from probe.comparison.notes import Note, as_json


@dataclass(frozen=True, slots=True)
class Replayed:
    """How much was replayed, and what was not."""

    modules: int
    """pairs of modules that were run"""
    calls: int
    left: tuple[Note, ...] = ()
    """what was not replayed, or only forwards, and why; the outermost modules"""
    weights: str = "a"
    """whose weights the modules had: ``a`` or ``b``"""

    def as_json(self) -> dict[str, object]:
        """Return the fields by their names in JSON."""
        return {
            "modules": self.modules,
            "calls": self.calls,
            "left": [as_json(each) for each in self.left],
            "weights": self.weights,
        }
