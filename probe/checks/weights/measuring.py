"""The numbers of a pair of weights: mean, variance and norm of each, and how far one goes with the other."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from probe.checks.initial.distributions import Drawn
from probe.checks.initial.known import like
from probe.checks.weights.pairing import WeightPair
from probe.notes import named

_PART = 1 << 22
"""elements that are added up at a time"""
_STATISTICS = ("running_mean", "running_var", "moving_mean", "moving_variance", "_mean", "_variance")
"""names that the frameworks' normalisations have for what they count"""
_TABLES = ("embed", "wte", "wpe")
"""in the names of tables"""


class Kind(enum.StrEnum):
    """What a weight is, by its name and shape: optimizers put these into groups of their own."""

    MATRIX = "matrices"
    EMBEDDING = "embeddings"
    SCALE = "norm weights"
    """vectors that multiply"""
    BIAS = "biases"
    STATISTIC = "running statistics"
    """of the data, not trained"""


@dataclass(frozen=True, slots=True)
class Numbers:
    """The finite elements of a weight."""

    count: int
    mean: float
    std: float
    norm: float
    largest: float
    bad: int
    """elements that are NaN or infinite"""

    @property
    def variance(self) -> float:
        """The square of the standard deviation."""
        return self.std**2

    @property
    def drawn(self) -> Drawn:
        """The same as a sample."""
        return Drawn(self.count, self.mean, self.std, self.largest)


@dataclass(frozen=True, slots=True)
class WeightRow:
    """A weight of A and its counterpart in B."""

    name_a: str
    name_b: str
    kind: Kind
    shape: tuple[int, ...]
    a: Numbers
    b: Numbers
    is_equal: bool
    """bit for bit, in one dtype"""
    correlation: float
    """of the elements around their means; NaN where one side is constant, or the order of the elements is not known"""
    like_a: str
    """the initialisation that the numbers are like, or empty"""
    like_b: str

    @property
    def norm_ratio(self) -> float:
        """‖B‖ / ‖A‖; NaN where one of them is 0."""
        return self.b.norm / self.a.norm if self.a.norm and self.b.norm else math.nan

    @property
    def std_ratio(self) -> float:
        """The ratio of the standard deviations; NaN where one side is constant."""
        return math.nan if self.a.drawn.is_constant or self.b.drawn.is_constant else self.b.std / self.a.std

    def as_json(self) -> dict[str, Any]:
        """Return the fields by their names in JSON."""
        sides = ((side, named(getattr(self, side), "mean", "variance", "norm", "bad")) for side in "ab")
        numbers = {f"{name}_{side}": value for side, found in sides for name, value in found.items()}
        about = {"a": self.name_a, "b": self.name_b, **named(self, "kind", "shape"), "elements": self.b.count}
        return about | numbers | named(self, "is_equal", "norm_ratio", "std_ratio", "correlation", "like_a", "like_b")


def measured(pair: WeightPair) -> WeightRow:
    """Read both weights and return their numbers."""
    a, b = pair.a(), pair.b()
    is_equal = a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    kind = kind_of(pair.name_b, pair.shape)
    numbers = numbers_of(a), numbers_of(b)
    likes = [like(each.drawn, pair.shape, kind is Kind.EMBEDDING) if each.count else "" for each in numbers]
    together = _correlation(a, b) if a.shape == b.shape else math.nan
    return WeightRow(pair.name_a, pair.name_b, kind, pair.shape, *numbers, is_equal, together, *likes)


def kind_of(name: str, shape: tuple[int, ...]) -> Kind:
    """Return what a weight is."""
    slot = name.rpartition(".")[2].casefold()
    if slot in _STATISTICS:
        return Kind.STATISTIC
    if "bias" in slot or slot in ("beta", "b"):
        return Kind.BIAS
    is_table = len(shape) == 2 or len(shape) > 2 and shape[0] == 1  # 1 in front: a token, or positions, of all samples
    if any(each in name.casefold() for each in _TABLES) and is_table:
        return Kind.EMBEDDING
    return Kind.MATRIX if sum(size > 1 for size in shape) > 1 else Kind.SCALE


def numbers_of(values: np.ndarray) -> Numbers:
    """Return the numbers of an array, added up in float64."""
    total = squares = largest = 0.0
    count = bad = 0
    for part in parts(values):
        finite = part[np.isfinite(part)]
        bad += part.size - finite.size
        count += finite.size
        if finite.size:
            total += float(finite.sum())
            squares += float(finite @ finite)
            largest = max(largest, float(np.abs(finite).max()))
    if not count:
        return Numbers(0, math.nan, math.nan, math.nan, math.nan, bad)
    mean = total / count
    return Numbers(count, mean, math.sqrt(max(squares / count - mean**2, 0.0)), math.sqrt(squares), largest, bad)


def parts(values: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the elements of an array in float64, some at a time."""
    flat = values.reshape(-1)
    yield from (flat[start : start + _PART].astype(np.float64) for start in range(0, flat.size, _PART))


def _correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Return the correlation of the elements of two arrays of one shape; of square ones the larger of both orders of axes.

    The names of tensors do not tell whether one side stores them the other way round.
    """
    found = _pearson(a, b)
    is_square = a.ndim == 2 and a.shape[0] == a.shape[1]
    turned = _pearson(a.T, b) if is_square else found
    return turned if abs(turned) > abs(found) else found


def _pearson(a: np.ndarray, b: np.ndarray) -> float:
    sums = np.zeros(5)
    for x, y in zip(parts(a), parts(b), strict=True):
        sums += (x.sum(), y.sum(), x @ y, x @ x, y @ y)
    size = a.size
    if not size:
        return math.nan
    x, y, xy, xx, yy = sums / size
    spread = (xx - x * x) * (yy - y * y)
    tiny = 1e-24 * xx * yy
    return float((xy - x * y) / math.sqrt(spread)) if spread > tiny else math.nan
