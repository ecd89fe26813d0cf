"""Settings that the two recordings hold otherwise, and the findings that they belong to. They never change the verdict."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from probe.answer.result import Divergence
from probe.answer.runs import have_equal_settings
from probe.notes import Note, note
from probe.settings.comparing import Difference, held_against
from probe.settings.reading.recordings import source_of_reader
from probe.settings.resolving import resolved
from probe.settings.setting import Category, Place
from probe.store.reading.reader import Reader

_MOST_NAMED = 2
"""settings in a finding's advice"""


@dataclass(frozen=True, slots=True)
class DifferingSetting:
    """A setting that differs, and the findings that it may be behind."""

    difference: Difference
    findings: tuple[int, ...] = ()
    """indices into `Comparison.divergences`"""

    @property
    def note(self) -> Note:
        """What both sides have."""
        a, b = self.difference.a, self.difference.b
        return note("setting", a_name=a.name, b_name=b.name, a=a.shown, b=b.shown)

    @property
    def is_unseen(self) -> bool:
        """Whether it should change numbers, and no finding shows it."""
        return self.difference.effect.counts and not self.findings

    def as_json(self) -> dict[str, object]:
        """Return the fields by their names in JSON."""
        return {**self.difference.as_json(), "findings": list(self.findings), "text": str(self.note)}


def settings_that_differ(a: Reader, b: Reader, findings: Sequence[Divergence]) -> tuple[DifferingSetting, ...]:
    """Return the settings that differ: those of the first findings first, then what is likelier to change numbers."""
    if have_equal_settings(a, b):
        return ()
    held = held_against(*(resolved(source_of_reader(reader)) for reader in (a, b)))
    found = [
        DifferingSetting(each, tuple(at for at, finding in enumerate(findings) if belongs(each, finding)))
        for each in held.differences
    ]
    return tuple(sorted(found, key=lambda each: each.findings[0] if each.findings else len(findings)))


def belongs(difference: Difference, finding: Divergence) -> bool:
    """Return True if a setting may be behind a finding: by the places that the table gives it."""
    row = difference.row
    return row is not None and any(_is_at(place, finding) for place in row.places)


def _is_at(place: Place, finding: Divergence) -> bool:
    if place.hints and any(hint.get("name") in place.hints for hint in finding.hints):
        return True
    found = finding.phase.label, finding.role.label, finding.kind.value
    wanted = place.phases, place.roles, place.kinds
    if any(each and label not in each for each, label in zip(wanted, found, strict=True)):
        return False
    classes = [ref.class_name.lower() for ref in (*finding.a, *finding.b)]
    return any(fnmatchcase(name, pattern) for name in classes for pattern in place.classes)


def with_settings(findings: Iterable[Divergence], settings: Iterable[DifferingSetting]) -> list[Divergence]:
    """Return the findings with the settings that belong to them; their advice names the first of these."""
    return [_named(finding, [each for each in settings if at in each.findings]) for at, finding in enumerate(findings)]


def _named(finding: Divergence, settings: list[DifferingSetting]) -> Divergence:
    if not settings:
        return finding
    names = tuple(each.difference.setting for each in settings)
    named = [each for each in settings if not (finding.is_read and each.difference.category is Category.OPTIMIZER)]
    if not named:  # its facts have them
        return replace(finding, settings=names)
    said = tuple(each.note for each in named[:_MOST_NAMED])
    return replace(finding, settings=names, advice=note("settings-behind", settings=said, first=finding.advice))


def unseen_settings(settings: Iterable[DifferingSetting]) -> list[Note]:
    """Say which settings should change numbers, and show in no finding; of the optimizers' the walk over the updates says so."""
    return [
        note("setting-shows-nowhere", setting=each.note)
        for each in settings
        if each.is_unseen and not (each.difference.row and each.difference.row.recorded.startswith("group."))
    ]
