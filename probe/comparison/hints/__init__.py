"""What an error looks like, and what to check: hypotheses that are held against what was recorded (docs/hints.md)."""

from probe.comparison.hints.choosing import with_hints
from probe.comparison.hints.table import HINTS, Hint

__all__ = ["HINTS", "Hint", "with_hints"]
