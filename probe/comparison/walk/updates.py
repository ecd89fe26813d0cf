"""Judging what the optimizer did: the gradients it used, the update δ, its state, its hyper-parameters.

The update δ = p₁ − p₀ is judged, not the parameter: Adam turns rounding errors of vanishing gradients into
parameter differences that are larger than those of real faults.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from probe.comparison.distance.combined import is_finite
from probe.comparison.distance.metrics import Metrics, Status
from probe.comparison.ledger.places import parameter_owners, roundoff
from probe.comparison.ledger.recording import record
from probe.comparison.noise import tolerance
from probe.comparison.noise.drift import drifted, share_of_update
from probe.comparison.noise.interface import Check
from probe.comparison.noise.tolerance import Level
from probe.comparison.notes import Note, note
from probe.comparison.optimizer.clipping import SUMMED_IN, apart_by_summing
from probe.comparison.optimizer.counters import is_counter
from probe.comparison.optimizer.exact_updates import OF_UPDATE, ROUNDINGS
from probe.comparison.optimizer.manual_updates import is_own
from probe.comparison.optimizer.settings import decays, unknown_settings
from probe.comparison.optimizer.skipped_steps import is_change, skipped_on_one_side
from probe.comparison.steps.step_half import Event, StepHalf
from probe.comparison.walk.scaled_gradients import USED, is_scaled
from probe.comparison.walk.update_findings import (
    Fault,
    Updating,
    events_of,
    parameter_of,
    report,
    report_behind,
    report_unshown,
)
from probe.comparison.walk.updates_together import (
    are_replaced,
    differs,
    digits,
    dtypes_of,
    error_of_gradients,
    events_of_updates,
    fault,
    moments_of,
    norm_of_parameter,
    of_all_updates,
    one_sided_write,
    parameter_u,
    trained,
    trained_on,
    two_sided,
    uses_adaptive,
)
from probe.comparison.walk.weights import pool
from probe.numbers.sketch import WIDTH
from probe.numbers.statistics import unit_roundoff
from probe.records import STEPPED_EARLY, Phase, Role

_FEW = 16
"""updates that a weight is long at most which they alone have made"""
_PARALLEL = 0.9
SINGLE = 2.0**-24
"""unit roundoff of float32, in which optimizers compute"""
_ROUNDINGS = 8
"""unit roundoffs of a parameter that updates which differ along it must be apart to tell weight decay"""
_BOTH_ROUND = 2
"""the same where the settings differ: each side rounds the new parameter once, and by one unit at most"""
_SINGLE = 8
"""elements below which both sides may have rounded all of a parameter as far as they can"""
_FLOAT16_LEAST = 2.0**-24
_SAME = 0.01
"""share of an update up to which rounding may take it away from the state that it is a multiple of"""


def judge_updates(updating: Updating) -> None:
    """Judge the phase, in the order of cause and effect."""
    used = _used_gradients(updating)
    if is_scaled(updating, used):
        return
    if used:
        report(updating, used, USED, Role.PARAM_GRAD)
        return
    counts = _counts(updating)
    if counts:
        report(updating, counts, "counts-of-steps", counts[0].event.role)
        return
    behind = bool(updating.walk.ledger.findings)
    updates = _without_weak(updating, _updates(updating))
    changed = [*events_of(updating, Role.DELTA), *(fault.event for fault in updates if fault.event.is_one_sided)]
    skipped = None if behind else skipped_on_one_side(updating.walk, updating.pairs, changed)
    if skipped is not None:
        updating.walk.ledger.findings.append(skipped)
        return
    together = [] if behind else of_all_updates(updating, updates)
    if not together:
        report(updating, updates, "updates", Role.DELTA)
    updates = together or updates
    if not updates and not behind:
        updates = _unseen_updates(updating)
        report(updating, updates, "updates", Role.PARAM)
    states = [] if updates else _states(updating)
    report(updating, states, "optimizer-states", Role.STATE)
    if behind and not updates and not states:
        report_behind(updating)
    if not updating.walk.ledger.findings and updating.settings:
        report(updating, _hidden_decays(updating), "weight-decays", Role.DELTA)
    if not updating.walk.ledger.findings and updating.settings:
        report_unshown(updating)
    unknown = () if updating.walk.ledger.findings else unknown_settings(updating.pairs)
    if unknown:
        updating.walk.ledger.notes.append(note("settings-of-unknown-effect", settings=unknown))
    if updating.state.goes_on:
        _remember_parameters(updating)


def _used_gradients(updating: Updating) -> list[Fault]:
    faults = []
    unjudged: list[tuple[float, float, float]] = []
    together, apart = _error_together(updating), apart_by_summing(updating.pairs, two_sided(updating, Role.PARAM_GRAD))
    as_left = {(j.event.pair, j.event.slot_a) for j in updating.walk.ledger.events if j.event.phase is Phase.GRADIENT}
    for event in two_sided(updating, Role.PARAM_GRAD):
        metrics = event.metrics
        assert metrics is not None
        key = (event.pair, event.slot_a)
        raw = updating.state.gradients.get(key) if key in as_left else None  # not of the step before
        u = roundoff(updating.walk, event)
        given = Level()
        given.add(max(raw, together) if raw is not None else 1.0, 0.0)
        check = updating.walk.noise.check(event, metrics.rel_l2, tolerance.USED, u, given)
        check = check.raise_limit(check.limit + apart)
        limit = check.limit
        wrong = metrics.is_known and raw is not None and raw <= 0.1 and check.is_wrong
        if record(updating.walk, event, limit, wrong, raw or 0.0, error=check.error, check=check):
            zeros = "" if min(metrics.norm_a, metrics.norm_b) else "B" if metrics.norm_a else "A"
            said = note("used-gradient-differs", zeros=zeros)
            faults.append(Fault(event, limit, said, note("clipping-and-unscaling"), sources=raw or 0.0))
        if raw is None and math.isfinite(metrics.rel_l2):
            norm = max(metrics.norm_a, metrics.norm_b)
            unjudged.append((metrics.rel_l2 * norm, norm, u))
        least = (raw or 0.0) if metrics.is_lower_bound else 0.0
        updating.state.gradients[key] = max(metrics.rel_l2, least) if metrics.is_known else 1.0
    if apart > tolerance.USED.limit(SUMMED_IN, 0.0) and not faults:
        updating.walk.ledger.notes.append(note("clipped-by-a-rounded-norm", error=apart))
    _doubt_unjudged(updating, unjudged)
    return faults


def _error_together(updating: Updating) -> float:
    """Return the error of all gradients as backward left them, as one vector: clipping divides each by that one's norm."""
    parts = []
    for event in (j.event for j in updating.walk.ledger.events if j.event.phase is Phase.GRADIENT):
        if event.metrics is not None and math.isfinite(event.metrics.rel_l2):
            norm = max(event.metrics.norm_a, event.metrics.norm_b)
            parts.append((event.metrics.rel_l2 * norm, norm))
    total = math.hypot(*(norm for _, norm in parts))
    return math.hypot(*(error for error, _ in parts)) / total if total else 0.0


def _doubt_unjudged(updating: Updating, parts: list[tuple[float, float, float]]) -> None:
    """Gradients that nothing else was recorded of can be told to differ, but not why."""
    total = math.hypot(*(norm for _, norm, _ in parts))
    error = math.hypot(*(error for error, _, _ in parts)) / total if total else 0.0
    if error > math.sqrt(max((u for *_, u in parts), default=0.0)):
        updating.walk.ledger.reasons.append(
            note("used-gradients-alone-recorded", step=updating.pairs.step, error=error)
        )


def _updates(updating: Updating) -> list[Fault]:
    faults = []
    for event in events_of_updates(updating, Role.DELTA):
        if event.is_one_sided:
            fault = _one_sided_update(updating, event)
            limit = math.nan
        else:
            fault, limit = _update_fault(updating, event)
            if fault is not None and updating.walk.noise.explains_update(event):
                fault = None
            if event.pair in updating.walk.weights.uncalled:
                fault = None
            if fault is not None and math.isnan(fault.limit):
                limit = math.nan  # it was not the relative error that told
            error = updating.state.gradients.get((event.pair, event.slot_a), 0.0)
            record(updating.walk, event, limit, fault is not None and not fault.is_weak, error)
        if fault is not None:
            faults.append(fault)
    return faults


def _one_sided_update(updating: Updating, event: Event) -> Fault | None:
    on_both = updating.pairs.is_initial_on_both(event)
    if not on_both or updating.pairs.is_unwatched(event) or not (updating.pairs.micros_a and updating.pairs.micros_b):
        return None
    half = updating.pairs.half("A" if event.row_a >= 0 else "B")
    columns, row = half.side.columns, half.row(event)
    if not columns["requires_grad"][row] and not is_change(half.side, row):
        return None  # it is frozen, and was handed over all the same
    lacking = updating.pairs.half(half.other)
    if is_own(half, event):
        return one_sided_write(updating, event, half, lacking)
    advice = note("not-given-to-optimizer", side=lacking.name)
    if not lacking.side.reader.groups_of(lacking.side.step):
        if are_replaced(updating, lacking):
            return None
        if is_finite(half.side, row) and _is_rounded_away(updating, event, lacking, columns["norm"][row]):
            return None
        if any(STEPPED_EARLY in text for _, _, text in lacking.side.reader.notes):
            advice = note("stepped-early", side=lacking.name)
        else:
            advice = note("no-optimizer-seen", side=lacking.name)
    return Fault(event, math.nan, note("updated-on-one-side", side=half.name), advice)


def _is_rounded_away(updating: Updating, event: Event, lacking: StepHalf, update: float) -> bool:
    """Tell whether a side that left a weight as it was rounds away what the other side changed it by."""
    module, side = lacking.modules[event.pair], lacking.side
    rows = lacking.rows.get((0, module, 0), Role.PARAM)
    same = [taken[-1] for slot, taken in rows.items()
            if side.canonical(module, slot.partition(":")[2]) == updating.pairs.canonical(event)]  # fmt: skip
    return any(update <= side.roundoffs[row] * side.columns["norm"][row] for row in same)


def _update_fault(updating: Updating, event: Event) -> tuple[Fault | None, float]:
    """Return the fault, if there is one, and the bound of the relative error."""
    metrics = event.metrics
    assert metrics is not None
    error = error_of_gradients(updating, event)
    parameter = norm_of_parameter(updating, event)
    if not metrics.is_known:
        return _fault_of_length(updating, event, metrics, error), math.nan
    if parameter is None:
        return None, math.nan
    size = math.prod(updating.pairs.a.shapes[event.row_a])
    u = parameter_u(updating, event)
    larger = max(metrics.norm_a, metrics.norm_b)
    if metrics.status is Status.NONFINITE and error <= tolerance.UPDATE_ERROR_LIMIT:
        return fault(updating, event, math.nan, note("update-not-finite"), _about_eps(updating, event)), math.nan
    if not larger:
        return None, 0.0
    bound = tolerance.update_bound(error, u, parameter / larger, size)
    if error > tolerance.UPDATE_ERROR_LIMIT:
        return None, math.nan
    if min(metrics.norm_a, metrics.norm_b) == 0.0 and larger > 4 * u * parameter:
        side = "B" if metrics.norm_b == 0.0 else "A"
        return fault(updating, event, math.nan, note("not-changed-at-all", side=side)), bound
    are_set_otherwise = bool(updating.settings) and parameter_of(updating, event) in updating.settings
    roundings = _BOTH_ROUND if are_set_otherwise else _ROUNDINGS
    decay = _decay(updating, event, metrics, roundings * u * parameter + updating.rounding * larger)
    if decay is not None:
        return fault(updating, event, math.nan, *decay), bound
    noise = math.sqrt(error) + u * parameter / larger
    if size < _SINGLE:  # no sum in which roundings are small by chance
        noise += _BOTH_ROUND * u * parameter / (min(metrics.norm_a, metrics.norm_b) or larger)
    # what is really wrong with one parameter's rate keeps the direction; rounding that is divided by itself does not
    noisy = error > tolerance.NOISY_GRADIENT or not metrics.cosine >= tolerance.SCATTERED
    weak = noisy and uses_adaptive(updating, event)
    if abs(metrics.norm_ratio - 1) > max(tolerance.RATIO_LIMIT, noise):
        said = note("update-is-longer", ratio=digits(metrics.norm_ratio, 4))
        weak = weak and 0.5 < metrics.norm_ratio < 2
        return fault(updating, event, math.nan, said, note("learning-rate-and-schedule"), weak), bound
    if bound < tolerance.UPDATE_BOUND_LIMIT and metrics.rel_l2 > bound:
        return fault(updating, event, bound, differs(updating, event), weak=uses_adaptive(updating, event)), bound
    rounding = ROUNDINGS * u * parameter / larger + OF_UPDATE * max(u, SINGLE) + updating.rounding
    if metrics.rel_l2 > rounding and _has_same_sources(updating, event):
        return fault(
            updating, event, rounding, note("update-of-same-bits-differs"), note("learning-rate-and-correction")
        ), rounding
    return None, bound


def _has_same_sources(updating: Updating, event: Event) -> bool:
    """Tell whether an update was made of the same bits on both sides."""
    return updating.exact.has_same_sources(
        event, (each for each, _ in moments_of(updating).get((event.pair, event.slot_a), ()))
    )


def _counts(updating: Updating) -> list[Fault]:
    """Return the parameters of which the two optimizers count another number of steps: Adam's bias correction depends on it."""
    updates = two_sided(updating, Role.DELTA)
    counts = {(event.pair, event.slot_a): updating.exact.counts(event) for event in updates}
    differing = {key: each for key, each in counts.items() if each is not None and each[0] != each[1]}
    shown = {(event.pair, event.slot_a): event for event in updates if (event.pair, event.slot_a) in differing}
    for event in two_sided(updating, Role.STATE):
        parameter, _, state = event.slot_a.partition(".")
        if is_counter(updating.pairs.a, event.row_a, state):
            if record(updating.walk, event, math.nan, (event.pair, parameter) in differing):
                shown[event.pair, parameter] = event
    return [
        Fault(
            event,
            math.nan,
            note("other-count-of-steps", a=differing[key][0], b=differing[key][1]),
            note("loaded-state-and-skipped-steps"),
        )
        for key, event in shown.items()
    ]


def _fault_of_length(updating: Updating, event: Event, metrics: Metrics, error: float) -> Fault | None:
    """Judge an update that cannot be compared, of a fused weight that no optimizer was seen to change, by its length alone."""
    if error > tolerance.UPDATE_ERROR_LIMIT or not (0 < metrics.norm_ratio < math.inf):
        return None
    if abs(math.log(metrics.norm_ratio)) <= math.log(tolerance.ESTIMATED_LENGTH):
        return None
    said = note("update-is-about-longer", ratio=digits(metrics.norm_ratio, 2))
    return fault(updating, event, math.nan, said, note("learning-rate-and-copying"))


def _unseen_updates(updating: Updating) -> list[Fault]:
    """Report weights that differ by more than both sides' updates are long, where the updates could not be compared.

    That is known of steps whose beginning was recorded, and agrees.
    """
    unknown = {
        (e.pair, e.slot_a) for e in events_of(updating, Role.DELTA) if e.metrics is not None and not e.metrics.is_known
    }
    if not unknown:
        return []
    begun = {(e.pair, e.slot_a): _distance(e.metrics) for e in updating.pairs.initial_weights}
    faults = []
    for event in two_sided(updating, Role.PARAM):
        key, row = (event.pair, event.slot_a), _row_of_update(updating, event)
        if key not in unknown or row is None or key not in begun:
            continue
        update, distance = updating.pairs.a.norm(row), _distance(event.metrics)
        norm = norm_of_parameter(updating, event) or 0.0
        allowed = (
            begun[key]
            + tolerance.UPDATES_APART * update
            + tolerance.INIT.limit(parameter_u(updating, event), 0.0) * norm
        )
        if distance > allowed and update:
            said = note("weight-differs-by-updates", times=digits(distance / update, 2))
            faults.append(fault(updating, event, math.nan, said, note("copying-and-learning-rate")))
    return faults


def _row_of_update(updating: Updating, event: Event) -> int | None:
    rows = updating.pairs.rows_a.get((0, updating.pairs.matching.pairs[event.pair].a, 0), Role.DELTA)
    found = rows.get(f"{Phase.UPDATE.label}:{event.slot_a}")
    return found[-1] if found else None


def _hidden_decays(updating: Updating) -> list[Fault]:
    """Return parameters whose weight decay differs by less than both sides may round.

    Numbers cannot show that: of a weight in bfloat16, rounding gives back the whole decay, step by step. The settings
    alone can. Where the numbers could show it and do not, something is wrong with what was recorded: that stays a doubt.
    """
    shares = decays(updating.pairs)
    faults = []
    for event in two_sided(updating, Role.DELTA):
        a, b = shares.get(parameter_of(updating, event), (0.0, 0.0))
        if parameter_of(updating, event) in updating.settings and 0 < abs(a - b) < _BOTH_ROUND * parameter_u(
            updating, event
        ):
            dtypes = tuple(sorted(dtypes_of(updating, event)))
            said = note("decay-hidden-by-rounding", a=digits(a, 3), b=digits(b, 3), dtypes=dtypes)
            faults.append(Fault(event, math.nan, said))
    return faults


def _without_weak(updating: Updating, faults: list[Fault]) -> list[Fault]:
    """Leave out weak evidence, unless many parameters show it or their settings differ."""
    if len(faults) > 2 and len(faults) > tolerance.SYSTEMATIC * len(events_of(updating, Role.DELTA)):
        return faults
    return [fault for fault in faults if not fault.is_weak or parameter_of(updating, fault.event) in updating.settings]


def _decay(updating: Updating, event: Event, metrics: Metrics, rounding: float) -> tuple[Note, Note] | None:
    """Tell whether the difference of the updates is parallel to the parameter: weight decay."""
    before_a, before_b = trained(updating, event).rows
    if before_a is None or before_b is None:
        return None
    sketches = [
        updating.pairs.b.sketch(event.row_b),
        updating.pairs.a.sketch(event.row_a),
        updating.pairs.a.sketch(before_a),
    ]
    after_b, after_a, parameter = sketches
    if after_b is None or after_a is None or parameter is None:
        return None
    difference = after_b - after_a
    length = math.sqrt(difference.dot(difference))
    if length < rounding or math.prod(updating.pairs.a.shapes[event.row_a]) < WIDTH // 4:
        return None
    weight = float(np.linalg.norm(parameter))
    if not weight:
        return None
    along = float(difference @ parameter) / weight**2
    if abs(along) * weight < _PARALLEL * length:
        return None
    update = float(np.linalg.norm(after_a))
    if weight <= _FEW * update and abs(float(difference @ after_a)) >= _PARALLEL * length * update:
        return None  # of a weight that updates alone have made, longer ones leave the same
    return note("difference-parallel-to-parameter", along=digits(along, 3)), note("decay-of-group")


def _about_eps(updating: Updating, event: Event) -> Note:
    """Say so when an optimizer's eps is zero in the parameter's own dtype."""
    for side in (updating.pairs.a, updating.pairs.b):
        for group in side.reader.groups_of(side.step):
            eps = group.hyper.get("eps")
            is_tiny = isinstance(eps, float) and 0 < eps < _FLOAT16_LEAST
            if is_tiny and "float16" in dtypes_of(updating, event):
                return note("eps-is-zero", eps=eps)
    return note("what-optimizer-divides-by")


def _states(updating: Updating) -> list[Fault]:
    faults = []
    for event, cancelled in (moment for moments in moments_of(updating).values() for moment in moments):
        metrics = event.metrics
        assert metrics is not None
        parameter = event.slot_a.partition(".")[0]
        error = updating.state.gradients.get((event.pair, parameter), 0.0)
        error = max(error, updating.state.optimizer.get((event.pair, event.slot_a), 0.0))
        given = Level()
        given.add(error, 0.0)
        check = updating.walk.noise.check(event, metrics.rel_l2, tolerance.STATE, roundoff(updating.walk, event), given)
        is_exact = not error and updating.exact.has_same_gradient(event)
        if is_exact:
            check = _held_exactly(updating, event, check, cancelled)
        else:
            check = check.raise_limit(check.limit * cancelled + updating.rounding)
        limit, is_wrong = check.limit, check.is_wrong
        is_longer = abs(metrics.norm_ratio - 1) > max(tolerance.RATIO_LIMIT, math.sqrt(error))
        if metrics.is_known and (is_wrong or is_longer) and not is_exact and _is_divided(updating, event):
            limit, check, is_wrong = math.nan, None, is_longer and not _is_as_long_as_update(updating, event)
        wrong = metrics.is_known and error <= tolerance.UPDATE_ERROR_LIMIT and is_wrong
        updating.state.optimizer[event.pair, event.slot_a] = metrics.rel_l2 if metrics.is_known else 1.0
        if record(
            updating.walk, event, limit, wrong, error, error=check.error if check is not None else None, check=check
        ):
            name = event.slot_a.partition(".")[2]
            said = note("state-differs", name=name, ratio=digits(metrics.norm_ratio, 4))
            faults.append(Fault(event, limit, said, note("betas-and-first-state"), sources=error))
    return faults


def _held_exactly(updating: Updating, event: Event, check: Check, cancelled: float) -> Check:
    """Return a state that was made of the same gradient, bit for bit, with what rounding alone makes of it."""
    limit = min(check.limit, ROUNDINGS * roundoff(updating.walk, event)) * cancelled
    return check if check.is_fixed else check._replace(limit=limit)


def _is_divided(updating: Updating, event: Event) -> bool:
    """Tell whether a state sums up gradients that were divided by their own size, as RMSprop's momentum: the update is a multiple of it.

    Rounding of vanishing gradients is as large in it as in the update, which was judged. Its length shows what is wrong with it alone.
    """
    return uses_adaptive(updating, event) and all(
        _is_multiple_of_update(updating, half, event) for half in updating.pairs.halves
    )


def _is_as_long_as_update(updating: Updating, event: Event) -> bool:
    """Tell whether a state is as much longer in B as the update is, which was judged."""
    name, metrics = event.slot_a.partition(".")[0], event.metrics
    updates = (
        each.metrics for each in two_sided(updating, Role.DELTA) if (each.pair, each.slot_a) == (event.pair, name)
    )
    found = next(updates, None)
    if found is None or metrics is None or not 0 < found.norm_ratio < math.inf:
        return False
    return abs(metrics.norm_ratio / found.norm_ratio - 1) <= tolerance.RATIO_LIMIT


def _is_multiple_of_update(updating: Updating, half: StepHalf, event: Event) -> bool:
    """Tell whether a parameter's update is a multiple of one of its states, up to the rounding of the new parameter."""
    name = half.slot(event).partition(".")[0]
    rows = half.rows.get((0, half.modules[event.pair], 0), Role.DELTA).get(f"{Phase.UPDATE.label}:{name}")
    before, _ = trained_on(half, replace(event, slot_a=name, slot_b=name))
    if not rows or before is None:
        return False
    update, state = half.side.sketch(rows[-1]), half.side.sketch(half.row(event))
    length = half.side.norm(rows[-1])
    if update is None or state is None or not length or not state.any():
        return False
    rest = update - state * (float(update @ state) / float(state @ state))
    rounding = _ROUNDINGS * unit_roundoff(half.side.dtypes[before]) * half.side.norm(before) / length
    return float(np.linalg.norm(rest)) <= min(rounding, _SAME) * float(np.linalg.norm(update))


def _remember_parameters(updating: Updating) -> None:
    """Keep the errors of the updated parameters: the next step begins with them."""
    pooled: dict[int, list[tuple[float, float, float]]] = {}
    excess: dict[int, float] = {}
    for event in two_sided(updating, Role.PARAM):
        metrics = event.metrics
        assert metrics is not None
        if metrics.is_known and metrics.status is not Status.NONFINITE:
            norm = max(metrics.norm_a, metrics.norm_b)
            error = max(metrics.rel_l2 * norm, _unseen_error(updating, event))
            for owner in parameter_owners(updating.walk).get((event.pair, event.slot_a), [event.pair]):
                pooled.setdefault(owner, []).append((error, norm, roundoff(updating.walk, event)))
                excess[owner] = max(excess.get(owner, 0.0), updating.walk.noise.excess(event, metrics.rel_l2))
    pool(updating.walk, pooled, tolerance.UPDATED_GAIN)
    for owner in pooled.keys() - {owner for owner, found in excess.items() if found}:
        updating.state.parameters[owner].excess = 0.0
    updating.state.drifted = drifted(updating.pairs, updating.state)


def _unseen_error(updating: Updating, event: Event) -> float:
    """Return how large the error of an updated parameter may be where statistics alone bound it from below."""
    row = _row_of_update(updating, event) if event.metrics is not None and event.metrics.is_lower_bound else None
    if row is None:
        return 0.0
    update, u = updating.pairs.a.columns["norm"][row], roundoff(updating.walk, event)
    gradient = updating.state.gradients.get((event.pair, event.slot_a), 0.0)
    return update * share_of_update(
        gradient, u, updating.pairs.a.shapes[event.row_a], is_adaptive=uses_adaptive(updating, event)
    )


def _distance(metrics: Metrics | None) -> float:
    """Return ‖A−B‖ as far as it is known: from below where statistics alone are, 0.0 where nothing is."""
    if metrics is None or not metrics.is_known or not math.isfinite(metrics.rel_l2):
        return 0.0
    if metrics.is_lower_bound:
        return abs(metrics.norm_b - metrics.norm_a)
    return metrics.rel_l2 * max(metrics.norm_a, metrics.norm_b)
