"""Calls that compute the same on both sides with what is inside standing in another order, or split otherwise.

One implementation sorts tokens by expert, another one does not; one runs a batch in parts. What such a call returns
agrees, and inside there is nothing to compare element by element. Neither is there where a call is given [b, s, h] on one
side and [s, b, h] on the other and makes one axis of the first two, whatever it returns; or where no call is known that does,
but what was made just before, under the same caller, has these two axes changed.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable

import numpy as np

from probe.comparison.distance.estimates import same_content
from probe.comparison.distance.metrics import Status
from probe.comparison.noise import tolerance
from probe.comparison.noise.tolerance import Level
from probe.comparison.steps.events import StepPairs
from probe.comparison.steps.step_half import Event, Node
from probe.numbers.statistics import as_real
from probe.records import Role

_OTHER = 0.3
"""relative error beyond which elements stand elsewhere, and are not only rounded otherwise"""
_LARGEST = 1 << 24
"""elements of a tensor up to which its values are put in another order"""


class Reordering:
    """What stands in another order inside the calls of a micro-batch.

    Parameters
    ----------
    pairs
        the step's paired calls
    events
        the forward events of the micro-batch
    parameters
        errors of the parameters, by pair of modules
    roundoff
        gives the unit roundoff of an event
    """

    def __init__(
        self, pairs: StepPairs, events: Iterable[tuple[Node, Event]], parameters: dict[int, Level],
        roundoff: Callable[[Event], float],
    ) -> None:  # fmt: skip
        self._pairs, self._roundoff, self._parameters = pairs, roundoff, parameters
        self._own: dict[Node, list[Event]] = {}
        for node, event in events:
            self._own.setdefault(node, []).append(event)
        callers = {node.parent for node in self._own if node.parent is not None}
        limits = {node: self._limit_if_sound(node, self._own.get(node, [])) for node in callers}
        self._sound = {node: limit for node, limit in limits.items() if limit is not None}
        """the calls that return the same, and how far what is inside may be apart then"""

    @functools.cached_property
    def _given(self) -> dict[Node, list[Event]]:
        """What each call was given on both sides."""
        return {
            node: [event for event in found if event.role is Role.INPUT and not event.is_one_sided]
            for node, found in self._own.items()
        }

    @functools.cached_property
    def _turned_before(self) -> dict[Node, list[Event]]:
        """The tensors inside each call of which B has the first two axes in the other order, as they come."""
        found: dict[Node, list[Event]] = {}
        both = [(node, event) for node, own in self._own.items() for event in own if not event.is_one_sided]
        turned = [(node, event) for node, event in both if self._is_turned_layout(event)]
        for node, event in sorted(turned, key=lambda pair: self._order(pair[1])):
            for caller in node.ancestors():
                found.setdefault(caller, []).append(event)
        return found

    def around(self, node: Node, event: Event) -> Node | None:
        """Return the call inside which an event's tensor stands in another order, and which returns the same anyway."""
        sound = next((caller for caller in node.ancestors() if caller in self._sound), None)
        return sound if sound is not None and self._is_arranged_otherwise(event, self._sound[sound]) else None

    def flattened(self, node: Node, event: Event) -> Node | None:
        """Return the call inside which an event's tokens stand in another order because they did when it was given them."""
        return next((caller for caller in node.ancestors() for given in self._given.get(caller, ())
                     if self._is_flattened(event, given) or self._is_of_gathered(event, given)), None)  # fmt: skip

    def flattened_after(self, node: Node, event: Event) -> bool:
        """Tell whether an event's tokens stand in another order because those of the last tensor before them with two more axes do.

        The call that makes one axis of two is no pair then, so what it was given is known by what was made before it.
        """
        turned = self._turned_before.get(node.parent, ()) if node.parent is not None else ()
        before = [given for given in turned if self._order(given) < self._order(event)]
        return bool(before) and self._is_flattened(event, before[-1])

    def _is_of_gathered(self, event: Event, given: Event) -> bool:
        """Tell whether a tensor has other places for the tokens of one that ranks had gathered, each one's share behind the other's."""
        if not any(half.row(given) in half.side.gathered for half in self._pairs.halves):
            return False
        limit = tolerance.FORWARD.limit(self._roundoff(event), 0.0 if given.metrics is None else given.metrics.rel_l2)
        return self._has_mean_of(event, limit) and self._is_arranged_otherwise(event, limit)

    def _has_mean_of(self, event: Event, limit: float) -> bool:
        a, b = self._pairs.a, self._pairs.b
        means = (side.columns["mean"][row] for side, row in ((a, event.row_a), (b, event.row_b)))
        return math.isclose(*means, rel_tol=0.0, abs_tol=limit * a.columns["rms"][event.row_a])

    def _is_flattened(self, event: Event, given: Event) -> bool:
        """Tell whether a tensor's first axis is made of the first two of another one, which change places in B.

        On one side it may still have both axes: the module itself makes one of them there.
        """
        if not self._is_turned_layout(given):
            return False
        shapes, whole = ([half.side.shapes[half.row(each)] for half in self._pairs.halves] for each in (event, given))
        flat = [_merged(*both) for both in zip(shapes, whole, strict=True)]
        axes = self._pairs.a.shapes[given.row_a][:2]
        is_one = len(flat[0]) > 1 and flat[0] == flat[1] and axes[0] * axes[1] == flat[0][0] and flat[0] in shapes
        return is_one and self._is_turned(event, axes, given)

    def _is_turned_layout(self, event: Event) -> bool:
        """Tell whether B has the first two axes of a tensor in the other order."""
        a, b = (half.side.shapes[half.row(event)] for half in self._pairs.halves)
        return len(a) == len(b) > 2 and a == (b[1], b[0], *b[2:]) and a[0] != a[1]

    def _order(self, event: Event) -> int:
        return self._pairs.a.columns["order"][event.row_a]

    def _is_turned(self, event: Event, axes: tuple[int, ...], given: Event) -> bool:
        """Tell whether a tensor agrees once two axes that are one in it change places; from statistics, whether it may."""
        a, b, u, source = self._pairs.a, self._pairs.b, self._roundoff(event), given.metrics
        if event.factor != 1 or not u:
            return False
        limit = tolerance.FORWARD.limit(u, source.rel_l2 if source is not None and source.is_known else 0.0)
        is_large = math.prod(a.shapes[event.row_a]) > _LARGEST
        if is_large or not a.has_values(event.row_a) or not b.has_values(event.row_b):
            return self._is_arranged_otherwise(event, limit) and self._has_mean_of(event, limit)
        x, y = (np.asarray(as_real(side.values(row)), np.float64) for side, row in ((a, event.row_a), (b, event.row_b)))
        x, y = x.reshape(*axes, -1), np.moveaxis(y.reshape(axes[1], axes[0], -1), 0, 1)
        return bool(np.linalg.norm(x - y) <= limit * max(np.linalg.norm(x), np.linalg.norm(y)))

    def _limit_if_sound(self, node: Node, events: list[Event]) -> float | None:
        """Return how far rounding alone may take what is inside a call apart; None where what it returned does not agree as its inputs do."""
        sources, rounded = Level(), Level()
        for level in (sources, rounded):
            level.merge(self._parameters.get(node.pair, Level()))
        outputs = []
        for event in events:
            if event.metrics is None:
                continue
            if event.role is Role.OUTPUT:
                outputs.append(event)
            elif event.metrics.is_known:
                sources.add(event.metrics.rel_l2, self._roundoff(event))
                if not event.metrics.of_integers:  # other integers are other data, and not rounded otherwise
                    rounded.add(event.metrics.rel_l2, self._roundoff(event))
        limits, inside = (
            [tolerance.FORWARD.limit(max(level.u, self._roundoff(event)), level.error) for event in outputs]
            for level in (sources, rounded)
        )
        are_known = all(event.metrics is not None and event.metrics.is_known for event in outputs)
        if not outputs or not are_known:
            return None
        if any(event.metrics.rel_l2 > most for event, most in zip(outputs, limits, strict=True)):
            return None
        return max(inside) if max(inside) < _OTHER else 0.0

    def _is_arranged_otherwise(self, event: Event, rounding: float = 0.0) -> bool:
        metrics = event.metrics
        assert metrics is not None
        if metrics.status in (Status.NOT_COMPARABLE, Status.PERMUTED):
            return True
        u = self._roundoff(event)
        within, rms_within = max(1e-5, 2 * u, rounding), max(1e-5, u / 4, rounding)
        rows = self._pairs.a, event.row_a, self._pairs.b, event.row_b
        return metrics.rel_l2 > _OTHER and same_content(*rows, within=within, rms_within=rms_within)


def _merged(shape: tuple[int, ...], given: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape with the two axes in one with which another one begins."""
    return (math.prod(shape[:2]), *shape[2:]) if len(shape) > 2 and shape[:2] == given[:2] else shape
