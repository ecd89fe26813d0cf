"""The noise rule: an error is noise up to max(k·u, gain · largest error of the sources).

u is the unit roundoff of the least precise dtype on the way. The floors of 16-bit types stand apart: they do not grow
with the length of sums.
"""

from __future__ import annotations

from dataclasses import dataclass

SIXTEEN_BITS = 1e-5
"""roundoffs above this are those of 16 bits"""


@dataclass(frozen=True, slots=True)
class Row:
    """The noise of a phase."""

    k: float
    k16: float
    gain: float

    def floor(self, u: float) -> float:
        """Return the error that rounding makes by itself."""
        return (self.k16 if u > SIXTEEN_BITS else self.k) * u

    def limit(self, u: float, sources: float) -> float:
        """Return the largest error that is noise."""
        return max(self.floor(u), self.gain * sources)


WEIGHTS = Row(4, 1, 0)
FORWARD = Row(16, 8, 8)
LOSS = Row(16, 16, 2)
BACKWARD = Row(64, 16, 16)
GRADIENT = STATE = BACKWARD
NORMS = Row(6, 2, 3)
"""of the difference of norms: rounding has no direction and leaves 1/√n of itself there, a factor all of itself"""

ALONG = 0.7
"""cosine between an error and its value from which on the error is one of the norm; in backward `ALONG_BACKWARD`"""
ALONG_BACKWARD = 0.8
WORST = 4.0
"""how much more than its size an error may count: the parts of it have one sign, or a direction in common"""
OTHER = 1024.0
"""roundoffs from which on a number is another one: of other data, or of rows that another split left uncompared"""
FEW = 16
"""large elements: if they are most of a tensor, its norm averages nothing"""
MANY = 256
"""elements from which on rounding leaves norm and mean as they are"""
JUDGES_NOTHING = 0.9
"""from this limit on any tensor of that size would pass"""
UPDATE_GAIN, UPDATE_FLIPS, UPDATE_NORM, UPDATE_BLIND = 4.0, 3.0, 0.02, 0.7
"""of updates: gain, elements that may flip, difference of norms, the limit from which on nothing is judged"""
