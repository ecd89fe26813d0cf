"""Calls that compute the same on both sides with what is inside standing in another order, or split otherwise.

One implementation sorts tokens by expert, another one does not; one runs a batch in parts. What such a call returns
agrees, and inside there is nothing to compare element by element.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from probe.comparison import tolerance
from probe.comparison.estimates import same_content
from probe.comparison.events import Event, Node, StepPairs
from probe.comparison.metrics import Status
from probe.comparison.tolerance import Level
from probe.records import Role

_OTHER = 0.3
"""relative error beyond which elements stand elsewhere, and are not only rounded otherwise"""


class Arrangement:
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
        own: dict[Node, list[Event]] = {}
        for node, event in events:
            own.setdefault(node, []).append(event)
        callers = {node.parent for node in own if node.parent is not None}
        self._sound = {node for node in callers if self._is_sound(node, own.get(node, []))}

    def around(self, node: Node, event: Event) -> Node | None:
        """Return the call inside which an event's tensor stands in another order, and which returns the same anyway."""
        sound = next((caller for caller in node.ancestors() if caller in self._sound), None)
        return sound if sound is not None and self._is_arranged_otherwise(event) else None

    def _is_sound(self, node: Node, events: list[Event]) -> bool:
        """Tell whether what a call returned agrees as well as what it was given."""
        sources = Level()
        sources.merge(self._parameters.get(node.pair, Level()))
        outputs = []
        for event in events:
            if event.metrics is None:
                continue
            if event.role is Role.OUTPUT:
                outputs.append(event)
            elif event.metrics.is_known:
                sources.add(event.metrics.rel_l2, self._roundoff(event))
        return bool(outputs) and all(
            event.metrics is not None and event.metrics.is_known
            and event.metrics.rel_l2 <= tolerance.FORWARD.limit(max(sources.u, self._roundoff(event)), sources.error)
            for event in outputs
        )  # fmt: skip

    def _is_arranged_otherwise(self, event: Event) -> bool:
        metrics = event.metrics
        assert metrics is not None
        if metrics.status in (Status.NOT_COMPARABLE, Status.PERMUTED):
            return True
        u = self._roundoff(event)
        return metrics.rel_l2 > _OTHER and same_content(
            self._pairs.a, event.row_a, self._pairs.b, event.row_b, within=max(1e-5, 2 * u), rms_within=max(1e-5, u / 4)
        )
