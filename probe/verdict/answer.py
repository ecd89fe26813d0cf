"""The answer: findings as places of both sides, and everything that they rest on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from probe.comparison.answer import Comparison
from probe.comparison.coverage.detection_limit import limit_of_detection
from probe.comparison.coverage.left_out import LeftOut
from probe.comparison.coverage.verdict_margin import margin_of
from probe.comparison.module_pairs import module_pairs
from probe.comparison.notes import Note
from probe.comparison.result import Coverage, Divergence, Inputs, Kind, NodeRef, SlotResult, Verdict
from probe.comparison.run_summary import summary_of
from probe.comparison.settings import DifferingSetting
from probe.matching import Matching
from probe.records import ModuleInfo, Phase, Role
from probe.store.reading.reader import Reader
from probe.structure.tree import Tree
from probe.verdict.confidence import confidence_of
from probe.verdict.coverage import Seen
from probe.verdict.distance.error import View
from probe.verdict.facts import said_of
from probe.verdict.judge.verdicts import Finding, State, Verdicts
from probe.verdict.rows import metrics_of, micro_of, rows_of
from probe.verdict.steps.events import Event
from probe.verdict.steps.step import Step


@dataclass
class Tally:
    """What is counted over the steps."""

    rows: list[SlotResult] = field(default_factory=list)
    paired: int = 0
    only_a: dict[str, int] = field(default_factory=dict)
    """by path of a module without a partner: its calls"""
    only_b: dict[str, int] = field(default_factory=dict)
    seen: Seen = field(default_factory=Seen)
    inputs: dict[str, State | None] = field(default_factory=dict)
    given_alone: tuple[dict[str, None], dict[str, None]] = field(default_factory=lambda: ({}, {}))

    def add(self, step: Step, verdicts: Verdicts) -> None:
        """Take in a step."""
        self.rows += rows_of(step, verdicts)
        self.seen.add(step)
        self.paired += len(step.nodes)
        for half, nodes, only, name in ((step.a, step.of_a, self.only_a, "A"), (step.b, step.of_b, self.only_b, "B")):
            for call in half.calls:
                if call not in nodes and (name, call.module) not in step.hidden:
                    only[call.path] = only.get(call.path, 0) + 1
        for node in step.nodes:
            for event in node.inputs if node.parent is None else ():
                self._add_input(event, verdicts)

    def _add_input(self, event: Event, verdicts: Verdicts) -> None:
        if event.is_paired:
            self.inputs[event.slot_a] = verdicts.state(event)
        elif event.a is not None:
            self.given_alone[0][event.slot_a] = None
        else:
            self.given_alone[1][event.slot_b] = None

    def coverage(self) -> Coverage:
        """Return how much was compared."""
        known = sum(row.metrics.is_known for row in self.rows)
        only = sum(self.only_a.values()), sum(self.only_b.values())
        return Coverage(self.paired, *only, len(self.rows) - known, known)

    def given(self) -> Inputs:
        """Return how what the models were given compares."""
        names = {state: tuple(slot for slot, each in self.inputs.items() if each is state) for state in (*State, None)}
        return Inputs(
            equal=names[State.EQUAL],
            close=names[State.AGREES] + names[State.HEALED],
            different=names[State.INTRODUCED] + names[State.INHERITS],
            not_comparable=names[State.OPEN] + names[None],
            only_a=tuple(self.given_alone[0]),
            only_b=tuple(self.given_alone[1]),
        )


def divergence_of(step: Step, finding: Finding) -> Divergence:
    """Return a finding with its places on both sides and what was found, as notes."""
    event = finding.event
    places_a = {module.path: index for index, module in enumerate(step.a.reader.modules)}
    refs_a, refs_b = [], []
    for path in finding.paths:
        module = places_a.get(path)
        is_alone = module is None or (module not in step.pair_of and path != "")
        if module is not None:
            refs_a.append(_ref(step, finding, step.a.reader.modules[module], "A"))
        if not is_alone and module in step.pair_of:
            refs_b.append(_ref(step, finding, step.b.reader.modules[step.pair_of[module].b], "B"))
        elif module is None:
            refs_b += [_ref(step, finding, each, "B") for each in step.b.reader.modules if each.path == path]
    facts, advice = said_of(step, finding)
    is_measured = finding.code != "longer-updates" and (event is None or event.is_paired)
    return Divergence(
        finding.phase,
        event.role if event is not None else Role.VALUE if finding.phase is Phase.LOSS else Role.DELTA,
        _kind(finding),
        confidence_of(finding),
        tuple(refs_a),
        tuple(refs_b),
        metrics_of(event, finding.error) if finding.error is not None and is_measured else None,
        finding.limit if is_measured else math.nan,
        tuple(facts),
        advice,
        blame=finding.code if finding.phase in (Phase.FORWARD, Phase.BACKWARD) else "",
        is_read=finding.code == "settings",
    )


def answer_of(
    readers: tuple[Reader, Reader],
    matching: Matching,
    tally: Tally,
    findings: tuple[Divergence, ...],
    notes: Iterable[Note],
    reasons: Iterable[Note],
    steps: Sequence[tuple[int, int]],
    left_out: Iterable[LeftOut],
    settings: tuple[DifferingSetting, ...] = (),
) -> Comparison:
    """Assemble the answer."""
    a, b = readers
    trees = Tree(a.modules), Tree(b.modules)
    reasons = tuple(dict.fromkeys(reasons))
    verdict = Verdict.DIVERGED if findings else Verdict.UNDECIDED if reasons else Verdict.ALIGNED
    return Comparison(
        verdict,
        findings,
        tally.coverage(),
        tuple(dict.fromkeys((*notes, *reasons))),
        "built-in model",
        tuple(tally.rows),
        matching,
        str(a.path),
        str(b.path),
        tuple(tally.only_a),
        tuple(tally.only_b),
        inputs=tally.given(),
        reasons=reasons,
        flip=margin_of(verdict, findings, tally.rows),
        unseen=limit_of_detection(verdict, True, tally.rows),
        left_out=tuple(left_out),
        steps=tuple(steps),
        pairs=module_pairs(matching, *trees),
        runs=(summary_of(a, trees[0]), summary_of(b, trees[1])),
        settings=settings,
    )


def _ref(step: Step, finding: Finding, module: ModuleInfo, side: str) -> NodeRef:
    event, half = finding.event, step.a if side == "A" else step.b
    slot = _slot_in(step, event, module.path, side) if event is not None else "loss" if finding.code == "loss" else ""
    call = event.node.a.number if event is not None and event.node is not None else 0
    return NodeRef.of(half.step, micro_of(event), module, call, slot)


def _slot_in(step: Step, event: Event, path: str, side: str) -> str:
    """Return the slot of a tensor that belongs to a module itself; of others that it answers for none."""
    if event.node is not None:
        home = event.node.a.path if side == "A" else event.node.b.path
    else:
        assert event.place is not None
        home = step.path(event.place[0])
        if side == "B" and event.place[0] in step.pair_of:
            home = step.b.reader.modules[step.pair_of[event.place[0]].b].path
    return "" if home != path else event.slot_a if side == "A" else event.slot_b


def _kind(finding: Finding) -> Kind:
    if finding.code == "model-input":
        return Kind.INPUTS
    if finding.code == "unpaired-call":
        return Kind.MISSING
    if finding.error is not None and math.isinf(finding.error.size):
        return Kind.NONFINITE if finding.error.view is View.NON_FINITE else Kind.MISSING
    return {Phase.INIT: Kind.INIT, Phase.UPDATE: Kind.UPDATE}.get(finding.phase, Kind.INTRODUCED)


def findings_in_order(step: Step, findings: Iterable[Finding]) -> Iterator[tuple[Divergence, Finding]]:
    """Yield findings in causal order, each module once, as they are told and as they were found."""
    seen: set[tuple[str, ...]] = set()
    for finding in sorted(findings, key=lambda each: each.phase):
        if finding.paths not in seen:
            seen.add(finding.paths)
            yield divergence_of(step, finding), finding
