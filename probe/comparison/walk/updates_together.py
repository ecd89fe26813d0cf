"""Updates of parameters: what is known of each, and what all of them together show."""

from __future__ import annotations

import math
import statistics
from functools import partial
from typing import NamedTuple

from probe.comparison.noise import tolerance
from probe.comparison.notes import Note, note
from probe.comparison.once import once
from probe.comparison.optimizer.adaptive_optimizers import OwnSize
from probe.comparison.optimizer.counters import is_counter
from probe.comparison.optimizer.manual_updates import LOOK, error_of_sources, is_own, is_seen_by_calls
from probe.comparison.steps.step_half import Event, StepHalf
from probe.comparison.walk.update_findings import Fault, Trained, Updating, events_of, report_all
from probe.numbers.statistics import unit_roundoff
from probe.records import MASTER, REPLACED, Phase, Role

_INIT, _UPDATE = (f"{phase.label}:" for phase in (Phase.INIT, Phase.UPDATE))
_LARGE = 256
"""elements of an update that counts with others"""
_SEVERAL = 4
"""updates from which on they are judged together"""
_OF_LENGTH = ("update-is-longer", "update-is-about-longer", "update-differs")
"""what is said of an update that differs, or is longer, of a gradient that agrees"""


class _Part(NamedTuple):
    """One of the updates that are judged together."""

    event: Event
    error: float
    """‖A−B‖"""
    size: int
    gradient: float
    """relative error of the gradient that was used"""
    rounding: float
    """what rounding the new parameter makes of the update"""
    norm: float


class _Moment(NamedTuple):
    """A state of a parameter."""

    event: Event
    cancelled: float
    """how much larger the gradients are that cancelled out in it"""


def events_of_updates(updating: Updating, role: Role) -> list[Event]:
    """Return the events of the update phase; they are measured once."""
    key = events_of_updates, role
    if key not in updating.kept:
        updating.kept[key] = list(updating.pairs.parameter_events(Phase.UPDATE, role))
    return updating.kept[key]


def two_sided(updating: Updating, role: Role) -> list[Event]:
    """Return the events of the update phase that both sides have."""
    return [event for event in events_of_updates(updating, role) if not event.is_one_sided]


def error_of_gradients(updating: Updating, event: Event) -> float:
    """Return the error of what an update was made from: the gradient, and the states that it began with.

    Of a sum that nearly cancelled out, the error is larger.
    """
    key = event.pair, event.slot_a
    found = updating.source_errors.get(key)
    if found is None and key not in updating.state.gradients and _is_own(updating, event):
        known = partial(error_of_gradients, updating)
        found = error_of_sources(updating.pairs, updating.state, event, two_sided(updating, Role.DELTA), known)
        updating.source_errors[key] = found
    if found is None:
        moments = moments_of(updating).get(key, ())
        before = max((updating.state.optimizer.get((each.pair, each.slot_a), 0.0) for each, _ in moments), default=0.0)
        error = max(updating.state.gradients.get(key, 0.0), before)
        found = updating.source_errors[key] = error * max((cancelled for _, cancelled in moments), default=1.0)
    return found


def _is_own(updating: Updating, event: Event) -> bool:
    """Tell whether the program changes a weight by itself on one side or both."""
    return any(half.row(event) >= 0 and is_own(half, event) for half in updating.pairs.halves)


def one_sided_write(updating: Updating, event: Event, half: StepHalf, lacking: StepHalf) -> Fault | None:
    """Judge a weight that one side's program alone writes to: where calls use it, they tell what becomes of it."""
    if is_seen_by_calls(updating.pairs, lacking, event):
        if not updating.state.goes_on:
            updating.walk.ledger.notes.append(
                note("last-step-writes-on-one-side", step=updating.pairs.step, side=half.name)
            )
        return None
    if not lacking.side.reader.info.tells_writes:
        updating.walk.ledger.notes.append(note("writes-not-recorded", side=half.name, other=lacking.name))
        return None
    said = note("written-on-one-side", side=half.name)
    return Fault(event, math.nan, said, note("no-write-seen", side=lacking.name))


def are_replaced(updating: Updating, half: StepHalf) -> bool:
    """Tell, and say, whether a side's program uses other weights than those that were there at the beginning: they are not recorded."""
    if not any(text.startswith(REPLACED) for _, _, text in half.side.reader.notes):
        return False
    doubt = note("weights-replaced", side=half.name)
    if doubt not in updating.walk.ledger.reasons:
        updating.walk.ledger.reasons.append(doubt)
    return True


def _cancelled(updating: Updating, moment: Event) -> float:
    """Return how much larger than a first moment the gradients are that cancelled out in it: their rounding stays."""
    metrics, a = moment.metrics, updating.pairs.a
    assert metrics is not None
    is_adaptive = uses_adaptive(updating, moment)
    norm = max(metrics.norm_a, metrics.norm_b)
    if not norm or (is_adaptive and a.columns["min"][moment.row_a] >= 0):  # a second moment
        return 1.0
    gradients = updating.pairs.rows_a.get((0, updating.pairs.matching.pairs[moment.pair].a, 0), Role.PARAM_GRAD)
    rows = gradients.get(f"{_UPDATE}{moment.slot_a.partition('.')[0]}")
    if rows is None:
        return 1.0
    share = tolerance.MOMENT if is_adaptive else 1.0
    return max(1.0, share * a.columns["norm"][rows[-1]] / norm)


@once
def moments_of(updating: Updating) -> dict[tuple[int, str], list[_Moment]]:
    """The states of each parameter."""
    found: dict[tuple[int, str], list[_Moment]] = {}
    for event in two_sided(updating, Role.STATE):
        if is_counter(updating.pairs.a, event.row_a, event.slot_a.partition(".")[2]):
            continue
        moment = _Moment(event, _cancelled(updating, event))
        found.setdefault((event.pair, event.slot_a.partition(".")[0]), []).append(moment)
    return found


def differs(updating: Updating, event: Event) -> Note:
    """Say that an update differs, and of which gradient it is known that it agrees: the one used, if that was seen."""
    are_seen = all(
        f"{_UPDATE}{half.slot(event)}" in half.rows.get((0, half.modules[event.pair], 0), Role.PARAM_GRAD)
        for half in updating.pairs.halves
    )
    return note("update-differs", is_seen=bool(are_seen))


def digits(number: float, count: int) -> float:
    """Return a number of as many digits as are told: faults that are told alike are alike."""
    return float(f"{number:.{count}g}")


def fault(
    updating: Updating, event: Event, limit: float, said: Note, advice: Note | None = None, weak: bool = False
) -> Fault:
    """Return what is wrong with an update."""
    error = updating.state.gradients.get((event.pair, event.slot_a), 0.0)
    if all(is_own(half, event) for half in updating.pairs.halves if half.row(event) >= 0):
        advice = LOOK
    return Fault(event, limit, said, advice or note("settings-of-parameter"), weak, error)


def uses_adaptive(updating: Updating, event: Event) -> bool:
    """Tell whether the optimizer divides a parameter's gradient by its own size, as Adam does."""
    return _own_size(updating).divides(updating.pairs.matching.pairs[event.pair].a, event.slot_a.partition(".")[0])


@once
def _own_size(updating: Updating) -> OwnSize:
    return OwnSize(updating.pairs)


def trained(updating: Updating, event: Event) -> Trained:
    """Return what the update of a parameter changes, on both sides."""
    key = event.pair, event.slot_a, event.slot_b
    if key not in updating.known_trained:
        (row_a, dtype_a), (row_b, dtype_b) = (trained_on(half, event) for half in updating.pairs.halves)
        dtypes = {dtype for dtype in (dtype_a, dtype_b) if dtype is not None}
        updating.known_trained[key] = Trained((row_a, row_b), dtypes)
    return updating.known_trained[key]


def trained_on(half: StepHalf, event: Event) -> tuple[int | None, str | None]:
    """Return the row of a parameter as it was before the update, and the dtype of what is trained: of its copy if it has one."""
    module, slot = (0, half.modules[event.pair], 0), half.slot(event)
    found = half.rows.get(module, Role.PARAM)
    rows = found.get(_INIT + slot) or found.get(_UPDATE + slot)
    before = rows[0] if rows else None
    copies = half.rows.get(module, Role.STATE).get(_UPDATE + slot + MASTER)
    trained = copies[-1] if copies else before
    return before, None if trained is None else half.side.dtypes[trained]


def norm_of_parameter(updating: Updating, event: Event) -> float | None:
    """Return the norm of the parameter that an update changes; None where it was not recorded."""
    row = trained(updating, event).rows[0]
    return None if row is None else updating.pairs.a.columns["norm"][row]


def parameter_u(updating: Updating, event: Event) -> float:
    """Return the coarsest unit roundoff of what is trained: of a parameter, or of its copy."""
    return max(map(unit_roundoff, dtypes_of(updating, event)))


def dtypes_of(updating: Updating, event: Event) -> set[str]:
    """Return the dtypes of what is trained on both sides."""
    return trained(updating, event).dtypes


def of_all_updates(updating: Updating, updates: list[Fault]) -> list[Fault]:
    """Report what is wrong with the updates of all parameters where few or none show it alone."""
    are_longer = all(fault.said.code in _OF_LENGTH for fault in updates)
    judged = events_of(updating, Role.DELTA)
    if not are_longer or len(updates) > tolerance.MOST * len(judged):
        return []
    return ([] if updates else _updates_together(updating, judged)) or _updates_of_another_length(updating, judged)


def _updates_together(updating: Updating, judged: list[Event]) -> list[Fault]:
    """Report all updates that divide by a gradient's size where, as one vector, they differ by more than chance flips.

    Each alone may differ by a few signs; all of them together rarely do.
    """
    parts = [part for part in map(partial(_sure_part, updating), judged) if part is not None]
    if len(parts) < _SEVERAL:
        return []
    sizes = sum(part.size for part in parts)
    gradient = sum(part.size * part.gradient for part in parts) / sizes
    rounding = sum(part.size * part.rounding for part in parts) / sizes
    limit = tolerance.TOGETHER * tolerance.update_bound(gradient, rounding, 1.0, sizes)
    error = math.hypot(*(part.error for part in parts)) / math.hypot(*(part.norm for part in parts))
    typical = statistics.median([part.error / part.norm for part in parts])
    if min(error, typical) <= limit:  # that of a few could be gradients that vanish
        return []
    faults = [fault(updating, part.event, limit, differs(updating, part.event)) for part in parts]
    said = note("updates-differ-as-one-vector", count=len(parts), error=error, limit=limit)
    report_all(updating, faults, said)
    return faults


def _updates_of_another_length(updating: Updating, judged: list[Event]) -> list[Fault]:
    """Report all updates where nearly all are longer, or shorter, in B: rounding makes as many longer as shorter."""
    found: list[tuple[Event, float, float]] = []
    for event in judged:
        metrics = event.metrics
        error = error_of_gradients(updating, event)
        if metrics is None or not metrics.is_known or error > tolerance.UPDATE_ERROR_LIMIT:
            continue
        if len(dtypes_of(updating, event)) > 1:  # each rounds in its own way: a small update up to a unit, or away
            continue
        if 0 < metrics.norm_ratio < math.inf:
            found.append((event, math.log(metrics.norm_ratio), error))
    if len(found) < _SEVERAL:
        return []
    typical, error = (statistics.median(each) for each in ([r for _, r, _ in found], [e for *_, e in found]))
    alike = sum(ratio * typical > 0 for _, ratio, _ in found) / len(found)
    limit = max(tolerance.LENGTH_TOGETHER, error)
    if not any(parameter_u(updating, event) > tolerance.SIXTEEN_BIT for event, *_ in found):
        spread = statistics.median(abs(ratio - typical) for _, ratio, _ in found)
        one_factor = max(tolerance.SAME_LENGTH, tolerance.OF_SPREAD * spread, tolerance.OF_GRADIENTS * error)
        limit = min(limit, one_factor)
    if abs(typical) <= limit or alike < tolerance.NEARLY_ALL:
        return []
    if all(updating.walk.noise.explains_update(event) for event, *_ in found):
        return []
    faults = [
        fault(updating, event, math.nan, differs(updating, event), note("schedule-and-correction"))
        for event, *_ in found
    ]
    said = note(
        "updates-of-another-length", share=alike, count=len(found), is_longer=typical > 0, by=abs(math.expm1(typical))
    )
    report_all(updating, faults, said, by_numbers=False)
    return faults


def _sure_part(updating: Updating, event: Event) -> _Part | None:
    """Return what an update is of all of them, where its gradient is no rounding."""
    metrics, parameter = event.metrics, norm_of_parameter(updating, event)
    if metrics is None or not metrics.is_known or metrics.is_lower_bound or not parameter:
        return None
    size, norm = math.prod(updating.pairs.a.shapes[event.row_a]), max(metrics.norm_a, metrics.norm_b)
    gradient = error_of_gradients(updating, event)
    is_sure = gradient <= tolerance.NOISY_GRADIENT and metrics.cosine >= tolerance.SCATTERED
    if not norm or size < _LARGE or not is_sure or not uses_adaptive(updating, event):
        return None
    if updating.walk.noise.explains_update(event):
        return None
    return _Part(event, metrics.rel_l2 * norm, size, gradient, parameter_u(updating, event) * parameter / norm, norm)
