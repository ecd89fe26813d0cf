"""The rung that people fix: tolerances for all tensors, for those of some modules, or of an acceptance table.

A fixed tolerance overrides what is measured or modelled. It knows nothing of what an error was computed from, so only the
first tensors beyond it are findings: those computed from them inherit. What is so wide that zeros would pass as well says
nothing, and does not end as aligned.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from probe.commands.defaults import ALLCLOSE
from probe.comparison.distance.metrics import Metrics
from probe.comparison.noise import tolerance as built_in
from probe.comparison.noise.interface import BUILT_IN, Held, Noise, StepNoise
from probe.comparison.noise.tolerance import SIXTEEN_BIT, Level, Rule
from probe.comparison.notes import Note, note
from probe.comparison.result import SlotResult
from probe.comparison.steps.events import StepPairs
from probe.comparison.steps.step_half import Event
from probe.mapping.judging import JudgingRule, Tolerance
from probe.numbers.statistics import unit_roundoff
from probe.records import Phase, Role

_MEAN_OF_NORMAL = math.sqrt(2 / math.pi)
"""mean size of normally distributed errors, as a multiple of their root mean square"""
_OF_SKETCHES = 1.5
"""an error that sketches estimate is less than this many times as large: five standard deviations"""
_HIDES = 0.01
"""from this share of a tensor's size on, what an absolute tolerance hides is said"""
_MOST = 0.5
_TIMES = "times the tolerance"
_NAMES = {
    "max_abs": "max |Δ|", "mean_abs": "mean |Δ|", "max_rel": "max relative |Δ|", "rel_l2": "", "cosine": "1 − cosine",
    ALLCLOSE: _TIMES,
}  # fmt: skip
FIXED_MEASURES = frozenset(filter(None, _NAMES.values()))
"""of what a limit is that people chose, where it is not the relative error"""
TOLERANCE = "tolerance"
"""how what a finding says of it begins"""


@dataclass
class _Seen:
    """What came up while events were judged."""

    judged: int = 0
    wide: int = 0
    """tensors of which zeros would pass"""
    first_wide: str = ""
    hidden: dict[str, float] = field(default_factory=dict)
    """by place: share of a tensor's size that the absolute tolerance is"""
    open: int = 0
    first_open: str = ""
    suspect: str = ""
    """the first of those without values that rounding does not explain: what is beyond the tolerance behind it may follow from it"""
    ignored: int = 0
    sixteen: int = 0
    rates: dict[float, float] = field(default_factory=dict)
    """learning rates, and the share of them that the absolute tolerance is"""
    used: set[JudgingRule] = field(default_factory=set)


class Fixed(Noise):
    """Rules in the order in which they are asked, and the rung that judges what none fits.

    Parameters
    ----------
    rules
        the first that fits an event counts
    below
        the rung for all else
    title
        what the report calls it
    is_preset
        whether the rules are an acceptance table's, which are made for float32
    """

    def __init__(self, rules: Sequence[JudgingRule], below: Noise, title: str, is_preset: bool = False) -> None:
        self.rules, self.below, self.is_preset = tuple(rules), below, is_preset
        self.seen = _Seen()
        covers_all = any(not (r.path != "*" or r.phase or r.role or r.is_of_model or r.is_of_loss) for r in rules)
        self.name = title if covers_all else f"{title}; else {below.name}"
        self.is_built_in, self.uses_built_in = False, below.uses_built_in and not covers_all

    def at(self, pairs: StepPairs) -> StepNoise:
        """Return what decides in one step."""
        return _FixedStep(self, pairs, self.below.at(pairs))

    def notes(self) -> Iterable[Note]:
        """Yield what is to be said of the rung itself, when all steps have been judged."""
        yield from self.below.notes()
        seen = self.seen
        for rule in self.rules:
            if rule.path != "*" and rule not in seen.used:
                yield note("rule-fits-nothing", rule=rule.name, path=rule.path, is_first=rule is self.rules[0])
        if seen.ignored:
            yield note("ignored-by-rules", count=seen.ignored)
        if seen.wide and seen.wide <= _MOST * seen.judged:
            yield note("zeros-would-pass", count=seen.wide, total=seen.judged, first=seen.first_wide)
        if seen.hidden:
            place, share = max(seen.hidden.items(), key=lambda each: each[1])
            yield note("tolerance-hides-tensors", count=len(seen.hidden), place=place, share=share)
        for rate, share in seen.rates.items():
            yield note("tolerance-hides-learning-rate", rate=rate, share=share)
        if self.is_preset and seen.sixteen:
            yield note("preset-made-for-float32", count=seen.sixteen, total=seen.judged)

    def reasons(self, slots: Iterable[SlotResult]) -> Iterable[Note]:
        """Yield why, by this rung, nothing may be called aligned."""
        kept = list(slots)
        yield from self.below.reasons(kept)
        seen = self.seen
        if seen.wide > _MOST * seen.judged:
            yield note("tolerance-too-wide", count=seen.wide, total=seen.judged)
        if seen.open:
            yield note("tolerance-needs-values", count=seen.open, first=seen.first_open)
        verdicts = {slot.verdict for slot in kept}
        if seen.suspect and "inherited" in verdicts and "introduced" not in verdicts:
            yield note("suspect-needs-values", place=seen.suspect)
        elif "inherited" in verdicts and "introduced" not in verdicts:
            yield note("sources-of-tolerance-not-judged")
        outputs = [slot for slot in kept if slot.role is Role.OUTPUT]
        if seen.ignored and all(slot.verdict == "not judged" for slot in outputs):
            yield note("outputs-ignored-by-rules")


class _FixedStep(StepNoise):
    """One step by fixed tolerances."""

    def __init__(self, fixed: Fixed, pairs: StepPairs, below: StepNoise) -> None:
        self.fixed, self.pairs, self.below = fixed, pairs, below
        self._rules: dict[tuple[int, Phase, Role, bool], JudgingRule | None] = {}
        self._measured: dict[int, Held] = {}
        """by the id of the event, without what it was computed from"""
        self._failed: set[int] = set()
        """ids of events that are wrong, or inherit it, though no rule of ours is about them"""
        self._losses: set[int] = set()
        """ids of events that are the loss, as the model returns it"""
        self._events: list[Event] = []
        """keeps them, and so their ids"""
        absolute = [rule.tolerance.atol for rule in fixed.rules if rule.tolerance is not None and rule.tolerance.atol]
        for group in pairs.a.reader.groups_of(pairs.step) if absolute else ():
            rate = group.hyper.get("lr")
            if isinstance(rate, float) and rate and min(absolute) > _HIDES * abs(rate):
                fixed.seen.rates[rate] = min(absolute) / abs(rate)

    def held(self, event: Event, error: float, rule: Rule, u: float, sources: Level) -> Held:
        """Return what is held against what."""
        chosen = self._rule(event, rule is built_in.LOSS)
        if rule is built_in.LOSS:
            self._losses.add(id(event))
            self._events.append(event)
        inherits = math.isinf(sources.excess)
        if chosen is None:
            held = self.below.held(event, error, rule, u, sources)
            if held.is_wrong or (inherits and error > rule.limit(u, 0.0)):
                self._failed.add(id(event))
                self._events.append(event)
            return self._behind_suspect(held)
        found = self._held(event, chosen)
        if found.is_wrong and inherits:
            return _inherited(found)
        if found.is_open and self.below.held(event, error, rule, u, sources).is_wrong:
            self._suspect(event)
        return self._behind_suspect(found)

    def exact(self, event: Event, limit: float) -> Held:
        """Return what is held against what for integers: no tolerance is for them, but a rule may leave them unjudged."""
        chosen = self._rule(event, False)
        if chosen is not None and chosen.tolerance is None:
            return self._held(event, chosen)
        return self.below.exact(event, limit)

    def excess(self, event: Event, error: float) -> float:
        """Return how much of an event's error what is computed from it may inherit: inf behind what is beyond its limit."""
        chosen = self._rule(event, False)
        if chosen is None:
            return math.inf if id(event) in self._failed else self.below.excess(event, error)
        return math.inf if self._held(event, chosen).is_wrong else error

    def explains_update(self, event: Event) -> bool:
        """Tell whether an update is within the tolerance."""
        chosen = self._rule(event, False)
        if self.fixed.seen.suspect:
            return True
        if chosen is None:
            return self.below.explains_update(event)
        return not self._held(event, chosen).is_wrong

    def start(self, event: Event, limit: float) -> Held:
        """Return what is held against what for weights and inputs that the step begins with."""
        chosen = self._rule(event, False)
        if chosen is None:
            return self._behind_suspect(self.below.start(event, limit))
        found = self._held(event, chosen)
        if found.is_open and self.below.start(event, limit).is_wrong:
            self._suspect(event)
        return self._behind_suspect(found)

    def loss(self, a: float, b: float, limit: float) -> Held:
        """Return what is held against what for the numbers that ``probe.step`` was given as loss."""
        return self._behind_suspect(self._loss(a, b, limit))

    def _loss(self, a: float, b: float, limit: float) -> Held:
        found = self.below.loss(a, b, limit)
        chosen = next((rule for rule in self.fixed.rules if _fits_loss(rule)), None)
        if chosen is None or math.isinf(found.error):
            return found
        if chosen.tolerance is None:
            return Held(found.error, math.nan).exempt("fixed-rule")
        wanted = chosen.tolerance
        if wanted.metric in ("rel_l2", "max_rel"):
            return Held(found.error, wanted.rtol)
        if wanted.metric == "cosine":
            return found
        gap, allowed = abs(a - b), wanted.atol + wanted.rtol * abs(a)
        return Held(gap, allowed, _NAMES["max_abs"], inherits=False) if math.isfinite(gap) else found

    # What cannot be judged

    def _suspect(self, event: Event) -> None:
        """Keep what rounding does not explain and no tolerance can judge: whether it is the fault is not known."""
        self.fixed.seen.suspect = self.fixed.seen.suspect or self._name(event)

    def _behind_suspect(self, held: Held) -> Held:
        """Return the same as inherited where it comes behind such a tensor: events are judged in the order of cause."""
        return _inherited(held) if held.is_wrong and self.fixed.seen.suspect else held

    # Rules

    def _rule(self, event: Event, is_loss: bool) -> JudgingRule | None:
        is_loss = is_loss or id(event) in self._losses
        key = event.pair, event.phase, event.role, is_loss
        if key not in self._rules:
            found = self._rules[key] = next(
                (rule for rule in self.fixed.rules if self._fits(rule, event, is_loss)), None
            )
            if found is not None:
                self.fixed.seen.used.add(found)
        return self._rules[key]

    def _fits(self, rule: JudgingRule, event: Event, is_loss: bool) -> bool:
        if rule.is_of_loss or is_loss:
            return is_loss and _fits_loss(rule)
        pair = self.pairs.matching.pairs[event.pair]
        modules = self.pairs.a.reader.modules[pair.a], self.pairs.b.reader.modules[pair.b]
        if rule.phase not in (None, event.phase) or rule.role not in (None, event.role):
            return False
        if rule.is_of_model:
            return any(node.pair == event.pair and node.parent is None for node in self.pairs.nodes.values())
        return any(fnmatchcase(name, rule.path) for module in modules for name in (module.path, module.class_name))

    # Errors

    def _held(self, event: Event, rule: JudgingRule) -> Held:
        key = id(event)
        if key not in self._measured:
            self._events.append(event)
            self._measured[key] = self._fresh(event, rule)
        return self._measured[key]

    def _fresh(self, event: Event, rule: JudgingRule) -> Held:
        metrics, wanted, seen = event.metrics, rule.tolerance, self.fixed.seen
        assert metrics is not None
        if wanted is None:
            seen.ignored += 1
            return Held(metrics.rel_l2, math.nan, inherits=False, is_fixed=True).exempt("fixed-rule")
        if not metrics.is_known or math.isinf(metrics.rel_l2):
            return Held(metrics.rel_l2, 0.0, inherits=False, is_fixed=True)
        self._note_width(event, wanted)
        limit = 1.0 if wanted.metric == ALLCLOSE else wanted.atol or wanted.rtol
        error = self._error(event, metrics, wanted)
        if math.isnan(error):
            seen.open += 1
            seen.first_open = seen.first_open or self._name(event)
            return Held(metrics.rel_l2, math.nan, inherits=False, is_fixed=True, is_open=True).exempt("needs-values")
        facts = (note(TOLERANCE, wanted=str(wanted), rule=rule.name),) if error > limit else ()
        return Held(error, limit, _NAMES[wanted.metric], facts, False, is_fixed=True)

    def _error(self, event: Event, metrics: Metrics, wanted: Tolerance) -> float:
        """Return the error by the metric of a tolerance; NaN where it is not known whether that is within it."""
        if not metrics.rel_l2:
            return 0.0
        if wanted.metric == "rel_l2":
            return metrics.rel_l2
        if wanted.metric == "cosine":
            return 1 - metrics.cosine
        if metrics.estimated or math.isnan(metrics.max_abs):
            return self._bound(event, metrics, wanted)
        if wanted.metric == ALLCLOSE:
            if not wanted.rtol:
                return metrics.max_abs / wanted.atol if wanted.atol else math.inf
            return self.pairs.worst_share(event, wanted.atol, wanted.rtol)
        return {"max_abs": metrics.max_abs, "mean_abs": metrics.mean_abs, "max_rel": metrics.max_rel}[wanted.metric]

    def _bound(self, event: Event, metrics: Metrics, wanted: Tolerance) -> float:
        """Return what statistics say: the mean, or what the largest error is at least, or at most, if that tells; else NaN.

        No element is off by more than all of them together.
        """
        size = max(1, math.prod(self.pairs.a.shapes[event.row_a]))
        rms = metrics.rel_l2 * max(metrics.norm_a, metrics.norm_b) / math.sqrt(size)
        largest = self._largest(event)
        if wanted.metric == "mean_abs":
            mean = _MEAN_OF_NORMAL * rms  # that of other distributions is less
            return math.nan if wanted.atol / _OF_SKETCHES < mean < wanted.atol * _OF_SKETCHES else mean
        allowed = wanted.atol + wanted.rtol * largest
        least = {"max_abs": rms, "max_rel": rms / largest if largest else math.inf}.get(
            wanted.metric, rms / allowed if allowed else math.inf
        )
        limit = 1.0 if wanted.metric == ALLCLOSE else wanted.atol or wanted.rtol
        if least > limit:
            return least
        most = rms * math.sqrt(size) * (_OF_SKETCHES if metrics.estimated else 1.0)
        is_within = not metrics.is_lower_bound and wanted.metric != "max_rel" and most <= wanted.atol
        return most / (wanted.atol if wanted.metric == ALLCLOSE else 1.0) if is_within else math.nan

    def _largest(self, event: Event) -> float:
        columns, row = self.pairs.a.columns, event.row_a
        return float(max(abs(columns["min"][row]), abs(columns["max"][row])))

    def _note_width(self, event: Event, wanted: Tolerance) -> None:
        """Keep whether zeros would pass in the place of B, and what the absolute tolerance hides."""
        seen, row = self.fixed.seen, event.row_a
        largest, rms = self._largest(event), float(self.pairs.a.columns["rms"][row])
        if not largest or not math.isfinite(largest):
            return
        seen.judged += 1
        seen.sixteen += unit_roundoff(self.pairs.a.dtypes[row]) > SIXTEEN_BIT
        size = {"max_abs": largest, "mean_abs": rms, "max_rel": 1.0, "rel_l2": 1.0, "cosine": 1.0}.get(wanted.metric)
        allowed = wanted.atol or wanted.rtol
        is_wide = wanted.atol + wanted.rtol * largest >= largest if size is None else allowed >= size
        if is_wide:
            seen.wide += 1
            seen.first_wide = seen.first_wide or self._name(event)
        elif wanted.atol > _HIDES * rms and wanted.metric not in ("rel_l2", "max_rel", "cosine"):
            seen.hidden[self._name(event)] = wanted.atol / rms

    def _name(self, event: Event) -> str:
        path = self.pairs.a.reader.modules[self.pairs.matching.pairs[event.pair].a].path or "the root"
        return f"{event.phase.label} {event.role.label} {event.slot_a} of {path}"


def _inherited(held: Held) -> Held:
    """Return the same as a consequence of something else."""
    return held._replace(facts=(), inherits=True, verdict="inherited")


def _fits_loss(rule: JudgingRule) -> bool:
    """Tell whether a rule is about the loss: of its own, or because it is about everything."""
    return rule.is_of_loss or (rule.path == "*" and not rule.is_of_model and rule.role is None
                               and rule.phase in (None, Phase.LOSS))  # fmt: skip


def title_of(rules: Sequence[JudgingRule], preset: str, chosen: Tolerance | None) -> str:
    """Return what the report calls a set of rules."""
    parts = [f"preset {preset}"] if preset else []
    parts += [f"fixed {chosen}"] if chosen is not None else []
    parts += [f"{len(rules)} rules"] if len(rules) > 1 else ["1 rule"] if rules else []
    return ", ".join(parts) or BUILT_IN
