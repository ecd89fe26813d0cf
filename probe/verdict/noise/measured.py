"""Rungs that are measured: from further runs of A (``noise=``), and from a run in higher precision (``reference=``).

Both give every tensor a *floor*, an error that is no fault: how far a further run of A is from A; or how far A is from
the reference, against which B's own distance from it is judged. What is beyond a few times the floor is a finding,
unless what it was made of is beyond its own floor: then it may be so much larger as the built-in model allows.

In 16 bits a wrong scale drowns in rounding, element by element, and shows in the norm: rounding has no direction. So
outputs and inputs are held against a second floor, of the norm.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from probe.answer.result import SlotResult
from probe.notes import Note, note
from probe.numbers.sketch import WIDTH
from probe.records import Phase, Role, Task
from probe.verdict.distance.error import Error, View
from probe.verdict.distance.measure import measure
from probe.verdict.noise.limits import widened
from probe.verdict.noise.model import ALONG_BACKWARD, FEW, MANY, NORMS, SIXTEEN_BITS, Row
from probe.verdict.noise.other_runs import REFERENCE, OtherRun, RunStep, error_of
from probe.verdict.noise.rung import Check, Noise, StepNoise
from probe.verdict.noise.terms import peaks_of
from probe.verdict.steps.events import Event
from probe.verdict.steps.step import Step
from probe.verdict.tensors import Tensor


@dataclass(frozen=True, slots=True)
class _Rung:
    """What a kind of further run allows."""

    slack: float
    """times chance: the next legitimate run may be so much noisier than those that were recorded"""
    rounding: float
    """share of the built-in model's rounding that is noise in any case, in 16 bits"""
    as_far: float
    """times a floor's norm that another one may be off by chance, if the built-in model finds it wrong"""
    measure: str = ""


_RUNGS = {
    "noise": _Rung(slack=1.5, rounding=1 / 2, as_far=5.0),
    REFERENCE: _Rung(slack=1.0, rounding=1 / 4, as_far=2.0, measure="of B to the reference"),
}
"""docs/guide/noise.md has the reasons, ``benchmarks.noise`` the pairs"""


@dataclass(frozen=True, slots=True)
class _Norms:
    """What the norms of outputs and inputs in 16 bits may be off by."""

    times: float = 5.0
    """times what the further runs are off by, or chance leaves of errors up and down"""
    least: float = 1 / 3
    """share of an error that no further run shows, which may be one of the norm"""
    rounding: float = 1 / 16
    """roundoffs that rounding in one direction may make"""
    other_code: float = 0.22
    """the same if A and B run other code: right ones make 0.17, a wrong eps 0.24"""


_NORMS = _Norms()


@dataclass(frozen=True, slots=True)
class Floor:
    """What is no fault, at one tensor."""

    error: float
    scale: float
    """relative difference of the norms"""
    shift: float
    """how far the means are apart, √n times, as a share of the norm"""


def spread_factor(size: int, runs: int, z: float = 4.75) -> float:
    """Return how many times the floor another run's error may be by chance; inf if that cannot be told.

    The ratio of two mean squares has the F distribution, with as many degrees of freedom as elements, times the runs:
    by Paulson's approximation, at ``z`` standard deviations, one false alarm in a million tensors. Elements of larger
    tensors do not round independently.
    """
    d = min(size, MANY)
    if d < FEW:
        return math.inf
    a, b = 2 / (9 * d), 2 / (9 * d * runs)
    square, linear, constant = (1 - b) ** 2 - z**2 * b, (1 - a) * (1 - b), (1 - a) ** 2 - z**2 * a
    if square <= 0:
        return math.inf
    return float(((linear + math.sqrt(max(0.0, linear**2 - square * constant))) / square) ** 1.5)


def robust_floor(errors: Sequence[float]) -> float:
    """Return the largest of a few errors, or their median and three robust deviations if that is more."""
    ordered = sorted(errors)
    middle = len(ordered) // 2
    spread = sorted(abs(error - ordered[middle]) for error in ordered)[middle]
    return max(ordered[-1], ordered[middle] + 3 * 1.4826 * spread) if len(ordered) > 2 else ordered[-1]


def _quantile(values: Sequence[float], least: float) -> float:
    """Return what nine tenths of some sorted values are at most; a default if they are too few."""
    return values[int(0.9 * (len(values) - 1))] if len(values) >= FEW // 2 else least


@dataclass
class _Account:
    """What came of measuring, over all steps."""

    left: int = 0
    """events that are left to the built-in model, as only a bound of their error is known"""
    limits: list[float] = field(default_factory=list)
    """those of what modules return in 16 bits"""
    sharper: int = 0
    """how many of them are clearly below those of the built-in model"""
    widest: float = 0.0
    differs: bool = False
    has_values: bool = True
    steps: int = 0


class Measured(Noise):
    """Recordings beside A and B: other legitimate runs of A, or its model in higher precision."""

    uses_built_in = False

    def __init__(self, runs: Sequence[OtherRun]) -> None:
        self.runs, self.option, self.account = runs, runs[0].option, _Account()
        self.names = tuple(run.name for run in runs)
        plural = "s" if len(runs) > 1 else ""
        is_reference = self.option == REFERENCE
        named = f"{len(runs)} further run{plural} of A ({', '.join(self.names)})"
        self.name = f"reference {self.names[0]}" if is_reference else named

    def at(self, step: Step) -> StepNoise:
        """Return what decides in one step."""
        runs = [found for run in self.runs if (found := run.at(step)) is not None]
        if not runs:
            return StepNoise()
        self.account.steps += 1
        readers = (step.a.reader, step.b.reader, *(run.reader for run in self.runs))
        self.account.has_values = all(reader.info.config.get("task") == Task.TENSOR.value for reader in readers)
        found = _MeasuredStep(step, runs, _RUNGS[self.option], self.account)
        made = [out for node in step.nodes for out in node.outputs if out.is_paired]
        outputs = sorted(floor.error for out in made if (floor := found.floor(out)) is not None)
        self.account.widest = max([self.account.widest, *outputs[len(outputs) // 2 :][:1]])
        return found

    def notes(self) -> Iterable[Note]:
        """Yield what is to be said of the rung itself, when all steps have been judged."""
        account, named = self.account, {"option": self.option, "runs": self.names}
        if not account.differs:
            yield note("noise-runs-equal", **named)
        for run in self.runs:
            if run.missing_steps:
                yield note("noise-run-lacks-steps", option=run.option, run=run.name, steps=tuple(run.missing_steps))
        total = len(account.limits)
        if total >= FEW // 2 and 4 * account.sharper < total and account.differs:
            limit = sorted(account.limits)[total // 2]
            yield note("noise-limits-blunt", **named, sharper=account.sharper, total=total, limit=limit)
        if account.left:
            known = {"option": self.option, "count": account.left, "lacks_values": not account.has_values}
            yield note("noise-known-as-bound", **known)

    def reasons(self, rows: Sequence[SlotResult]) -> Iterable[Note]:
        """Yield why, by this rung, nothing may be called aligned."""
        if 2 * self.account.widest > 1:
            yield note("noise-too-wide", error=self.account.widest, runs=self.names)


class _MeasuredStep(StepNoise):
    """One step by what further runs show."""

    def __init__(self, step: Step, runs: Sequence[RunStep], rung: _Rung, account: _Account) -> None:
        self.step, self.runs, self.rung, self.account = step, runs, rung, account
        self._floors: dict[Event, Floor | None] = {}
        self._seen: dict[Event, Floor | None] = {}
        self._passed: dict[Event, float] = {}
        self._times: dict[Phase, list[float]] = defaultdict(list)
        """how many times the floor the errors of each phase were so far, sorted"""
        self._room = 0.0 if _runs_same_code(step) else _NORMS.other_code
        self._is_one_sided = False
        """B's code was seen to round to one side: what is behind it is off in its norm, too"""

    def floor(self, event: Event) -> Floor | None:
        """Return what is no fault at an event; None if nothing was measured."""
        mine = event.a
        if event not in self._floors and mine is not None:
            there = [tensor for run in self.runs if (tensor := run.tensor(event)) is not None]
            there = [tensor for tensor in there if mine.kind == "float" and mine.size == tensor.size]
            known = [each for tensor in there if (each := _floor(error_of(mine, tensor), mine, tensor)) is not None]
            errors, scales, shifts = ([getattr(each, name) for each in known] for name in ("error", "scale", "shift"))
            self._floors[event] = Floor(robust_floor(errors), max(scales), max(shifts)) if known else None
            self.account.differs |= any(errors)
        return self._floors[event]

    def seen(self, event: Event, error: Error) -> Floor | None:
        """Return the error and the scale that are judged: of B to A, or to the reference."""
        if event not in self._seen:
            assert event.a is not None and event.b is not None
            from_a: Tensor | None = event.a
            found: Error | None = error
            if self.rung.measure:
                from_a = self.runs[0].tensor(event)
                permuted = self.step.may_permute(event)
                found = None if from_a is None else measure(from_a, event.b, may_permute=permuted)
            self.account.left += found is not None and found.is_bound
            self._seen[event] = None if from_a is None else _floor(found, from_a, event.b)
        return self._seen[event]

    def check(self, event: Event, error: Error, built_in: Check, row: Row, u: float, excess: float) -> Check:
        """Return what is held against what."""
        is_plain = u > 0 < error.size < math.inf and error is self.step.error(event) and event.phase is not Phase.INIT
        floor, seen = (self.floor(event), self.seen(event, error)) if is_plain else (None, None)
        if floor is None or seen is None:
            return built_in
        self._passed[event] = built_in.passed
        found = self._held(event, error, built_in, row, u, excess, floor, seen)
        if floor.error > u / 10 and not built_in.is_consequence:
            insort(self._times[event.phase], seen.error / floor.error)
        if event.phase is Phase.FORWARD and event.role is Role.OUTPUT and u > SIXTEEN_BITS:
            self.account.limits.append(found.limit)
            self.account.sharper += 4 * found.limit < 3 * built_in.limit
        is_missed = built_in.is_wrong and not found.is_wrong and not self._shows(event, error, built_in, floor, seen)
        return built_in if is_missed else found

    def explains(self, event: Event, error: Error) -> bool:
        """Return True if an update that the built-in model finds wrong is as far off in further runs."""
        floor, seen = self.floor(event), self.seen(event, error)
        factor = self._factor(event, error)
        if floor is None or seen is None or math.isinf(factor):
            return False
        return seen.error <= factor * floor.error and seen.scale <= _NORMS.times * floor.scale

    def excess(self, event: Event, error: Error) -> float | None:
        """Return how much of an event's error counts for what is made of it: none within the floor."""
        if event.a is None or event.b is None or error.is_bound or error is not self.step.error(event):
            return None
        floor, seen = self.floor(event), self.seen(event, error)
        if floor is None or seen is None:
            return None
        factor = self._factor(event, error)
        quiet = math.sqrt(factor) if math.isfinite(factor) else 1.5
        most = self._norm_limit(event, error, floor, seen, event.a.u)
        return 0.0 if seen.error <= quiet * floor.error and (most is None or seen.scale <= most) else min(seen.error, 1)

    # What is allowed

    def _held(
        self, event: Event, error: Error, built_in: Check, row: Row, u: float, excess: float, floor: Floor, seen: Floor
    ) -> Check:
        relative, factor = built_in.error / error.size, self._factor(event, error)
        is_sum = event.phase is Phase.GRADIENT  # by what its kernel adds up in, which further runs need not show
        is_covered = floor.error > 0 and not excess and not is_sum and u > SIXTEEN_BITS
        rounding = row.floor(u) * (self.rung.rounding if is_covered else 1.0)
        limit = widened(rounding, sources_beyond=row.gain * excess, measured=factor * floor.error * relative)
        if math.isinf(factor):
            limit = widened(built_in.limit, measured=1.5 * floor.error * relative)
        judged = seen.error * relative
        facts = self._facts(floor, seen) if judged > limit else ()
        found = Check(judged, limit, judged > limit, measure=self.rung.measure, facts=facts)
        norm = None if excess else self._held_norm(event, error, floor, seen, u)
        if norm is None or norm.share <= found.share:
            return found
        facts = (note("norm-is-off", error=norm.error, limit=norm.limit),) if norm.is_wrong else ()
        return replace(norm, facts=facts)

    def _held_norm(self, event: Event, error: Error, floor: Floor, seen: Floor, u: float) -> Check | None:
        limit = self._norm_limit(event, error, floor, seen, u)
        if limit is None or self._is_one_sided:
            return None
        self._is_one_sided = limit < seen.scale <= u * self._room
        limit = widened(u * self._room, measured=limit)
        return Check(seen.scale, limit, seen.scale > limit, measure="of the norm")

    def _norm_limit(self, event: Event, error: Error, floor: Floor, seen: Floor, u: float) -> float | None:
        """Return by how much a norm may be off; None if it tells nothing."""
        a = event.a
        if a is None or event.phase is not Phase.FORWARD or u <= SIXTEEN_BITS or a.size < MANY or peaks_of(a) < FEW:
            return None
        chance = max(seen.error, floor.error) * math.sqrt(3 / a.size)  # 3: the kurtosis of normally distributed values
        if seen.error <= self._factor(event, error) * floor.error:
            limit = _NORMS.times * self._louder(event.phase) * max(chance, floor.scale)
            limit = max(limit, NORMS.gain * self._passed.get(event, 0.0))
        else:
            limit = _NORMS.least * seen.error
        later = _NORMS.least * seen.error if self.account.steps > 1 else 0.0  # updates have a direction
        return max(limit, _NORMS.rounding * u, later)

    def _factor(self, event: Event, error: Error) -> float:
        """Return how many times the floor is still noise."""
        assert event.a is not None
        size = min(event.a.size, WIDTH) if error.view is View.SKETCH else event.a.size
        later = self.rung.measure != "" and self.account.steps > 1  # what updates made of rounding is in all of it
        if event.phase is not Phase.FORWARD and (later or abs(error.along) > ALONG_BACKWARD):
            size = min(size, FEW)  # all elements err together; in the forward pass the norm is judged by itself
        return max(spread_factor(size, len(self.runs)) * self.rung.slack, 1.5) * self._louder(event.phase) * 1.5**later

    def _louder(self, phase: Phase) -> float:
        """Return how much noisier than the further runs B was so far; 1 and more."""
        return max([1.0, *(_quantile(times, 1.0) for each, times in self._times.items() if each <= phase)])

    def _shows(self, event: Event, error: Error, built_in: Check, floor: Floor, seen: Floor) -> bool:
        """Return True if the further runs are as far off as what the built-in model finds wrong."""
        most = self.rung.as_far
        if built_in.has_direction and (seen.scale > most * floor.scale or seen.shift > most * floor.shift):
            return False
        chance = self._factor(event, error) / self.rung.slack
        return built_in.error <= built_in.limit or seen.error <= (chance if chance < math.inf else 1.5) * floor.error

    def _facts(self, floor: Floor, seen: Floor) -> tuple[Note, ...]:
        if self.rung.measure:
            return (note("as-far-from-reference", b=seen.error, a=floor.error),)
        return (note("further-runs-differ", runs=len(self.runs), error=floor.error),)


def _floor(error: Error | None, a: Tensor, b: Tensor) -> Floor | None:
    """Return an error as a floor; None if only a bound is known: nothing can be held against that."""
    if error is None or error.is_bound or math.isinf(error.size):
        return None
    shift = abs(a.mean - b.mean) * math.sqrt(a.size) / a.norm if a.norm else 0.0
    return Floor(error.size, error.off, shift if math.isfinite(shift) else 0.0)


def _runs_same_code(step: Step) -> bool:
    """Return True if every module of A has a partner of its own class and file, in one framework."""
    a, b = step.a.reader.modules, step.b.reader.modules
    pairs = [(a[pair.a], b[pair.b]) for pair in step.matching.pairs]
    same = [x.class_name == y.class_name and _file(x.file) == _file(y.file) for x, y in pairs]
    return not step.is_across_frameworks and all(same)


def _file(path: str) -> str:
    return path.replace("\\", "/").rpartition("/")[2]
