"""Open two recordings, pair them, judge their steps in turn, assemble the answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from probe.comparison.blame.guesses import paired_modules
from probe.comparison.fusion.one_to_many import completed
from probe.errors import ConfigError
from probe.mapping import LayerMapping, load_mapping
from probe.matching import Matching
from probe.matching.enclosing import with_enclosing
from probe.ranks.opening import open_reader
from probe.records import Phase, Role
from probe.store.reading.reader import Reader
from probe.structure.tree import Tree
from probe.verdict.answer import Answer, Comparison, Divergence
from probe.verdict.judge.verdicts import Finding, State
from probe.verdict.judge.walk import Weights, judge
from probe.verdict.side import Side, steps_of
from probe.verdict.steps.step import Step

_LEAST_PAIRED = 0.2
"""share of the calls that have a partner, below which nothing is decided"""
_MOST_OPEN = 0.03
"""share of the tensors behind another routing from which on nothing is decided"""
_LEAST_CONFIDENCE = 0.6


def compare(
    a: str | Path, b: str | Path, mapping: str | Path | Mapping[str, Any] | None = None, **options: object
) -> Comparison:
    """Compare two recordings and name the first place where they really diverge.

    Raises
    ------
    ConfigError
        an option of `probe.compare` is given that this engine does not have yet
    """
    unknown = [name for name, value in options.items() if value]
    if unknown:
        raise ConfigError(f"{', '.join(unknown)}: not in the new engine yet; unset PROBE_ENGINE")
    parsed = load_mapping(mapping)
    with open_reader(a, dict(parsed.dims)) as first, open_reader(b, dict(parsed.dims)) as second:
        first.require_steps()
        second.require_steps()
        return _compare(first, second, _matching(first, second, parsed))


def _matching(a: Reader, b: Reader, mapping: LayerMapping) -> Matching:
    sides = (a, Tree(a.modules)), (b, Tree(b.modules))
    found = paired_modules(*sides, mapping, None, False, _LEAST_CONFIDENCE)
    return completed(with_enclosing(found, sides[0][1], sides[1][1]), a, b)


def _compare(a: Reader, b: Reader, matching: Matching) -> Comparison:
    counts: Counter[State] = Counter()
    findings: list[Finding] = []
    unshown: list[Finding] = []
    doubts: list[str] = []
    notes: list[str] = []
    common = [step for step in steps_of(a) if step in set(steps_of(b))]
    before: Weights | None = None
    for number in common:
        step = Step(Side(a, number, matching.views_a), Side(b, number, matching.views_b), matching)
        verdicts = judge(step, before)
        counts += verdicts.counts
        notes += verdicts.notes
        unshown += [each for each in verdicts.findings if not each.is_shown]
        findings += [each for each in verdicts.findings if each.is_shown]
        if findings:
            break
        share = len(step.nodes) / max(len(step.a.calls), 1)
        if share < _LEAST_PAIRED:
            doubts.append(f"{share:.0%} of the calls were compared")
        forward = [each.state for event, each in verdicts.by_event.items() if event.phase is Phase.FORWARD]
        if verdicts.routed and forward.count(State.OPEN) > _MOST_OPEN * len(forward):
            open_ = forward.count(State.OPEN)
            doubts.append(f"routing: {open_} of {len(forward)} tensors lie behind choices that rounding may change")
        if _are_both_broken(step):
            break
        before = _weights_after(step)
    named = findings or unshown[:1]
    is_open = not named and (doubts or not common)
    answer = Answer.DIVERGED if named else Answer.UNDECIDED if is_open else Answer.ALIGNED
    return Comparison(answer, tuple(map(Divergence, named)), tuple(doubts), dict(counts), tuple(dict.fromkeys(notes)))


def _weights_after(step: Step) -> Weights:
    events = ((event, step.error(event)) for event in step.parameters.events(Phase.UPDATE, Role.PARAM))
    return [(event, error) for event, error in events if error is not None]


def _are_both_broken(step: Step) -> bool:
    """Return True if weights of both sides hold NaN or infinity."""
    events = step.parameters.events(Phase.UPDATE, Role.PARAM)
    return any(sum(each.a.bad) and sum(each.b.bad) for each in events if each.a is not None and each.b is not None)
