"""Why an answer says less than it seems to: reasons of `UNDECIDED`, and what is said beside the verdict."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from probe.answer.logged import Logged
from probe.answer.metrics import Status
from probe.answer.result import Divergence, SlotResult
from probe.answer.runs import RunSummary
from probe.matching.changes import ChangeKind
from probe.notes import Note, note
from probe.numbers.choices import flips
from probe.records import NEVER_STEPPED, REPLACED, Phase, Role
from probe.settings.behind_last_step import changed_behind
from probe.verdict.coverage import trivial
from probe.verdict.coverage.calls import changes_in
from probe.verdict.coverage.sides import Alone, flags_of, modes_note
from probe.verdict.coverage.tally import Tally, passes
from probe.verdict.judge.loss import loss_error
from probe.verdict.judge.verdicts import State, Verdicts
from probe.verdict.noise.model import BACKWARD
from probe.verdict.rows import why_not
from probe.verdict.side import Side
from probe.verdict.steps.events import Event
from probe.verdict.steps.step import Step

_MOST_OPEN = 0.03
"""share of the tensors behind another routing from which on nothing is decided"""
_COMPUTED = (Phase.FORWARD, Phase.BACKWARD, Phase.GRADIENT)
"""phases that weights have a part in"""
_OF_ORDER = (ChangeKind.SWAPPED, ChangeKind.REORDERED)


@dataclass
class Doubts:
    """What is said of the steps beside their findings."""

    tally: Tally
    runs: tuple[RunSummary, RunSummary]
    notes: list[Note]
    reasons: list[Note]
    """why the runs cannot be called aligned"""
    is_over: bool = False
    """nothing can be told of later steps"""
    is_in_parts: bool = False
    """one side hands over at once what the other does call by call"""
    nan: Note | None = None
    """the first tensor that is NaN on both sides, or loss that is no number there"""
    overflowed: dict[int, Note] = field(default_factory=dict)
    """steps that both sides skipped, since their gradients were not finite"""
    logged: Logged = field(default_factory=Logged)
    alone: Alone = field(default_factory=Alone)

    def doubt(self, *said: Note) -> None:
        """Take in why the runs cannot be called aligned."""
        self.reasons += said
        self.notes += said

    # Steps

    def of_step(self, step: Step, verdicts: Verdicts, findings: list[Divergence]) -> list[Divergence]:
        """Look at a step; return its findings, none if what one side did not record may be behind them."""
        self._tell_of_passes(step, verdicts)
        aborted = [half.is_aborted for half in (step.a, step.b)]
        if self.is_over or aborted[0] != aborted[1]:
            self.is_over = True
            return []
        lacking = _lacks_initial(step)
        if findings and lacking and step.a.step:
            self.is_over = True
            path = (findings[0].a or findings[0].b)[0].path
            self.doubt(note("weights-at-step-unknown", step=step.a.step, path=path, side=lacking))
            findings = []
        if findings and (alone := _gradient_without_outputs(verdicts)) is not None:
            self.doubt(alone)
            findings = []
        self._look_for_nan(step, verdicts)
        self.notes += (*modes_note(step), *verdicts.told, *_healed(step, verdicts))
        self.notes += (each for each in (_padded(step) if step.padding else ()) if each not in self.notes)
        flipped = flips(step.nodes)
        self.notes += (each for each in flipped if each.code == "choices-flipped")
        if verdicts.unused_factor != 1:
            scaling = note("gradients-scaled", factor=float(f"{verdicts.unused_factor:.6g}"))
            self.notes.append(note("factor-not-used", scaling=scaling, advice=note("loss-scaling")))
        if not findings:
            self.notes += self.logged.said(step.a.step, step.a.scalars, step.b.scalars)
            self.notes += flags_of(step)
            self.alone.add(step)
            self.doubt(*verdicts.doubts, *_unjudged_loss(step, verdicts), *_unjudged_gradients(step))
            self.doubt(*(each for each in _replaced(step) if each not in self.reasons))
            for side in ("A", "B"):
                if f"reduced-in-{side}" in verdicts.notes:
                    is_alone = (step.a if side == "A" else step.b).reader.info.world_size == 1
                    self.notes.append(note("gradients-reduced-behind-backward", side=side, is_alone=is_alone))
            if _lacks_end(step):
                ends = [row for row in self.tally.rows if row.role is Role.OUTPUT and row.path_a in self.tally.roots]
                self.doubt(*trivial.mostly_not_comparable(ends, True))
            if all(each.code != "held-in-parts" for each in self.reasons):
                self.doubt(*_in_parts(step))
            self.doubt(*(each for each in flipped if each.code == "choices-beyond-margin"))
            forward = [each for event, each in verdicts.by_event.items() if event.phase is Phase.FORWARD]
            replayed = any("routing" in half.reader.info.config for half in (step.a, step.b))
            hidden = sum(each.state is State.OPEN and not (replayed and each.code == "other-size") for each in forward)
            is_said = any(each.code == "behind-other-routing" for each in self.reasons)
            is_mixed = "mixed" in verdicts.notes
            is_much = is_mixed or (hidden > _MOST_OPEN * len(forward) and (verdicts.routed or replayed))
            if is_much and not is_said:
                known = {"file": step.a.reader.path.name, "is_replayed": replayed}
                known["has_values"] = all(half.reader.info.config.get("task") == "tensor" for half in (step.a, step.b))
                self.doubt(note("behind-other-routing", count=hidden, total=len(forward), **known))
        self.is_in_parts |= any(node.parent is None and step.is_in_parts(node) for node in step.nodes)
        if step.batches.are_same:
            self.tally.changes += changes_in(step, self.tally.trees)
            changed = next((each for each in self.tally.changes if each.kind in _OF_ORDER), None)
            if changed is not None and not any(event.phase is Phase.FORWARD for event in verdicts.by_event):
                self.doubt(note("order-of-calls-not-recorded", change=changed.note))
        return [self._weighed(step, finding) for finding in findings]

    def _tell_of_passes(self, step: Step, verdicts: Verdicts) -> None:
        """Say which micro-batches were joined, or could not be compared."""
        batches, counts = step.batches, [sum(micro >= 0 for micro in passes(step, name)) for name in "AB"]
        joined = {"micro-batches-joined": batches.joined, "evaluations-joined": batches.joined_evaluations}
        self.notes += [note(code, step=step.a.step, count=count) for code, count in joined.items() if count]
        forwards = [sum(micro < 0 for micro in {call.micro for call in half.calls}) for half in (step.a, step.b)]
        if forwards[0] != forwards[1] and not batches.joined_evaluations:
            self.notes.append(note("other-number-of-forwards", a=forwards[0], b=forwards[1]))
        if batches.are_same:
            return
        never = [any(NEVER_STEPPED in text for _, _, text in half.reader.notes) for half in (step.a, step.b)]
        split = {"a": counts[0], "b": counts[1]}
        if never[0] != never[1]:
            self.is_over = True
            mine, theirs = counts if never[0] else counts[::-1]
            self.doubt(note("steps-not-told-apart", side="A" if never[0] else "B", forwards=mine, of_other=theirs))
        elif batches.part:
            self.is_over = not verdicts.findings
            half, other = (step.a, step.b) if batches.part == "A" else (step.b, step.a)
            mine, theirs = half.reader.info, other.reader.info
            known = {"rank": mine.rank, "ranks": mine.world_size, "other_ranks": theirs.world_size}
            share = note("part-of-the-batch", side=batches.part, other="B" if batches.part == "A" else "A", **known)
            self.doubt(note("part-of-batch-not-compared", share=share))
        elif not all(counts):
            self.is_over = not any(event.role is Role.PARAM_GRAD for event in verdicts.by_event)
            off = [name for name, run in zip("AB", self.runs, strict=True) if run.is_without_gradients]
            said = note("no-micro-batch-on-one-side", step=step.a.step, **split)
            self.doubt(note("gradients-off-on-one-side", side=off[0]) if len(off) == 1 else said)
        elif not batches.differing:
            self.notes.append(note("micro-batches-differ", step=step.a.step, **split))

    def _look_for_nan(self, step: Step, verdicts: Verdicts) -> None:
        """Keep the first tensor that is NaN on both sides; gradients of a step that both skipped stand apart."""
        found = _first_nan(step, verdicts)
        if found is None:
            return
        if _is_skipped(step, verdicts):
            self.overflowed[step.a.step] = found
        else:
            self.nan = self.nan or found

    def _weighed(self, step: Step, finding: Divergence) -> Divergence:
        """Return a finding of a later step with half its confidence, if updates of weights were not recorded."""
        unrecorded = tuple(name for name, half in (("A", step.a), ("B", step.b)) if _is_without_updates(half))
        if finding.phase not in _COMPUTED or not unrecorded:
            return finding
        return halved(finding, note("updates-not-recorded", sides=unrecorded))

    # The answer

    def of_answer(
        self, findings: list[Divergence], steps: list[tuple[int, int]], min_coverage: float
    ) -> list[Divergence]:
        """Look at all that was compared; return the findings, the first less sure if little stands behind it."""
        tally, coverage = self.tally, self.tally.coverage()
        known = [row for row in tally.rows if row.metrics.is_known]
        if is_small(tally, min_coverage):
            counted = {"paired": coverage.paired, "total": coverage.total, "side": coverage.smaller}
            told = note("few-calls-have-a-counterpart", **counted)
            findings = [halved(each, told) if at == 0 else each for at, each in enumerate(findings)]
            sizes = {name: tuple(getattr(run, name) for run in self.runs) for name in ("models", "modules")}
            said = note("different-models", **sizes, **counted, wanted=min_coverage)
            self.notes.append(said)
            self.reasons.insert(0, said)
        if not findings and not _of_models(known):
            tasks = [reader.info.config.get("task") for reader in tally.readers]
            self.doubt(trivial.nothing_compared(tasks))
        self.doubt(*trivial.mostly_not_comparable(tally.rows, self.is_in_parts))
        weights = tally.left.weights_without_counterpart(tally.readers, tally.loose)
        if any(weights.values()):
            self.notes.append(note("weights-without-counterpart", a=tuple(weights["A"]), b=tuple(weights["B"])))
        self.notes += trivial.other_dtypes(known)
        if not findings:
            self._doubt_numbers(known, steps, has_others=any(weights.values()))
        return findings

    def _doubt_numbers(self, known: list[SlotResult], steps: list[tuple[int, int]], has_others: bool) -> None:
        """Doubt an answer behind NaN, or over zeros."""
        tally = self.tally
        are_trained = any(row.role is Role.DELTA and max(row.metrics.norm_a, row.metrics.norm_b) > 0 for row in known)
        nan = self.nan or (None if are_trained else next(iter(self.overflowed.values()), None))
        if nan is not None:
            self.doubt(note("not-judged-behind-nan", nan=nan))
        bounds = sum(row.metrics.is_lower_bound for row in known)
        if bounds and any("summaries" in reader.info.config for reader in tally.readers):
            self.doubt(note("summaries-alone", count=bounds, total=len(known)))
        self.notes += self.alone.notes()
        self.notes += changed_behind(tally.readers, steps[-1]) if steps else ()
        told = [row for row in known if row.role is not Role.DELTA] if tally.has_updates else known
        self.doubt(*trivial.reasons(told, tally, has_others=has_others))
        infinite = [row for row in known if row.metrics.status is Status.NONFINITE and row.verdict != "not judged"]
        for row in [row for row in infinite if row.step not in self.overflowed][:1]:
            place = {"role": row.role.label, "slot": row.slot_a, "path": row.path_a}
            self.doubt(note("not-finite-in-other-places", step=row.step, phase=row.phase.label, **place))


def is_small(tally: Tally, min_coverage: float) -> bool:
    """Return True if too few calls have a counterpart for the two to be one model."""
    coverage = tally.coverage()
    return bool(coverage.total) and coverage.share < min_coverage


def tells_of_models(tally: Tally, min_coverage: float) -> bool:
    """Return True if enough was compared for settings that differ to say something: not of two models."""
    return bool(_of_models([row for row in tally.rows if row.metrics.is_known])) and not is_small(tally, min_coverage)


def halved(finding: Divergence, fact: Note) -> Divergence:
    """Return a finding with half its confidence, and why."""
    return replace(finding, confidence=finding.confidence / 2, facts=(*finding.facts, fact))


def _of_models(rows: list[SlotResult]) -> list[SlotResult]:
    """Return the rows that say something of the models: any two optimizers count their steps."""
    return [row for row in rows if row.role is not Role.STATE]


def _lacks_initial(step: Step) -> str:
    """Return the side that alone did not record with what weights the step began, or ``""``."""
    lacking = [name for name, half in (("A", step.a), ("B", step.b)) if not half.params.get((Phase.INIT, Role.PARAM))]
    return lacking[0] if len(lacking) == 1 else ""


def _is_without_updates(half: Side) -> bool:
    """Return True if a side that goes on from an earlier step was not to record what training makes of its weights."""
    return half.goes_on and not half.wants(Phase.UPDATE) and any(call.has_gradients for call in half.calls)


def _healed(step: Step, verdicts: Verdicts) -> Iterator[Note]:
    """Yield what differs and every use takes back, and what of the model's inputs only the loss was made of."""
    found = {event: each for event, each in verdicts.by_event.items() if event.node is not None}
    names: dict[str, dict[str, None]] = {}
    for event, each in ((event, each) for event, each in found.items() if each.state is State.HEALED):
        code, node = "rows-without-loss" if each.code == "rows-without-loss" else "border-lies-elsewhere", event.node
        names.setdefault(code, {})[f"{event.role.label} {event.slot_a} of {node and node.a.path or 'the root'}"] = None
    yield from (note(code, places=tuple(places)) for code, places in names.items())
    for event in (event for event, each in found.items() if each.code == "label-inputs" and not verdicts.findings):
        agree = note("loss-and-gradients-agree")
        yield note("input-differs-without-effect", input=event.slot_a, move=None, why=agree)


def _padded(step: Step) -> Iterator[Note]:
    """Yield that one side pads a table, such as a vocabulary, and what is compared of it."""
    events = [*(out for node in step.nodes for out in node.outputs), *step.parameters.events(Phase.INIT, Role.PARAM)]
    sized = [(event, *(set() if each is None else set(each.form) for each in event.both)) for event in events]
    for a, b in sorted(step.padding):
        errors = [step.error(event) for event, x, y in sized if a in x - y and b in y - x]
        how = "left-out" if None in errors else "statistics" if any(each.is_bound for each in errors) else "values"
        if errors:
            yield note("padded-table", a=a, b=b, how=how)


def _unjudged_loss(step: Step, verdicts: Verdicts) -> Iterator[Note]:
    """Yield that the loss differs, and what it is computed from is not known or rules leave it out."""
    if "loss-not-judged" in verdicts.notes:
        yield note("loss-not-judged")
    if "loss-without-outputs" in verdicts.notes:
        yield note("loss-without-outputs", step=step.a.step, a=step.a.scalars["loss"], b=step.b.scalars["loss"])


def _gradient_without_outputs(verdicts: Verdicts) -> Note | None:
    """Say that the first gradient differs where no output was compared: the fault may lie in the forward pass."""
    first = verdicts.findings[0] if verdicts.findings else None
    if first is None or first.event is None or first.event.phase is not Phase.BACKWARD or first.paths != ("",):
        return None
    if first.error is None or any(event.phase is Phase.FORWARD for event in verdicts.by_event):
        return None
    return note("gradient-without-outputs", step=first.step, slot=first.event.slot_a, error=first.error.size)


def _unjudged_gradients(step: Step) -> Iterator[Note]:
    """Yield that the optimizer used other gradients, where those that backward left were not recorded on both sides."""
    if all(half.params.get((Phase.GRADIENT, Role.PARAM_GRAD)) for half in (step.a, step.b)):
        return
    used = step.parameters.events(Phase.UPDATE, Role.PARAM_GRAD)
    known = [(error.size, event.u) for event in used if (error := step.error(event)) is not None]
    wrong = [size for size, u in known if size > BACKWARD.floor(u)]
    if wrong:
        yield note("used-gradients-alone-recorded", step=step.a.step, error=max(wrong))


def _in_parts(step: Step) -> Iterator[Note]:
    """Yield that ranks of one side hold weights in parts, or are handed parts."""
    weights = list(filter(step.is_part, step.parameters.events(Phase.INIT, Role.PARAM)))
    given = [each for node in step.nodes for each in (*node.inputs, *node.outputs) if step.is_part(each)]
    for event in (weights or given)[:1] if step.batches.are_same else ():
        a, b = ((half.reader.info.rank, half.reader.info.world_size) for half in (step.a, step.b))
        yield note("held-in-parts", a=a, b=b, count=len(weights), why=why_not(event), **_place(step, event))


def _place(step: Step, event: Event) -> dict[str, str]:
    return {"role": event.role.label, "slot": event.slot_a, "path": step.path(step.modules_of(event)[0])}


def _replaced(step: Step) -> Iterator[Note]:
    """Yield that a side uses other weights than those that it began with: what becomes of them is not recorded."""
    for side, half in (("A", step.a), ("B", step.b)):
        is_replaced = any(text.startswith(REPLACED) for _, _, text in half.reader.notes)
        if is_replaced and not half.params.get((Phase.UPDATE, Role.PARAM)):
            yield note("weights-replaced", side=side)


def _lacks_end(step: Step) -> bool:
    """Return True if nothing that the models return could be compared, nor anything that is made of it."""
    ends = [out for node in step.nodes if node.parent is None for out in node.outputs if out.is_paired]
    made = [*step.parameters.events(Phase.GRADIENT, Role.PARAM_GRAD)] if ends else []
    return bool(ends) and loss_error(step) is None and all(step.error(each) is None for each in (*ends, *made))


def _first_nan(step: Step, verdicts: Verdicts) -> Note | None:
    for event in sorted(verdicts.by_event, key=lambda each: each.phase):
        if event.a is not None and event.b is not None and event.a.bad[0] and event.b.bad[0]:
            return note("nan-on-both-sides", step=step.a.step, phase=event.phase.label, **_place(step, event))
    losses = [half.scalars.get("loss", 0.0) for half in (step.a, step.b)]
    if any(map(math.isfinite, losses)):
        return None
    a, b = ("NaN" if math.isnan(loss) else f"{loss:g}" for loss in losses)
    return note("loss-not-finite", step=step.a.step, a=a, b=b)


def _is_skipped(step: Step, verdicts: Verdicts) -> bool:
    """Return True if gradients alone have NaN, and both sides left the weights as they were, as loss scaling does."""
    before = [event for event in verdicts.by_event if event.phase < Phase.BACKWARD]
    has_nan = any(tensor.bad[0] for event in before for tensor in (event.a, event.b) if tensor is not None)
    losses = [half.scalars.get("loss", 0.0) for half in (step.a, step.b)]
    updates = [half.params.get((Phase.UPDATE, Role.DELTA), {}).values() for half in (step.a, step.b)]
    changes = any(tensor.norm > 0 or sum(tensor.bad) for each in updates for tensor in each)
    return not has_nan and all(map(math.isfinite, losses)) and not changes
