"""Findings of the update phase: one for each parameter, for all that are set alike, or for the optimizer as a whole."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from probe.comparison.blame import causes
from probe.comparison.coverage.guards import grouped
from probe.comparison.distance.metrics import Status
from probe.comparison.failing import unless_it_fails
from probe.comparison.fusion.parts import facts
from probe.comparison.ledger.known import State, Walk
from probe.comparison.ledger.places import refs_of, root_refs, roundoff
from probe.comparison.noise import tolerance
from probe.comparison.notes import Note, note
from probe.comparison.optimizer.clipping import treatments
from probe.comparison.optimizer.exact_updates import ExactUpdates
from probe.comparison.optimizer.parameter_kinds import of_one_kind
from probe.comparison.optimizer.settings import (
    Difference,
    ParameterKey,
    decay_rounding,
    different_settings,
    of_equal_optimizers,
    of_group,
    settings_note,
)
from probe.comparison.result import Divergence, Kind, NodeRef
from probe.comparison.steps.events import StepPairs
from probe.comparison.steps.step_half import Event
from probe.comparison.walk.scaling import common_factor
from probe.records import Phase, Role

_MOST_NAMED = 4
_UNSHOWN = 0.6
"""confidence in settings that differ without a trace in the numbers"""


@dataclass(frozen=True, slots=True)
class Fault:
    """One parameter whose update is wrong."""

    event: Event
    limit: float
    """the largest relative error that would have been noise; NaN where something else tells"""
    said: Note
    advice: Note | None = None
    is_weak: bool = False
    """sign flips of vanishing gradients under Adam could look like this"""
    sources: float = 0.0
    """the error of the gradient that was used"""


class Trained(NamedTuple):
    """What an update changes."""

    rows: tuple[int | None, int | None]
    """of the parameter before the update, in A and in B"""
    dtypes: set[str]
    """of what is trained on both sides: the parameter, or its copy"""


class Updating:
    """What is wrong with the updates of one step, as findings of its walk."""

    def __init__(self, walk: Walk, pairs: StepPairs, state: State) -> None:
        self.walk, self.pairs, self.state = walk, pairs, state
        self.settings = different_settings(pairs)
        """parameters whose hyper-parameters differ, and in what"""
        self.exact = ExactUpdates(walk, self.settings)
        self.kept: dict[Any, Any] = {}
        self.rounding = decay_rounding(pairs)
        self.source_errors: dict[tuple[int, str], float] = {}
        self.known_trained: dict[tuple[int, str, str], Trained] = {}


def report(updating: Updating, faults: list[Fault], plural: str, role: Role) -> None:
    """Report faults: one finding for each parameter, for those that are alike, or for the optimizer."""
    if not faults:
        return
    concerned = {parameter_of(updating, fault.event): fault.event for fault in faults}
    judged = {parameter_of(updating, event): event for event in events_of(updating, role)} | concerned
    if len(concerned) > max(2, tolerance.MOST * len(judged)) or _are_set_alike(updating, set(concerned), len(judged)):
        report_all(
            updating, faults, note("parameters-differ-in", what=Note(plural), count=len(concerned), judged=len(judged))
        )
        return
    together: dict[object, list[Fault]] = {}
    for fault in faults:
        differing = None if fault.event.is_one_sided else updating.settings.get(parameter_of(updating, fault.event))
        together.setdefault(differing or fault.said, []).append(fault)
    for alike in _by_module(updating, together, plural, judged):
        fault, differing = alike[0], updating.settings.get(parameter_of(updating, alike[0].event))
        named = _named(updating, alike)
        hint = settings_differ([differing]) if differing else _as_hint(named, fault.advice)
        refs = refs_of(updating.walk, fault.event.pair, None, fault.event.slot_a or fault.event.slot_b,
                               fault.event.slot_b or fault.event.slot_a)  # fmt: skip
        many = of_group(updating.pairs, updating.settings.values(), differing, [each.event for each in alike])
        texts = (fault.said, *many, *_as_evidence(named))
        _append(updating, fault, refs, texts, hint, is_certain=bool(named))


def _by_module(
    updating: Updating, together: Mapping[object, list[Fault]], plural: str, judged: Mapping[ParameterKey, Event]
) -> Iterator[list[Fault]]:
    """Report what is wrong with all parameters of a kind as the optimizer's; yield what is left, to be reported by module.

    NaN is born in single parameters, each of which is named.
    """
    for said, alike in together.items():
        concerned = {
            parameter_of(updating, fault.event): fault.event for fault in alike if not _is_nonfinite(fault.event)
        }
        used = all(fault.event.role is Role.PARAM_GRAD for fault in alike)
        is_whole = len(concerned) == len(alike)
        kind = of_one_kind(updating.pairs, concerned, judged, behind_modules=used) if is_whole else None
        if kind is not None:
            report_all(updating, alike, note("kind-of-parameters-differs-in", what=Note(plural), **kind))
        elif isinstance(said, Note):
            yield from ([fault] for fault in alike)
        else:
            yield alike


def _are_set_alike(updating: Updating, concerned: set[ParameterKey], judged: int) -> bool:
    """Tell whether what is set differently for these parameters is so for most of all; it does not show in each."""
    differences = {updating.settings[key][1:] if key in updating.settings else () for key in concerned}
    alike = [each for each in updating.settings.values() if each[1:] in differences]
    return len(differences) == 1 and len(alike) > max(2, tolerance.MOST * judged)


def report_all(updating: Updating, faults: list[Fault], said: Note, *, by_numbers: bool = True) -> None:
    """One finding for the optimizer as a whole; ``by_numbers`` says whether single updates tell more than rounding."""
    first = faults[0]
    named = _named(updating, faults) if by_numbers else []
    texts = [said, *common_factor(fault.event for fault in faults), note("first-of-them", said=first.said)]
    texts += _as_evidence(named)
    concerned = [
        updating.settings[key]
        for key in map(partial(parameter_of, updating), (f.event for f in faults))
        if key in updating.settings
    ]
    hint = settings_differ(concerned) if concerned else _as_hint(named, first.advice)
    _append(updating, first, root_refs(updating.walk), tuple(texts), hint, is_whole=True, is_certain=bool(named))


def _named(updating: Updating, faults: list[Fault]) -> list[Note]:
    """Return the hyper-parameters that differ by the numbers of the parameters that are concerned."""
    if faults[0].event.role is Role.PARAM_GRAD:
        events = events_of(updating, Role.PARAM_GRAD)
        return unless_it_fails(
            lambda: treatments(updating.pairs, events), [], "what was done to gradients", "", updating.walk.ledger.notes
        )
    concerned = {parameter_of(updating, fault.event) for fault in faults}
    return _settings_of(
        updating, [event for event in events_of(updating, Role.DELTA) if parameter_of(updating, event) in concerned]
    )


def _settings_of(updating: Updating, events: list[Event]) -> list[Note]:
    from probe.comparison.optimizer import naming  # where the updates agree, none of it is needed

    traces, steps = naming.Traces(updating.pairs), (updating.pairs.step, updating.pairs.step_b)
    paired = [event for event in events if not event.is_one_sided]
    return unless_it_fails(
        lambda: naming.named_settings(traces, paired, steps),
        [],
        "settings by the numbers",
        "",
        updating.walk.ledger.notes,
    )


def events_of(updating: Updating, role: Role) -> list[Event]:
    """Return what both sides have of the optimizer's work in a role."""
    return [j.event for j in updating.walk.ledger.events if j.event.role is role and j.event.phase is Phase.UPDATE]


def report_behind(updating: Updating) -> None:
    """Name another setting of the optimizers behind another finding: it needs no gradients that agree."""
    events = events_of(updating, Role.DELTA)
    named = _settings_of(updating, events)
    if not events or not (named or updating.settings):
        return
    said = settings_differ(updating.settings.values()) if updating.settings else named[0]
    texts = (note("optimizers-follow-other-rules"), *_as_evidence(named))
    updating.walk.ledger.findings.append(Divergence(
        Phase.UPDATE, Role.DELTA, Kind.UPDATE, 0.9 if updating.settings else 0.8, *root_refs(updating.walk),
        events[0].metrics, math.nan, texts, said,
    ))  # fmt: skip


def report_unshown(updating: Updating) -> None:
    """Keep settings that differ and do not show yet: a fact between optimizers of one class, else a doubt.

    No fact where an optimizer has changed nothing, or another learning rate has changed all the same.
    """
    alike = of_equal_optimizers(updating.pairs)
    idle = {parameter_of(updating, event) for event in events_of(updating, Role.DELTA) if _is_idle(updating, event)}
    certain = {key: each for key, each in updating.settings.items() if key in alike and key not in idle}
    others = {key: each for key, each in updating.settings.items() if key not in certain}
    if certain:
        updating.walk.ledger.unshown = _unshown(updating, certain)
    if others:
        updating.walk.ledger.reasons.append(_unshown_note(others))


def _unshown(updating: Updating, settings: Mapping[ParameterKey, Difference]) -> Divergence:
    """Return the finding that parameters are set otherwise: at the first module of them, or at the model where most are."""
    updates = {parameter_of(updating, event): event for event in events_of(updating, Role.DELTA)}
    concerned = [event for key, event in updates.items() if key in settings]
    texts, refs = [_unshown_note(settings)], root_refs(updating.walk)
    if concerned and len(settings) <= tolerance.MOST * len(updates):
        first, tree = concerned[0], updating.pairs.a.reader.modules
        modules = (tree[updating.pairs.matching.pairs[event.pair].a].path for event in concerned)
        names = [f"{path}.{event.slot_a}".lstrip(".") for path, event in zip(modules, concerned, strict=True)]
        texts.append(note("set-otherwise", names=grouped(names, _MOST_NAMED), total=len(updates)))
        refs = refs_of(updating.walk, first.pair, None, first.slot_a, first.slot_b)
    return Divergence(
        Phase.UPDATE, Role.DELTA, Kind.UPDATE, _UNSHOWN, *refs, None, math.nan, tuple(texts),
        note("same-settings"),
    )  # fmt: skip


def _is_idle(updating: Updating, event: Event) -> bool:
    """Tell whether two updates are zeros, or bit for bit the same under another learning rate: it was not used."""
    metrics = event.metrics
    if metrics is None or metrics.status is not Status.EQUAL:
        return False
    return not metrics.norm_a or any(
        isinstance(each, Note) and each.facts.get("setting", each).facts.get("name") == "lr"
        for each in updating.settings.get(parameter_of(updating, event), ())
    )


def _append(
    updating: Updating, fault: Fault, refs: tuple[tuple[NodeRef, ...], tuple[NodeRef, ...]], facts_of: tuple[Note, ...],
    advice: Note | None, is_whole: bool = False, is_certain: bool = False,
) -> None:  # fmt: skip
    event = fault.event
    kind = Kind.MISSING if event.is_one_sided and not is_whole else Kind.UPDATE
    if _is_nonfinite(event):
        kind = Kind.NONFINITE
    confidence = 0.97 if updating.settings or is_certain else 0.9
    apart = is_certain or fault.sources <= tolerance.USED.limit(roundoff(updating.walk, event), 0.0)
    about = [] if is_whole else [*facts(updating.pairs, event, fault.limit)]
    about += [text for text in (causes.born(updating.pairs, None, event),) if text and kind is Kind.NONFINITE]
    updating.walk.ledger.findings.append(
        Divergence(
            Phase.UPDATE,
            event.role,
            kind,
            confidence,
            *refs,
            event.metrics,
            fault.limit,
            (*facts_of, *about),
            advice,
            is_independent=apart,
            event=event,
            is_read=bool(updating.settings),
        )
    )


def parameter_of(updating: Updating, event: Event) -> ParameterKey:
    """Return which parameter an event is of."""
    return event.pair, updating.pairs.canonical(event)


def _is_nonfinite(event: Event) -> bool:
    return event.metrics is not None and event.metrics.status is Status.NONFINITE


def settings_differ(differences: Iterable[Difference]) -> Note:
    """Say which settings differ."""
    return note("settings-differ", settings=settings_note(differences))


def _unshown_note(settings: Mapping[ParameterKey, Difference]) -> Note:
    return note("settings-not-shown", count=len(settings), settings=settings_note(settings.values()))


def _as_evidence(named: list[Note]) -> list[Note]:
    """Return what the numbers say as lines of evidence."""
    return [note("by-the-numbers", said=each) for each in named]


def _as_hint(named: list[Note], otherwise: Note | None) -> Note | None:
    """Return what the numbers say in the place of a hint, if they say anything."""
    return note("by-the-numbers", said=named[0]) if named else otherwise
