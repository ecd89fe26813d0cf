"""Updates that both sides made of the same bits: what their optimizers count, and how far rounding alone takes them apart."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from probe.comparison.distance.metrics import Status
from probe.comparison.ledger.known import Walk
from probe.comparison.optimizer.counters import steps_counted
from probe.comparison.optimizer.settings import Difference, ParameterKey, of_equal_optimizers, settings_of
from probe.comparison.steps.step_half import Event
from probe.records import Phase, Role

_BY_ELEMENT = {"sgd", "momentum", "adam", "adamw", "adamax", "nadam", "radam", "adagrad", "adadelta", "rmsprop"}
"""optimizers whose update of an element is a smooth function of that element's gradient, states and value: so is its rounding"""
ROUNDINGS = 8
"""unit roundoffs of what an optimizer computes from the same bits (other kernels of torch: up to 1, of the update 16)"""
OF_UPDATE = 64
"""the same of an update itself, which takes roots and quotients"""


class ExactUpdates:
    """What is known of the parameters of a step whose optimizers do the same by their classes and settings.

    Parameters
    ----------
    walk
        the step, with what was judged before the optimizer
    settings
        parameters whose hyper-parameters differ
    """

    def __init__(self, walk: Walk, settings: dict[ParameterKey, Difference]) -> None:
        self._walk, self._pairs, self._settings = walk, walk.pairs, settings

    def counts(self, event: Event) -> tuple[int, int] | None:
        """Return how many steps each side's optimizer counts for an updated parameter; None where either does not say."""
        found = []
        for half, hypers in zip(self._pairs.halves, self._hypers, strict=True):
            hyper = hypers.get((event.pair, self._pairs.canonical(event)), {})
            found.append(steps_counted(half, half.modules[event.pair], half.slot(event), hyper))
        a, b = found
        return None if a is None or b is None or a[1] != b[1] else (a[0], b[0])

    def has_same_gradient(self, event: Event) -> bool:
        """Tell whether optimizers that do the same were given the same bits for the parameter of an event."""
        return self._do_the_same(event) and (event.pair, event.slot_a.partition(".")[0]) in self._same[Role.PARAM_GRAD]

    def has_same_sources(self, event: Event, moments: Iterator[Event]) -> bool:
        """Tell whether an update was made of the same bits: gradient, parameter and, behind the step, states."""
        return (
            self.has_same_gradient(event)
            and (event.pair, event.slot_a) in self._same[Role.PARAM]
            and all(each.metrics is not None and each.metrics.status is Status.EQUAL for each in moments)
        )

    def _do_the_same(self, event: Event) -> bool:
        key = event.pair, self._pairs.canonical(event)
        return key in self._alike and key not in self._settings

    @functools.cached_property
    def _hypers(self) -> list[dict[ParameterKey, dict[str, object]]]:
        return [{key: found[0].hyper for key, found in settings_of(half).items()} for half in self._pairs.halves]

    @functools.cached_property
    def _alike(self) -> set[ParameterKey]:
        """Parameters that both sides train with one class of optimizer which works element by element."""
        classes = settings_of(self._pairs.halves[0])
        return {
            key
            for key in of_equal_optimizers(self._pairs)
            if all(each.class_name.rpartition(".")[2].casefold() in _BY_ELEMENT for each in classes[key])
        }

    @functools.cached_property
    def _same(self) -> dict[Role, set[tuple[int, str]]]:
        """By role, the parameters with which both sides begin alike, and those of which they use the same gradient, bit for bit."""
        found: dict[Role, set[tuple[int, str]]] = {Role.PARAM: set(), Role.PARAM_GRAD: set()}
        phases = {Role.PARAM: Phase.INIT, Role.PARAM_GRAD: Phase.UPDATE}
        for event in (judged.event for judged in self._walk.ledger.events):
            is_wanted = event.role in found and event.phase is phases[event.role]
            if is_wanted and event.metrics is not None and event.metrics.status is Status.EQUAL:
                found[event.role].add((event.pair, event.slot_a))
        return found
