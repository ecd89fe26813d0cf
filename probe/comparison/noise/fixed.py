"""The rung that people fix: tolerances for all tensors, or for those of some modules.

A fixed tolerance overrides what is measured or modelled. It knows nothing of what an error was computed from, so only the
first tensors beyond it are findings: those computed from them inherit. What is so wide that zeros would pass as well says
nothing, and does not end as aligned.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial

from probe.comparison.noise import tolerance as built_in
from probe.comparison.noise.interface import BUILT_IN, FIXED_NAMES, TOLERANCE, Check, Noise, StepNoise
from probe.comparison.noise.tolerance import Level, Rule
from probe.comparison.noise.tolerated import bound_of, largest_of, lets_zeros_pass, measured
from probe.comparison.notes import Note, note
from probe.comparison.result import SlotResult
from probe.comparison.steps.events import StepPairs
from probe.comparison.steps.step_half import Event
from probe.mapping.judging import JudgingRule, Tolerance
from probe.records import Phase, Role

_HIDES = 0.01
"""from this share of a tensor's size on, what an absolute tolerance hides is said"""
_MOST = 0.5


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
    """

    def __init__(self, rules: Sequence[JudgingRule], below: Noise, title: str) -> None:
        self.rules, self.below = tuple(rules), below
        self.seen = _Seen()
        covers_all = any(not (r.path != "*" or r.phase or r.role) for r in rules)
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
        self._measured: dict[int, Check] = {}
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

    def check(self, event: Event, error: float, rule: Rule, u: float, sources: Level) -> Check:
        """Return what is held against what."""
        chosen = self._rule(event, rule is built_in.LOSS)
        if rule is built_in.LOSS:
            self._losses.add(id(event))
            self._events.append(event)
        inherits = math.isinf(sources.excess)
        if chosen is None:
            check = self.below.check(event, error, rule, u, sources)
            if check.is_wrong or (inherits and error > rule.limit(u, 0.0)):
                self._failed.add(id(event))
                self._events.append(event)
            return self._behind_suspect(check)
        found = self._held(event, chosen)
        if found.is_wrong and inherits:
            return _inherited(found)
        if found.is_open and self.below.check(event, error, rule, u, sources).is_wrong:
            self._suspect(event)
        return self._behind_suspect(found)

    def exact(self, event: Event, limit: float) -> Check:
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

    def start(self, event: Event, limit: float) -> Check:
        """Return what is held against what for weights and inputs that the step begins with."""
        chosen = self._rule(event, False)
        if chosen is None:
            return self._behind_suspect(self.below.start(event, limit))
        found = self._held(event, chosen)
        if found.is_open and self.below.start(event, limit).is_wrong:
            self._suspect(event)
        return self._behind_suspect(found)

    def loss(self, a: float, b: float, limit: float) -> Check:
        """Return what is held against what for the numbers that ``probe.step`` was given as loss."""
        return self._behind_suspect(self._loss(a, b, limit))

    def _loss(self, a: float, b: float, limit: float) -> Check:
        found = self.below.loss(a, b, limit)
        chosen = next((rule for rule in self.fixed.rules if _fits_loss(rule)), None)
        if chosen is None or math.isinf(found.error):
            return found
        if chosen.tolerance is None:
            return Check(found.error, math.nan).exempt("fixed-rule")
        wanted = chosen.tolerance
        if wanted.metric in ("rel_l2", "max_rel"):
            return Check(found.error, wanted.rtol)
        if wanted.metric == "cosine":
            return found
        gap, allowed = abs(a - b), wanted.atol + wanted.rtol * abs(a)
        return Check(gap, allowed, FIXED_NAMES["max_abs"], inherits=False) if math.isfinite(gap) else found

    # What cannot be judged

    def _suspect(self, event: Event) -> None:
        """Keep what rounding does not explain and no tolerance can judge: whether it is the fault is not known."""
        self.fixed.seen.suspect = self.fixed.seen.suspect or self._name(event)

    def _behind_suspect(self, check: Check) -> Check:
        """Return the same as inherited where it comes behind such a tensor: events are judged in the order of cause."""
        return _inherited(check) if check.is_wrong and self.fixed.seen.suspect else check

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
        if is_loss:
            return _fits_loss(rule)
        pair = self.pairs.matching.pairs[event.pair]
        modules = self.pairs.a.reader.modules[pair.a], self.pairs.b.reader.modules[pair.b]
        if rule.phase not in (None, event.phase) or rule.role not in (None, event.role):
            return False
        return any(fnmatchcase(name, rule.path) for module in modules for name in (module.path, module.class_name))

    # Errors

    def _held(self, event: Event, rule: JudgingRule) -> Check:
        key = id(event)
        if key not in self._measured:
            self._events.append(event)
            self._measured[key] = self._fresh(event, rule)
        return self._measured[key]

    def _fresh(self, event: Event, rule: JudgingRule) -> Check:
        metrics, wanted, seen = event.metrics, rule.tolerance, self.fixed.seen
        assert metrics is not None
        if wanted is None:
            seen.ignored += 1
            return Check(metrics.rel_l2, math.nan, inherits=False, is_fixed=True).exempt("fixed-rule")
        if not metrics.is_known or math.isinf(metrics.rel_l2):
            return Check(metrics.rel_l2, 0.0, inherits=False, is_fixed=True)
        self._note_width(event, wanted)
        limit = bound_of(wanted)
        share = partial(self.pairs.worst_share, event, wanted.atol, wanted.rtol)
        error = measured(wanted, metrics, self.pairs.a, event.row_a, share).figure
        if math.isnan(error):
            seen.open += 1
            seen.first_open = seen.first_open or self._name(event)
            return Check(metrics.rel_l2, math.nan, inherits=False, is_fixed=True, is_open=True).exempt("needs-values")
        facts = (note(TOLERANCE, wanted=str(wanted), rule=rule.name),) if error > limit else ()
        return Check(error, limit, FIXED_NAMES[wanted.metric], facts, False, is_fixed=True)

    def _note_width(self, event: Event, wanted: Tolerance) -> None:
        """Keep whether zeros would pass in the place of B, and what the absolute tolerance hides."""
        seen, row = self.fixed.seen, event.row_a
        largest, rms = largest_of(self.pairs.a, row), float(self.pairs.a.columns["rms"][row])
        if not largest or not math.isfinite(largest):
            return
        seen.judged += 1
        if lets_zeros_pass(wanted, largest, rms):
            seen.wide += 1
            seen.first_wide = seen.first_wide or self._name(event)
        elif wanted.atol > _HIDES * rms and wanted.metric not in ("rel_l2", "max_rel", "cosine"):
            seen.hidden[self._name(event)] = wanted.atol / rms

    def _name(self, event: Event) -> str:
        path = self.pairs.a.reader.modules[self.pairs.matching.pairs[event.pair].a].path or "the root"
        return f"{event.phase.label} {event.role.label} {event.slot_a} of {path}"


def _inherited(check: Check) -> Check:
    """Return the same as a consequence of something else."""
    return check._replace(facts=(), inherits=True, verdict="inherited")


def _fits_loss(rule: JudgingRule) -> bool:
    """Tell whether a rule is about the loss, because it is about everything."""
    return rule.path == "*" and rule.role is None and rule.phase in (None, Phase.LOSS)


def title_of(rules: Sequence[JudgingRule], chosen: Tolerance | None) -> str:
    """Return what the report calls a set of rules."""
    parts = [f"fixed {chosen}"] if chosen is not None else []
    parts += [f"{len(rules)} rules"] if len(rules) > 1 else ["1 rule"] if rules else []
    return ", ".join(parts) or BUILT_IN
