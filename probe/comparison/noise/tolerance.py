"""How much error is noise: the built-in model.

An error is more than noise when it exceeds both ``k`` unit roundoffs of the least precise dtype on the way and
``gain`` times the largest error among what it was computed from. The numbers were found on 192 pairs of models,
see ``docs/reference/verdict.md``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from probe.comparison.distance.metrics import Metrics

Place = TypeVar("Place")
SIXTEEN_BIT = 2.0**-20
"""unit roundoffs above this are those of 16-bit (or narrower) dtypes"""


@dataclass(frozen=True, slots=True)
class Rule:
    """Thresholds of one kind of observation."""

    k: float
    """unit roundoffs allowed without any error at the sources, for float32 and wider"""
    k16: float
    """the same for 16-bit dtypes, whose rounding errors do not grow with the reduction length"""
    gain: float
    """how much larger than its sources' an error may be"""
    plain: Rule | None = None
    """of an error with a direction: the thresholds for one without"""
    scale: Rule | None = None
    """for the norm, where it is one of many elements"""
    own16: float = 0.0
    """unit roundoffs of the sources' error that nothing makes larger, for 16-bit dtypes: rounding them when they were written"""

    def limit(self, u: float, sources: float) -> float:
        """Return the largest error that is still noise, for unit roundoff ``u`` and the sources' largest error."""
        if u > SIXTEEN_BIT:
            return max(self.k16 * u, self.gain * (sources - self.own16 * u))
        return max(self.k * u, self.gain * sources)

    def with_scale(self, scale: Rule | None) -> Rule:
        """Return the same thresholds with others for the norm, or none."""
        return self if scale is self.scale else replace(self, scale=scale)


INIT = Rule(k=4, k16=1, gain=0)
FORWARD = Rule(k=16, k16=8, gain=8, own16=0.5)
COHERENT = Rule(k=8, k16=4, gain=3, plain=FORWARD)
"""for values of the forward pass with an error in one direction, up or down"""
SCALE = Rule(k=6, k16=1, gain=1)
"""for the norms of values of the forward pass"""
_FORWARD_WITH_SCALE, _COHERENT_WITH_SCALE = FORWARD.with_scale(SCALE), COHERENT.with_scale(SCALE)
LOSS_SCALE = Rule(k=4, k16=1, gain=1)
"""for the norm of what the loss passes back, where much is left of what it is computed from"""
LOSS = Rule(k=16, k16=16, gain=1)
SCALAR_LOSS = Rule(k=16, k16=16, gain=2)
BACKWARD = Rule(k=64, k16=16, gain=16)
GRADIENT = Rule(k=64, k16=16, gain=16)
USED = Rule(k=64, k16=16, gain=16)
STATE = Rule(k=64, k16=16, gain=16)

_LOSS_GAIN = 8
"""how much larger than that of its logits the error of a loss's gradient may be at least (right pairs: 3)"""
_ONE_DIRECTION = 0.7
"""share of an error that is one of the norm from which on it has a direction (clean pairs: up to 0.65)"""
_ONE_DIRECTION_BACK = 0.9
"""the same of gradients, which derivatives of softmax and of norms turn towards each other"""
_SEVERAL = 32
"""elements of a gradient from which on that is no chance, and of a value from which on its norm says something"""
_MANY = 256
"""elements from which on rounding, up and down, leaves the norm as it is"""
PEAKS = 16
"""how many elements as large as the largest would have a norm that is one of many"""
_FEW = 4
"""the same for a gradient, up to which its error has the direction of those few elements by chance"""
_BY_CHANCE = 2
"""standard deviations of what errors up and down leave of a norm"""
_INHERITED_SCALE = 3
"""how much larger the error of a norm may be than those of the norms that it was made from"""
SCORES = 8
"""size of attention's scores up to which it makes errors no larger than other code does (right pairs: by a third of their size)"""
SIBLING_GAIN = 2
"""how much larger an absolute error may be than those of gradients that the same code passes back beside it"""
DRIFT = 64
"""weights that unrecorded steps have changed may differ by this much more (clean pairs: by 1 after 100 steps)"""
INTEGER_GAIN = 20
"""share of integers that may differ, as a multiple of their sources' error"""
CHOICE_GAIN = 4
"""share of tokens that may be routed otherwise where that is seen by what is made of them, as a multiple of their error"""
_LIKELY = 0.01
"""expected number of integers that differ from which on some may, if only by chance"""
UNDERFLOW = 4
"""halves of the smallest distance between two numbers that each element of a gradient may be off by"""
KINK_DEVIATIONS = 4
"""standard deviations of the number of elements near a kink that are chance"""
UNSEEN_KINK = 2
"""how much more may be off behind a kink in a module's own code: what it passes on to whom was not recorded"""
BLIND_GAIN = 4
"""times √u: what 16-bit gradients of another batch split may differ by, where nothing on the way was compared"""
BLIND_GROWTH = 2
"""times the largest error, of 16-bit gradients of modules behind it, that one may be off by where nothing on the way was compared"""
MOMENT = 0.1
"""share of a gradient that a first moment takes in: the rounding of it stays where the moment itself cancels out"""
UPDATE_ERROR_LIMIT = 0.1
"""gradients with a larger error than this say nothing about the update"""
UPDATE_BOUND_LIMIT = 0.7
"""updates whose error bound is larger than this are not judged by it"""
TOGETHER = 0.5
"""times that bound: what all updates together may differ by (clean pairs: 0.12)"""
LENGTH_TOGETHER = 0.02
"""what the norms of most updates may be longer by, all of them (clean pairs: 0.0055)"""
SAME_LENGTH = 1e-3
"""the same where no weight has 16 bits and all are longer by one factor: bias corrections in float32 make it up to 6e-5"""
OF_SPREAD = 16
"""times what the lengths of updates scatter by, from where on they have one factor"""
OF_GRADIENTS = 4
"""times the gradients' error that updates may then be longer by"""
ESTIMATED_LENGTH = 1.7
"""factor between the lengths of two updates of which one is that of a sketch, off by 9 % (standard deviation)"""
UPDATES_APART = 3
"""times one side's update that two weights which began alike may be apart: both updates, in any direction, are 2 if as long"""
NEARLY_ALL = 0.85
"""share of updates that are then longer, or shorter (clean pairs: 0.88 where it is by 0.0015)"""
RATIO_LIMIT = 0.02
"""norms of updates may differ by this much"""


def forward_rule(error: float, norm_ratio: float, shift: float, size: int, peaks: float, *, alike: bool) -> Rule:
    """Return the thresholds for a value of the forward pass.

    A module that makes its output larger or smaller as a whole (eps, a scale, a factor), or adds a constant, does so in one
    direction, and the norm, or the mean, tells exactly by how much. Rounding is up as often as down, and what a module makes larger of an inherited error
    (cancellation, outlier channels, a softmax) has no common direction either: in all values of 400 right pairs none that
    had one, beyond 1.5 unit roundoffs, was 1.2 times as large as its sources. Nor is a norm of many elements off by more than
    3.2 unit roundoffs in float32 and 0.45 in 16 bits, or by more than the tensor that it was made from, where weights agree.

    Parameters
    ----------
    norm_ratio
        ‖B‖ / ‖A‖
    shift
        how far the means are apart, √n times, in ‖A‖: the error is no smaller, and no larger if a constant was added
    size
        number of elements
    peaks
        how many elements as large as the largest would have A's norm (`peaks_of`)
    alike
        the step is known to begin with the same weights, and nothing before is wrong
    """
    share = abs(norm_ratio - 1)
    if size < _MANY or not peaks >= PEAKS:
        return FORWARD
    has_scale = alike and share > _BY_CHANCE * error / math.sqrt(peaks)
    if max(share, shift) > _ONE_DIRECTION * error:
        return _COHERENT_WITH_SCALE if has_scale else COHERENT
    return _FORWARD_WITH_SCALE if has_scale else FORWARD


def is_scaled(error: float, norm_ratio: float) -> bool:
    """Tell whether most of an error is one of the norm."""
    return abs(norm_ratio - 1) > _ONE_DIRECTION * error


def peaks_of(size: int, rms: float, largest: float) -> float:
    """Return how many elements as large as the largest would have the norm of a tensor: few where some are most of it.

    Then what rounding does to those is seen in the norm, too.
    """
    return size * (rms / largest) ** 2 if largest else 0.0


def backward_rule(metrics: Metrics, size: int, peaks: Callable[[], float], rule: Rule, has_scale: bool = False) -> Rule:
    """Return the thresholds for a gradient: those of the forward pass where nearly all of its error is a multiple of it.

    A factor that is lost or added in backward scales every element; what rounding does is no multiple of the value, and a
    multiple that is inherited stays as large. In all gradients of 627 right pairs that had 32 elements and more, none
    whose error was such a multiple was 2.4 times as large as its sources. Where very few elements are most of it, the error
    of those is such a multiple by chance (of sums it is not known whether they are).

    Parameters
    ----------
    metrics
        B's gradient against A's
    size
        number of elements
    peaks
        returns how many elements as large as the largest would have A's norm (`peaks_of`)
    rule
        the thresholds for an error without a direction
    has_scale
        its norm is to be held against the rule's, too: the loss's own, of weights that agree. Neither rounding nor the error
        of logits changes that (in all of 112 right pairs by at most 1.6 unit roundoffs and a fifth of the logits' error)
    """
    share = min(abs(metrics.norm_ratio - 1), abs(metrics.coherence) * metrics.rel_l2)
    has_direction = size >= _SEVERAL and share > _ONE_DIRECTION_BACK * metrics.rel_l2 and not peaks() < _FEW
    scale = rule.scale if has_scale and size >= _SEVERAL else None
    return replace(COHERENT, plain=rule, scale=scale) if has_direction else rule.with_scale(scale)


def loss_gradient_rule(rms: float, share: float, left: float, rounding: float) -> Rule:
    """Return the thresholds for the gradient that a loss passes back to what it is computed from.

    Parameters
    ----------
    rms
        root mean square of what it is computed from: logits
    share
        ‖z‖/‖z−t‖, were it a mean of squared errors
    left
        the same, where it is one
    rounding
        how many times the roundoff of its terms that of the gradient is
    """
    gain = max(_LOSS_GAIN, min(BACKWARD.gain, max(2 * rms, share)), 2 * left)
    scale = Rule(rounding * LOSS_SCALE.k, rounding * LOSS_SCALE.k16, gain / _LOSS_GAIN)
    return replace(BACKWARD, k=rounding * BACKWARD.k, k16=rounding * BACKWARD.k16, gain=gain, scale=scale)


def scale_limit(rule: Rule, u: float, sources: Level) -> float:
    """Return how much a norm may be off: as much as what it was made from is, and three times as much as norms are there.

    A product of two such values, or a power of one, is off by the sum.
    """
    return rule.limit(u, max(sources.error, _INHERITED_SCALE * sources.scale))


def integer_limit(sources: float, size: int) -> float:
    """Return the largest share of ``size`` integers that rounding may change: as many as expected, and what chance adds.

    Integers are choices (an expert, the larger of two): one that falls otherwise changes its neighbour too.
    """
    expected = INTEGER_GAIN * sources * size
    return _with_chance(expected) / size if expected > _LIKELY else INTEGER_GAIN * sources


def choice_limit(error: float, size: int) -> float:
    """Return the largest share of ``size`` tokens whose choice an error of what it is made from may change."""
    return min(1.0, _with_chance(CHOICE_GAIN * error * size) / size)


def kink_limit(forward: float, size: int) -> float:
    """Return the largest error of a gradient behind a function whose derivative jumps.

    Of ``size`` elements, a share of about the forward error is nearer to the kink than that error, and passed back on one
    side only.
    """
    return 2 * math.sqrt(_with_chance(forward * max(1, size), KINK_DEVIATIONS) / max(1, size))


def _with_chance(expected: float, deviations: float = 3) -> float:
    return expected + deviations * math.sqrt(expected) + 2


def precision_of(loss: float) -> float:
    """Return the unit roundoff of the narrowest dtype that holds a loss: one averaged in fp32 is no 16-bit number."""
    for u in (2.0**-8, 2.0**-11):
        if loss == 0 or (math.isfinite(loss) and (math.frexp(loss)[0] / u).is_integer()):
            return u
    return 2.0**-24


def update_bound(gradient_error: float, u: float, parameter_to_update: float, size: int) -> float:
    """Return the relative error of an update that gradient noise, rounding and sign flips explain.

    Parameters
    ----------
    gradient_error
        relative L2 error of the gradient that was used
    u
        unit roundoff of the parameter's dtype
    parameter_to_update
        ‖parameter‖ / ‖update‖
    size
        number of elements
    """
    return 4 * (math.sqrt(gradient_error) + u * parameter_to_update) + 2 * math.sqrt(3 / max(1, size))


UPDATED_GAIN = 4
"""updates are aligned with what the weights are multiplied by: their errors count this much more at the outputs"""
NOISY_GRADIENT = 1e-4
"""beyond this error of its gradient, one parameter's update alone proves little under Adam and its kin"""
SCATTERED = 0.99
"""below this cosine of its updates too: a part of its gradient is rounding, as a fused key bias is"""
MOST = 0.6
"""share of parameters beyond which a finding is about all of them"""
SYSTEMATIC = 0.2
"""share of parameters from which weak evidence against each of them is taken together"""


@dataclass(slots=True)
class Level:
    """The largest error, and the coarsest unit roundoff, among several tensors."""

    error: float = 0.0
    u: float = 0.0
    tainted: bool = False
    """integers among them differ (tokens routed to other experts): what is computed from them is not judged"""
    excess: float = 0.0
    """the largest of those errors that no measured floor explains (`probe.comparison.noise.interface`)"""
    scale: float = 0.0
    """the largest error of a norm among those of several elements"""

    def add(self, error: float, u: float, excess: float | None = None) -> None:
        """Take in one more tensor; all of its error is excess, unless it is said how much."""
        excess = error if excess is None else excess
        if error > self.error:
            self.error = error
        if u > self.u:
            self.u = u
        if excess > self.excess:
            self.excess = excess

    def add_scale(self, norm_ratio: float, size: int) -> None:
        """Take in by how much the norm of one more tensor is off."""
        if size >= _SEVERAL and abs(norm_ratio - 1) > self.scale:
            self.scale = abs(norm_ratio - 1)

    def merge(self, other: Level) -> None:
        """Take in all of another level."""
        if other.error > self.error:
            self.error = other.error
        if other.u > self.u:
            self.u = other.u
        if other.excess > self.excess:
            self.excess = other.excess
        if other.scale > self.scale:
            self.scale = other.scale
        self.tainted = self.tainted or other.tainted

    def merge_known(self, levels: Mapping[Place, Level], places: Iterable[Place]) -> None:
        """Take in the levels of those places that have one."""
        for place in places:
            level = levels.get(place)
            if level is not None:
                self.merge(level)
