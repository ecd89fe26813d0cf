"""What an error looks like, and what to check: hypotheses that are held against what was recorded (docs/hints.md)."""

from probe.comparison.hints.choosing import with_hints
from probe.comparison.hints.hint import Hint
from probe.comparison.hints.table import HINTS

__all__ = ["HINTS", "Hint", "with_hints"]
