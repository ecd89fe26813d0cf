"""Findings of the update phase: one for each parameter, for all that are set alike, or for the optimizer as a whole."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from probe.comparison import causes, tolerance
from probe.comparison.events import StepPairs
from probe.comparison.guards import grouped
from probe.comparison.hints.failing import unless_it_fails
from probe.comparison.metrics import Status
from probe.comparison.optimizers.clipping import treatments
from probe.comparison.optimizers.naming import as_evidence, as_hint, named_settings
from probe.comparison.parameter_kinds import of_one_kind
from probe.comparison.parts import facts
from probe.comparison.result import Divergence, Kind, NodeRef
from probe.comparison.scaling import common_factor
from probe.comparison.settings import (
    Difference,
    ParameterKey,
    different_settings,
    of_equal_optimizers,
    of_group,
    settings_text,
)
from probe.comparison.step_half import Event
from probe.comparison.walk import StepWalk
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
    text: str
    hint: str = ""
    is_weak: bool = False
    """sign flips of vanishing gradients under Adam could look like this"""
    sources: float = 0.0
    """the error of the gradient that was used"""


class UpdateFindings:
    """What is wrong with the updates of one step, as findings of its walk."""

    def __init__(self, walk: StepWalk, pairs: StepPairs) -> None:
        self.walk, self.pairs = walk, pairs
        self.settings = different_settings(pairs)
        """parameters whose hyper-parameters differ, and in what"""

    def _report(self, faults: list[Fault], plural: str, role: Role) -> None:
        if not faults:
            return
        concerned = {self._parameter(fault.event): fault.event for fault in faults}
        judged = {self._parameter(event): event for event in self._judged(role)} | concerned
        if len(concerned) > max(2, tolerance.MOST * len(judged)) or self._are_set_alike(set(concerned), len(judged)):
            self._report_all(faults, f"the {plural} of {len(concerned)} of {len(judged)} parameters differ")
            return
        together: dict[object, list[Fault]] = {}
        for fault in faults:
            differing = None if fault.event.is_one_sided else self.settings.get(self._parameter(fault.event))
            together.setdefault(differing or fault.text, []).append(fault)
        for alike in self._by_module(together, plural, judged):
            fault, differing = alike[0], self.settings.get(self._parameter(alike[0].event))
            named = self._named(alike)
            hint = f"the settings differ: {settings_text([differing])}" if differing else as_hint(named, fault.hint)
            refs = self.walk.refs(fault.event.pair, None, fault.event.slot_a or fault.event.slot_b,
                                   fault.event.slot_b or fault.event.slot_a)  # fmt: skip
            many = of_group(self.pairs, self.settings.values(), differing, [each.event for each in alike])
            texts = (fault.text, *many, *as_evidence(named))
            self._append(fault, refs, texts, hint, is_certain=bool(named))

    def _by_module(
        self, together: Mapping[object, list[Fault]], plural: str, judged: Mapping[ParameterKey, Event]
    ) -> Iterator[list[Fault]]:
        """Report what is wrong with all parameters of a kind as the optimizer's; yield what is left, to be reported by module.

        NaN is born in single parameters, each of which is named.
        """
        for said, alike in together.items():
            concerned = {self._parameter(fault.event): fault.event for fault in alike if not _is_nonfinite(fault.event)}
            used = all(fault.event.role is Role.PARAM_GRAD for fault in alike)
            is_whole = len(concerned) == len(alike)
            kind = of_one_kind(self.pairs, concerned, judged, behind_modules=used) if is_whole else None
            if kind is not None:
                self._report_all(alike, f"the {plural} of {kind[0]} differ: {kind[1]}")
            elif isinstance(said, str):
                yield from ([fault] for fault in alike)
            else:
                yield alike

    def _are_set_alike(self, concerned: set[ParameterKey], judged: int) -> bool:
        """Tell whether what is set differently for these parameters is so for most of all; it does not show in each."""
        differences = {self.settings[key][1:] if key in self.settings else () for key in concerned}
        alike = [each for each in self.settings.values() if each[1:] in differences]
        return len(differences) == 1 and len(alike) > max(2, tolerance.MOST * judged)

    def _report_all(self, faults: list[Fault], text: str, *, by_numbers: bool = True) -> None:
        """One finding for the optimizer as a whole; ``by_numbers`` says whether single updates tell more than rounding."""
        first = faults[0]
        named = self._named(faults) if by_numbers else []
        texts = [text, *common_factor(fault.event for fault in faults), f"the first of them: {first.text}"]
        texts += as_evidence(named)
        concerned = [
            self.settings[key] for key in map(self._parameter, (f.event for f in faults)) if key in self.settings
        ]
        hint = f"the settings differ: {settings_text(concerned)}" if concerned else as_hint(named, first.hint)
        self._append(first, self.walk.root_refs(), tuple(texts), hint, is_whole=True, is_certain=bool(named))

    def _named(self, faults: list[Fault]) -> list[str]:
        """Return the hyper-parameters that differ by the numbers of the parameters that are concerned."""
        if faults[0].event.role is Role.PARAM_GRAD:
            events = self._judged(Role.PARAM_GRAD)
            return unless_it_fails(
                lambda: treatments(self.pairs, events), [], "what was done to gradients", "", self.walk.warnings
            )
        concerned = {self._parameter(fault.event) for fault in faults}
        return self._settings_of([event for event in self._judged(Role.DELTA) if self._parameter(event) in concerned])

    def _settings_of(self, events: list[Event]) -> list[str]:
        return unless_it_fails(
            lambda: named_settings(self.pairs, events), [], "settings by the numbers", "", self.walk.warnings
        )

    def _judged(self, role: Role) -> list[Event]:
        """Return what both sides have of the optimizer's work in a role."""
        return [j.event for j in self.walk.events if j.event.role is role and j.event.phase is Phase.UPDATE]

    def _report_behind(self) -> None:
        """Name another setting of the optimizers behind another finding: it needs no gradients that agree."""
        events = self._judged(Role.DELTA)
        named = self._settings_of(events)
        if not events or not (named or self.settings):
            return
        said = f"the settings differ: {settings_text(self.settings.values())}" if self.settings else named[0]
        texts = ("the optimizers do not follow the same rule, whatever gradients they use", *as_evidence(named))
        self.walk.findings.append(Divergence(
            Phase.UPDATE, Role.DELTA, Kind.UPDATE, 0.9 if self.settings else 0.8, *self.walk.root_refs(),
            events[0].metrics, math.nan, texts, said,
        ))  # fmt: skip

    def _report_unshown(self) -> None:
        """Keep settings that differ and do not show yet: a fact between optimizers of one class, else a doubt.

        No fact where an optimizer has changed nothing, or another learning rate has changed all the same.
        """
        alike = of_equal_optimizers(self.pairs)
        idle = {self._parameter(event) for event in self._judged(Role.DELTA) if self._is_idle(event)}
        certain = {key: each for key, each in self.settings.items() if key in alike and key not in idle}
        others = {key: each for key, each in self.settings.items() if key not in certain}
        if certain:
            self.walk.unshown = self._unshown(certain)
        if others:
            self.walk.doubts.append(_unshown_text(others))

    def _unshown(self, settings: Mapping[ParameterKey, Difference]) -> Divergence:
        """Return the finding that parameters are set otherwise: at the first module of them, or at the model where most are."""
        updates = {self._parameter(event): event for event in self._judged(Role.DELTA)}
        concerned = [event for key, event in updates.items() if key in settings]
        texts, refs = [_unshown_text(settings)], self.walk.root_refs()
        if concerned and len(settings) <= tolerance.MOST * len(updates):
            first, tree = concerned[0], self.pairs.a.reader.modules
            modules = (tree[self.pairs.matching.pairs[event.pair].a].path for event in concerned)
            names = [f"{path}.{event.slot_a}".lstrip(".") for path, event in zip(modules, concerned, strict=True)]
            texts.append(f"set otherwise: {grouped(names, _MOST_NAMED)} (of {len(updates)})")
            refs = self.walk.refs(first.pair, None, first.slot_a, first.slot_b)
        return Divergence(
            Phase.UPDATE, Role.DELTA, Kind.UPDATE, _UNSHOWN, *refs, None, math.nan, tuple(texts),
            "give both optimizers the same settings: what they do with others shows later, or adds up",
        )  # fmt: skip

    def _is_idle(self, event: Event) -> bool:
        """Tell whether two updates are zeros, or bit for bit the same under another learning rate: it was not used."""
        metrics = event.metrics
        if metrics is None or metrics.status is not Status.EQUAL:
            return False
        return not metrics.norm_a or any(
            text.startswith("lr ") for text in self.settings.get(self._parameter(event), ())
        )

    def _append(
        self, fault: Fault, refs: tuple[tuple[NodeRef, ...], tuple[NodeRef, ...]], evidence: tuple[str, ...], hint: str,
        is_whole: bool = False, is_certain: bool = False,
    ) -> None:  # fmt: skip
        event = fault.event
        kind = Kind.MISSING if event.is_one_sided and not is_whole else Kind.UPDATE
        if _is_nonfinite(event):
            kind = Kind.NONFINITE
        confidence = 0.97 if self.settings or is_certain else 0.9
        apart = is_certain or fault.sources <= tolerance.USED.limit(self.walk.u(event), 0.0)
        about = [] if is_whole else [*facts(self.pairs, event, fault.limit)]
        about += [text for text in (causes.born(self.pairs, None, event),) if text and kind is Kind.NONFINITE]
        self.walk.findings.append(
            Divergence(
                Phase.UPDATE,
                event.role,
                kind,
                confidence,
                *refs,
                event.metrics,
                fault.limit,
                (*evidence, *about),
                hint,
                is_independent=apart,
                event=event,
            )
        )

    def _parameter(self, event: Event) -> ParameterKey:
        return event.pair, self.pairs.canonical(event)


def _is_nonfinite(event: Event) -> bool:
    return event.metrics is not None and event.metrics.status is Status.NONFINITE


def _unshown_text(settings: Mapping[ParameterKey, Difference]) -> str:
    count = f"{len(settings)} {'parameter' if len(settings) == 1 else 'parameters'}"
    return f"the optimizers are set differently for {count}: {settings_text(settings.values())}; that does not show in the numbers yet"
