"""The hints: what an error looks like, what to check, and the test that holds it against what was recorded.

Where several fit as well, the first of them is said first: what is more specific stands before what is less.
"""

from __future__ import annotations

from probe.diagnosis.causes.computed import COMPUTED
from probe.diagnosis.causes.looks import LOOKS
from probe.diagnosis.hint import LOSSES

HINTS = (*COMPUTED, *LOOKS)
"""what is more specific first"""
OF_NUMBERS = tuple(hint for hint in HINTS if hint.roles is LOSSES)
"""those for a single number"""
