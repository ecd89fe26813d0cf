"""The rung that people fix: tolerances for all tensors, or for those of some modules, and tensors that are not judged.

A fixed tolerance overrides what is measured or modelled. What is so wide that zeros would pass as well says nothing,
and does not end as aligned.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from probe.answer.metrics import bound_of, lets_zeros_pass
from probe.answer.result import SlotResult
from probe.defaults import ALLCLOSE
from probe.mapping.judging import JudgingRule, Tolerance
from probe.notes import Note, note
from probe.records import Phase, Role
from probe.verdict.distance.error import Error
from probe.verdict.noise.model import Row
from probe.verdict.noise.rung import BUILT_IN, Check, Noise, StepNoise
from probe.verdict.noise.tolerances import measured
from probe.verdict.steps.events import Event
from probe.verdict.steps.step import Step

_NAMES = {
    "max_abs": "max |Δ|",
    "mean_abs": "mean |Δ|",
    "max_rel": "max relative |Δ|",
    "cosine": "1 − cosine",
    ALLCLOSE: "times the tolerance",
}
IGNORED, OPEN = "fixed-rule", "needs-values"
"""codes of what is not judged: as a rule says, or since statistics do not tell"""


@dataclass
class _Seen:
    """What came up while events were judged."""

    judged: int = 0
    wide: list[str] = field(default_factory=list)
    """tensors of which zeros would pass"""
    hidden: dict[str, float] = field(default_factory=dict)
    """by place: share of a tensor's size that the absolute tolerance is"""
    open: list[str] = field(default_factory=list)
    suspect: str = ""
    """the first of those that rounding does not explain: what is wrong behind it may follow from it"""
    ignored: int = 0
    rates: dict[float, float] = field(default_factory=dict)
    """learning rates, and the share of them that the absolute tolerance is"""
    used: set[JudgingRule] = field(default_factory=set)


class Fixed(Noise):
    """Rules in the order in which they are asked, and the rung that judges what none fits."""

    def __init__(self, rules: Sequence[JudgingRule], below: Noise, title: str) -> None:
        self.rules, self.below, self.seen = tuple(rules), below, _Seen()
        covers_all = any(rule.path == "*" and rule.phase is None and rule.role is None for rule in rules)
        self.name = title if covers_all else f"{title}; else {below.name}"
        self.uses_built_in = below.uses_built_in and not covers_all

    def at(self, step: Step) -> StepNoise:
        """Return what decides in one step."""
        return _FixedStep(self, step, self.below.at(step))

    def notes(self) -> Iterable[Note]:
        """Yield what is to be said of the rung itself, when all steps have been judged."""
        yield from self.below.notes()
        seen = self.seen
        for rule in self.rules:
            if rule.path != "*" and rule not in seen.used:
                yield note("rule-fits-nothing", rule=rule.name, path=rule.path, is_first=rule is self.rules[0])
        if seen.ignored:
            yield note("ignored-by-rules", count=seen.ignored)
        if seen.wide and 2 * len(seen.wide) <= seen.judged:
            yield note("zeros-would-pass", count=len(seen.wide), total=seen.judged, first=seen.wide[0])
        if seen.hidden:
            place, share = max(seen.hidden.items(), key=lambda each: each[1])
            yield note("tolerance-hides-tensors", count=len(seen.hidden), place=place, share=share)
        for rate, share in seen.rates.items():
            yield note("tolerance-hides-learning-rate", rate=rate, share=share)

    def reasons(self, rows: Sequence[SlotResult]) -> Iterable[Note]:
        """Yield why, by this rung, nothing may be called aligned."""
        yield from self.below.reasons(rows)
        seen, said = self.seen, {row.verdict for row in rows}
        if 2 * len(seen.wide) > seen.judged:
            yield note("tolerance-too-wide", count=len(seen.wide), total=seen.judged)
        if seen.open:
            yield note("tolerance-needs-values", count=len(seen.open), first=seen.open[0])
        is_beyond = any(row.verdict == "inherited" and row.is_fixed and row.error > row.limit for row in rows)
        if seen.suspect and "inherited" in said and "introduced" not in said:
            yield note("suspect-needs-values", place=seen.suspect)
        elif is_beyond and "introduced" not in said:
            yield note("sources-of-tolerance-not-judged")
        outputs = [row for row in rows if row.role is Role.OUTPUT]
        if seen.ignored and all(row.verdict == "not judged" for row in outputs):
            yield note("outputs-ignored-by-rules")


class _FixedStep(StepNoise):
    """One step by fixed tolerances."""

    def __init__(self, fixed: Fixed, step: Step, below: StepNoise) -> None:
        self.fixed, self.step, self.below, self.seen = fixed, step, below, fixed.seen
        self._rules: dict[tuple[int, Phase, Role, bool], JudgingRule | None] = {}
        absolute = [rule.tolerance.atol for rule in fixed.rules if rule.tolerance is not None and rule.tolerance.atol]
        for group in step.a.groups if absolute else ():
            rate = group.hyper.get("lr")
            if isinstance(rate, float) and rate and 100 * min(absolute) > abs(rate):
                self.seen.rates[rate] = min(absolute) / abs(rate)
        for role in (Role.DELTA, Role.STATE) if absolute else ():  # which are not judged behind a finding
            for event in step.parameters.events(Phase.UPDATE, role):
                rule = self._rule(event)
                if rule is not None and rule.tolerance is not None:
                    self._note_hidden(event, rule.tolerance)

    def check(self, event: Event, error: Error, built_in: Check, row: Row, u: float, excess: float) -> Check:
        """Return what is held against what."""
        rule, below = self._rule(event), self.below.check(event, error, built_in, row, u, excess)
        assert event.a is not None
        if rule is None or (rule.tolerance is not None and event.a.kind == "integer"):
            return self._behind_suspect(below)
        found = self._held(event, error, rule)
        if found.code == OPEN and below.is_wrong:
            self.seen.suspect = self.seen.suspect or self._name(event)
        return self._behind_suspect(found)

    def excess(self, event: Event, error: Error) -> float | None:
        """Return how much of an event's error counts for what is made of it."""
        return self.below.excess(event, error) if self._rule(event) is None else None

    def explains(self, event: Event, error: Error) -> bool:
        """Return True if an update is within the tolerance."""
        rule = self._rule(event)
        if rule is None or self.seen.suspect:
            return bool(self.seen.suspect) or self.below.explains(event, error)
        return not self._held(event, error, rule).is_wrong

    def loss(self, a: float, b: float, built_in: Check) -> Check:
        """Return what is held against what for the numbers that the program logged as its loss."""
        rule = next((each for each in self.fixed.rules if _fits_loss(each)), None)
        below = self.below.loss(a, b, built_in)
        if rule is None or math.isinf(below.error):
            return self._behind_suspect(below)
        wanted = rule.tolerance
        if wanted is None:
            return replace(below, is_wrong=False, code=IGNORED)
        if wanted.metric == "cosine":
            return self._behind_suspect(below)
        gap, limit, measure = below.error, wanted.rtol, ""
        if wanted.metric not in ("rel_l2", "max_rel"):
            gap, limit, measure = abs(a - b), wanted.atol + wanted.rtol * abs(a), _NAMES["max_abs"]
        return self._behind_suspect(Check(gap, limit, gap > limit, measure=measure, is_fixed=True))

    def _behind_suspect(self, check: Check) -> Check:
        """Return the same as a consequence if something before it could not be judged and may be the fault."""
        return replace(check, facts=(), is_consequence=True) if check.is_wrong and self.seen.suspect else check

    def _rule(self, event: Event) -> JudgingRule | None:
        module = event.place[0] if event.node is None and event.place is not None else -1
        node = event.node
        module = node.a.module if node is not None else module
        is_loss = node is not None and node.parent is None and event.phase is Phase.FORWARD and _is_number(event)
        key = module, event.phase, event.role, is_loss
        if key not in self._rules:
            found = next((rule for rule in self.fixed.rules if self._fits(rule, module, event, is_loss)), None)
            self._rules[key] = found
            self.seen.used |= {found} if found is not None else set()
        return self._rules[key]

    def _fits(self, rule: JudgingRule, module: int, event: Event, is_loss: bool) -> bool:
        if is_loss:
            return _fits_loss(rule)
        if rule.phase not in (None, event.phase) or rule.role not in (None, event.role):
            return False
        modules = [self.step.a.reader.modules[module]]
        if module in self.step.pair_of:
            modules.append(self.step.b.reader.modules[self.step.pair_of[module].b])
        return any(fnmatchcase(name, rule.path) for each in modules for name in (each.path, each.class_name))

    def _held(self, event: Event, error: Error, rule: JudgingRule) -> Check:
        wanted, seen = rule.tolerance, self.seen
        if wanted is None:
            seen.ignored += 1
            return Check(error.size, math.nan, False, is_fixed=True, code=IGNORED)
        limit = bound_of(wanted)
        if math.isinf(error.size):
            return Check(error.size, limit, True, is_fixed=True)
        self._note_width(event, wanted)
        figure = measured(wanted, self.step, event, error).figure
        if math.isnan(figure):
            seen.open.append(self._name(event))
            return Check(error.size, math.nan, False, is_fixed=True, code=OPEN)
        facts = (note("tolerance", wanted=str(wanted), rule=rule.name),) if figure > limit else ()
        return Check(figure, limit, figure > limit, False, _NAMES.get(wanted.metric, ""), facts, True)

    def _note_width(self, event: Event, wanted: Tolerance) -> None:
        """Keep whether zeros would pass in the place of B, and what the absolute tolerance hides."""
        a, seen = event.a, self.seen
        if a is None or not a.largest or not math.isfinite(a.largest):
            return
        seen.judged += 1
        if lets_zeros_pass(wanted, a.largest, a.rms):
            seen.wide.append(self._name(event))
        else:
            self._note_hidden(event, wanted)

    def _note_hidden(self, event: Event, wanted: Tolerance) -> None:
        is_absolute = wanted.metric not in ("rel_l2", "max_rel", "cosine")
        if is_absolute and event.a is not None and 100 * wanted.atol > event.a.rms > 0:
            self.seen.hidden[self._name(event)] = wanted.atol / event.a.rms

    def _name(self, event: Event) -> str:
        module = event.node.a.module if event.node is not None else event.place[0] if event.place is not None else 0
        return f"{event.phase.label} {event.role.label} {event.slot_a} of {self.step.path(module) or 'the root'}"


def _is_number(event: Event) -> bool:
    return event.role is Role.OUTPUT and event.a is not None and not event.a.form


def _fits_loss(rule: JudgingRule) -> bool:
    """Return True if a rule is about the loss, because it is about everything."""
    return rule.path == "*" and rule.role is None and rule.phase in (None, Phase.LOSS)


def title_of(rules: Sequence[JudgingRule], chosen: Tolerance | None) -> str:
    """Return what the report calls a set of rules."""
    parts = [f"fixed {chosen}"] if chosen is not None else []
    parts += [f"{len(rules)} rules"] if len(rules) > 1 else ["1 rule"] if rules else []
    return ", ".join(parts) or BUILT_IN
