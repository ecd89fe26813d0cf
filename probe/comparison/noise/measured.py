"""Rungs that are measured: from further runs of A (``noise=``), and from a run in higher precision (``reference=``).

Both give every tensor a *floor*, an error that is no fault: how far a further run of A is from A; or how far A is from the
reference, against which it is B's own distance from the reference that is judged. What is beyond a few times the floor is
a finding, unless what it was computed from is beyond its own floor already: then it may be so much larger as the built-in
model allows. docs/guide/noise.md has the reasons.

In 16 bits a wrong scale drowns in rounding, element by element, and shows in the norm: rounding has no common direction.
So outputs and inputs are held against a second floor, of the *scale* |‖B‖/‖A‖ − 1|. That holds for code which rounds as A's
does: another implementation, op by op in the place of one kernel, may round to one side, and no further run of A shows that.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import PureWindowsPath

from probe.comparison.distance.metrics import Metrics, Side
from probe.comparison.noise.floors import SCALE_SIZE, SMALLEST, Floor, Floors, scale_of, shift_between, spread_factor
from probe.comparison.noise.interface import SCALE_MEASURE, Check, Noise, StepNoise
from probe.comparison.noise.other_runs import OtherRun
from probe.comparison.noise.tolerance import PEAKS, SIXTEEN_BIT, Level, Rule, peaks_of
from probe.comparison.notes import Note, note
from probe.comparison.result import SlotResult
from probe.comparison.steps.events import StepPairs
from probe.comparison.steps.step_half import Event
from probe.numbers.sketch import WIDTH
from probe.numbers.statistics import unit_roundoff
from probe.records import ModuleInfo, Phase, Role

_SLACK = 1.5
"""another legitimate run may be so much noisier than those that were recorded"""
_SUSPICIOUS = 1.5
"""B may be so much further from the reference than A"""
_ONE_WAY = 0.9
"""share of an error that is a multiple of the value from which on it is one number, and not many"""
_WIDE = 0.5
"""floors of this size let everything pass"""
_SCALE_FACTOR = 5.0
_UNSEEN_FACTOR = 12.0
_UNSEEN_SHARE = 1 / 3
"""share of its error that a scale must be where no further run rounds differently"""
_SCALE_ROUNDING = 1 / 16
"""unit roundoffs that rounding in one direction may make of a norm"""
_OTHER_CODE_ROUNDING = 0.22
"""the same where A and B run other code: more than right ones were seen to make (0.17), less than a wrong eps does (0.24)"""
_VARIANCE = "running_var"
_SHARPER = 0.75
"""times the built-in limit from which on a measured one is of use"""
_OF_USE = 0.25
"""share of the limits that have to be"""
_FEWEST_LIMITS = 8
_FEWEST_TIMES = 8
_COMMON = 0.9
"""quantile of how many times its floor an error is that tells whether B is noisier altogether"""
_SHOWN = 0.1
"""unit roundoffs of a floor from which on a tensor was rounded otherwise, and not only a few of its elements"""


def rounding(rule: Rule, u: float, share: float) -> float:
    """Return what rounding at the place itself explains: in 16 bits a share of what the built-in model allows."""
    return rule.k16 * share * u if u > SIXTEEN_BIT else rule.k * u


@dataclass(slots=True)
class Account:
    """What came of measuring, over all steps."""

    left: set[tuple[int, int]] = field(default_factory=set)
    """what is left to the built-in model because only a bound of its error is known: by step and row of A"""
    limits: list[float] = field(default_factory=list)
    """those of what modules return in 16 bits"""
    sharper: int = 0
    """how many of them are clearly below those of the built-in model"""

    def add(self, limit: float, built_in: float) -> None:
        """Count a limit."""
        self.limits.append(limit)
        self.sharper += limit < _SHARPER * built_in

    @property
    def is_blunt(self) -> bool:
        """Tell whether measuring was of little use."""
        return len(self.limits) >= _FEWEST_LIMITS and self.sharper < _OF_USE * len(self.limits)


class _MeasuredStep(StepNoise):
    """What both rungs have in common."""

    rounding_share: float
    what: str
    as_far: float
    """times a floor's scale that another one may be by chance, where the built-in model finds it wrong"""

    def __init__(self, pairs: StepPairs, floors: Floors, account: Account, *, is_later: bool) -> None:
        self.pairs, self.floors, self._account = pairs, floors, account
        self._is_later = is_later
        """steps before have made other weights of A's and B's, and updates have a direction"""
        self._room = 0.0 if _runs_same_code(pairs) else _OTHER_CODE_ROUNDING
        self._is_one_sided = False
        """B's code was seen to round to one side: what is behind it is off in its norm, too"""
        self._loudest = 0.0
        """the largest error that was a finding: a smaller scale behind it may be its consequence"""
        self._times: dict[Phase, list[float]] = {phase: [] for phase in Phase}
        """how many times the floor the errors of each phase were so far, sorted"""

    def seen(self, event: Event) -> Floor | None:
        """Return the error and the scale that are judged."""
        raise NotImplementedError

    def _known(self, event: Event, metrics: Metrics, side: Side, row: int) -> Floor | None:
        """Return B's distance from a tensor; None where only a bound is known: that is no measure which a floor could be held against."""
        if metrics.is_lower_bound:
            self._account.left.add((self.pairs.step, event.row_a))
        is_told = metrics.is_known and not metrics.is_lower_bound
        if not is_told:
            return None
        return Floor(metrics.rel_l2, scale_of(metrics.norm_ratio), shift_between(side, row, self.pairs.b, event.row_b))

    def factor(self, event: Event) -> float:
        """Return how many times the floor is still noise."""
        raise NotImplementedError

    def louder(self, phase: Phase) -> float:
        """Return how much noisier than the runs that were measured B was so far, where nothing was wrong; 1 and more."""
        return max((_common(times) for each, times in self._times.items() if each <= phase), default=1.0)

    def spread(self, event: Event) -> float:
        """Return how many times the floor an error may be by chance alone."""
        metrics, size = event.metrics, math.prod(self.pairs.a.shapes[event.row_a])
        if metrics is not None and metrics.estimated:
            size = min(size, WIDTH)
        if metrics is not None and event.phase is not Phase.FORWARD and abs(metrics.coherence) > _ONE_WAY:
            size = min(size, SMALLEST)  # all elements err together; in the forward pass the scale is judged by itself
        if self.routes_differ:
            size = min(size, SMALLEST)
        return spread_factor(size, self.floors.runs)

    def facts(self, seen: Floor, floor: Floor) -> tuple[Note, ...]:
        """Say what was measured."""
        raise NotImplementedError

    def check(self, event: Event, error: float, rule: Rule, u: float, sources: Level) -> Check:
        found = self._held(event, error, rule, u, sources)
        is_output = event.phase is Phase.FORWARD and event.role is Role.OUTPUT and u > SIXTEEN_BIT
        if is_output and error > 0 and not self._loudest:  # behind a finding limits are wide in any case
            self._account.add(found.limit, rule.limit(u, sources.error))
        return found

    def introduced(self, error: float) -> None:
        self._loudest = max(self._loudest, error)

    def _held(self, event: Event, error: float, rule: Rule, u: float, sources: Level) -> Check:
        floor, seen = self.floors.get(event.row_a), self.seen(event)
        assert event.metrics is not None
        below = super().check(event, error, rule, u, sources)
        if floor is None or seen is None or not u or not event.metrics.rel_l2 or not math.isfinite(error):
            return below
        found = self._held_by_floor(event, error, rule.plain or rule, u, sources)
        if not self._loudest and floor.error > _SHOWN * u:
            insort(self._times[event.phase], seen.error / floor.error)
        is_shown = self._shows(event, below, rule, seen, floor)
        return below if below.is_wrong and not found.is_wrong and not is_shown else found

    def _shows(self, event: Event, below: Check, rule: Rule, seen: Floor, floor: Floor) -> bool:
        """Tell whether the runs that were measured are as far off as what the built-in model finds wrong."""
        if below.measure == SCALE_MEASURE or rule.plain is not None:
            return seen.scale <= self.as_far * floor.scale and seen.shift <= self.as_far * floor.shift
        spread = self.spread(event)
        return seen.error <= (spread if math.isfinite(spread) else _SLACK) * floor.error

    def _held_by_floor(self, event: Event, error: float, rule: Rule, u: float, sources: Level) -> Check:
        floor, seen = self.floors.get(event.row_a), self.seen(event)
        assert event.metrics is not None and floor is not None and seen is not None
        relative = error / event.metrics.rel_l2
        inherits, factor = sources.excess > 0, self.factor(event)
        is_covered = floor.error > 0 and not inherits
        is_sum = event.phase is Phase.GRADIENT  # by what its kernel adds up in, which further runs need not show
        least = rounding(rule, u, self.rounding_share) if is_covered and not is_sum else rule.limit(u, 0.0)
        limit = max(factor * floor.error * relative, least, rule.gain * sources.excess)
        if not math.isfinite(factor):
            limit = max(_SLACK * floor.error * relative, rule.limit(u, sources.error))
        check = Check(seen.error * relative, limit, self.what, inherits=inherits)
        scale = None if inherits else self._held_scale(event, seen, floor, u)
        is_scale = scale is not None and scale.share > check.share
        chosen = scale if is_scale and scale is not None else check
        if not chosen.is_wrong:
            return chosen
        return chosen.explained() if is_scale else chosen._replace(facts=self.facts(seen, floor))

    def _held_scale(self, event: Event, seen: Floor, floor: Floor, u: float) -> Check | None:
        """Hold the scale of what modules are given and return against what other tensors of the kind show."""
        limit = self._scale_limit(event, seen, floor, u)
        if limit is None or self._is_one_sided:
            return None
        room = u * (_OTHER_CODE_ROUNDING if self._has_statistics(event) else self._room)
        self._is_one_sided = limit < seen.scale <= room
        return Check(seen.scale, max(limit, room, self._loudest), SCALE_MEASURE, inherits=False)

    def _has_statistics(self, event: Event) -> bool:
        """Tell whether a module returns what it divides by statistics of few channels: each of those is rounded, or not, as a whole."""
        module = self.pairs.matching.pairs[event.pair].a
        slots = self.pairs.rows_a.get((0, module, 0), Role.BUFFER)
        names = (self.pairs.a.canonical(module, slot.rpartition(":")[2]) for slot in slots)
        return event.role is Role.OUTPUT and _VARIANCE in names

    def _scale_limit(self, event: Event, seen: Floor, floor: Floor, u: float) -> float | None:
        """Return the largest scale that is noise; None where it tells nothing."""
        size = math.prod(self.pairs.a.shapes[event.row_a])
        if event.phase is not Phase.FORWARD or u <= SIXTEEN_BIT or size < SCALE_SIZE:
            return None
        columns, row = self.pairs.a.columns, event.row_a
        if not peaks_of(size, columns["rms"][row], max(-columns["min"][row], columns["max"][row])) >= PEAKS:
            return None
        share = self.floors.common_share(event.row_a)
        if seen.error <= self.factor(event) * floor.error:
            limit = _SCALE_FACTOR * self.louder(event.phase) * max(share * max(seen.error, floor.error), floor.scale)
        else:
            limit = max(_UNSEEN_FACTOR * share, _UNSEEN_SHARE) * seen.error
        return max(limit, _SCALE_ROUNDING * u, _UNSEEN_SHARE * seen.error if self._is_later else 0.0)

    def excess(self, event: Event, error: float) -> float:
        floor, seen = self.floors.get(event.row_a), self.seen(event)
        if floor is None or seen is None:
            return error
        if self.routes_differ:  # a few tokens are off by all of it
            return seen.error
        factor = self.factor(event)
        quiet = math.sqrt(factor) if math.isfinite(factor) else _SLACK
        most = self._scale_limit(event, seen, floor, unit_roundoff(self.pairs.a.dtypes[event.row_a]))
        is_quiet = seen.error <= quiet * floor.error and (most is None or seen.scale <= most)
        return 0.0 if is_quiet else seen.error

    def explains_update(self, event: Event) -> bool:
        floor, seen = self.floors.get(event.row_a), self.seen(event)
        if floor is None or seen is None:
            return False
        factor = self.factor(event)
        return (
            math.isfinite(factor) and seen.error <= factor * floor.error and seen.scale <= _SCALE_FACTOR * floor.scale
        )


def _common(times: Sequence[float]) -> float:
    """Return how many times their floors nine tenths of some errors are at most; 1 and more."""
    return max(1.0, times[int(_COMMON * len(times))]) if len(times) >= _FEWEST_TIMES else 1.0


def _runs_same_code(pairs: StepPairs) -> bool:
    """Tell whether every module of A has a partner of its own class, in one framework."""
    a, b = pairs.a.reader, pairs.b.reader
    return a.info.framework == b.info.framework and all(
        _code(a.modules[pair.a]) == _code(b.modules[pair.b]) for pair in pairs.matching.pairs
    )


def _code(module: ModuleInfo) -> tuple[str, str]:
    return module.class_name, PureWindowsPath(module.file).name  # which knows both signs between folders


class _FurtherRunsStep(_MeasuredStep):
    """Floors from further runs of A."""

    rounding_share = 0.5
    what = ""
    as_far = _SCALE_FACTOR

    def seen(self, event: Event) -> Floor | None:
        metrics = event.metrics
        assert metrics is not None
        return self._known(event, metrics, self.pairs.a, event.row_a)

    def factor(self, event: Event) -> float:
        return _SLACK * self.spread(event) * self.louder(event.phase)

    def facts(self, seen: Floor, floor: Floor) -> tuple[Note, ...]:
        return (note("further-runs-differ", runs=self.floors.runs, error=floor.error),)


class _ReferenceStep(_MeasuredStep):
    """Floors from what A is away from a run in higher precision."""

    rounding_share = 0.25
    what = "of B to the reference"
    as_far = 2.0

    def __init__(
        self, pairs: StepPairs, floors: Floors, account: Account, other: Side, rows: dict[int, int], *, is_later: bool
    ) -> None:
        super().__init__(pairs, floors, account, is_later=is_later)
        self._other, self._rows = other, rows
        self._seen: dict[tuple[int, int], Floor | None] = {}

    def seen(self, event: Event) -> Floor | None:
        key = event.row_a, event.row_b
        if key not in self._seen:
            self._seen[key] = self._from_reference(event)
        return self._seen[key]

    def _from_reference(self, event: Event) -> Floor | None:
        if event.row_a not in self._rows:
            return None
        row = self._rows[event.row_a]
        return self._known(event, self.pairs.measured_from(self._other, row, event), self._other, row)

    def factor(self, event: Event) -> float:
        return max(_SUSPICIOUS, self.spread(event)) * self.louder(event.phase) * (_SLACK if self._is_later else 1.0)

    def facts(self, seen: Floor, floor: Floor) -> tuple[Note, ...]:
        return (note("as-far-from-reference", b=seen.error, a=floor.error),)


class _Measured(Noise):
    """Recordings beside A and B."""

    is_built_in = uses_built_in = False

    def __init__(self, runs: Sequence[OtherRun]) -> None:
        self.runs = runs
        self._widest, self._differs, self._lacks_values = 0.0, False, False
        self._account = Account()
        self._steps = 0

    def _sides(self, pairs: StepPairs) -> list[tuple[Side, dict[int, int]]]:
        found = []
        for run in self.runs:
            side = run.side(pairs.step, pairs.matching)
            if side is not None:
                rows = run.rows(pairs, side)
                run.check_start(pairs, side, rows)
                found.append((side, rows))
        return found

    def _floors(self, pairs: StepPairs, sides: Sequence[tuple[Side, dict[int, int]]]) -> Floors:
        floors = Floors(pairs, sides)
        self._steps += 1
        read = pairs.a, pairs.b, *(side for side, _ in sides)
        self._lacks_values = self._lacks_values or not all(side.has_stored_values for side in read)
        self._widest = max(self._widest, floors.width())
        self._differs = self._differs or floors.differs
        return floors

    @property
    def _names(self) -> tuple[str, ...]:
        return tuple(run.name for run in self.runs)

    def notes(self) -> Iterable[Note]:
        option = self.runs[0].option
        if not self._differs:
            yield note("noise-runs-equal", option=option, runs=self._names)
        for run in self.runs:
            if run.missing_steps:
                yield note("noise-run-lacks-steps", option=run.option, run=run.name, steps=tuple(run.missing_steps))
        account = self._account
        if account.is_blunt and self._differs:
            limit = sorted(account.limits)[len(account.limits) // 2]
            yield note(
                "noise-limits-blunt", option=option, runs=self._names, sharper=account.sharper, total=len(account.limits), limit=limit,
            )  # fmt: skip
        if account.left:
            yield note("noise-known-as-bound", option=option, count=len(account.left), lacks_values=self._lacks_values)

    def reasons(self, slots: Iterable[SlotResult]) -> Iterable[Note]:
        if self._widest > _WIDE:
            yield note("noise-too-wide", error=self._widest, runs=self._names)


class FurtherRuns(_Measured):
    """Other legitimate runs of A: other kernels, another batch split, another device."""

    def __init__(self, runs: Sequence[OtherRun]) -> None:
        super().__init__(runs)
        names = ", ".join(run.name for run in runs)
        self.name = f"{len(runs)} further run{'s' * (len(runs) > 1)} of A ({names})"

    def at(self, pairs: StepPairs) -> StepNoise:
        """Return what decides in one step."""
        sides = self._sides(pairs)
        if not sides:
            return StepNoise()
        floors = self._floors(pairs, sides)
        return _FurtherRunsStep(pairs, floors, self._account, is_later=self._steps > 1)


class Reference(_Measured):
    """A's model in higher precision: what is judged is how much further from it B is than A."""

    def __init__(self, run: OtherRun) -> None:
        super().__init__([run])
        self.name = f"reference {run.name}"

    def at(self, pairs: StepPairs) -> StepNoise:
        """Return what decides in one step."""
        sides = self._sides(pairs)
        if not sides:
            return StepNoise()
        floors = self._floors(pairs, sides)
        return _ReferenceStep(pairs, floors, self._account, *sides[0], is_later=self._steps > 1)
