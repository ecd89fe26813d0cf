"""What the verdict says nothing of: what was not recorded, what has no counterpart, what could not be judged. Facts, no words."""

from __future__ import annotations

import enum
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from probe.answer.result import Coverage, SlotResult
from probe.answer.shift import Shift
from probe.config import RecordConfig
from probe.notes import Fields
from probe.records import Phase, Role
from probe.store.reading.reader import Reader

_MOST_NAMED = 10_000
"""steps"""
_OF_TRAINING = {Phase.BACKWARD, Phase.GRADIENT, Phase.UPDATE}


class What(enum.StrEnum):
    """What sort of thing was not compared."""

    PHASES = "phases"
    MODULES = "modules"
    STEPS = "steps"
    LOSS = "loss"
    WEIGHTS = "weights"
    CALLS = "calls"
    BUFFERS = "buffers"
    MODES = "modes"
    GRADIENTS = "gradients"
    TENSORS = "tensors"


class Why(enum.StrEnum):
    """Why it was not."""

    NOT_RECORDED = "not recorded"
    """on the side that is named, or on both"""
    UNPAIRED = "no counterpart"
    """what the side that is named has, or both have"""
    IGNORED = "ignored"
    """a mapping leaves it out"""
    DIFFERS = "differs"
    """it differs before the first step, which by itself is no fault"""
    NOT_JUDGED = "not judged"
    """nothing is known that its error could be held against"""
    NOT_FINITE = "not finite"
    """on both sides, in a step that both skipped"""


@dataclass(frozen=True, slots=True)
class LeftOut(Fields):
    """One sort of thing that a verdict says nothing of, and why."""

    what: What
    why: Why
    side: str = ""
    """``A`` or ``B`` where one alone is concerned"""
    names: tuple[str, ...] = ()
    count: int = 0
    total: int = 0
    """of how many, where that says something; 0 elsewhere"""


def unrecorded_phases(readers: Sequence[Reader], recorded: Sequence[Iterable[int]]) -> Iterator[LeftOut]:
    """Yield the phases that neither side was to record, and those that one side recorded and the other was not to.

    Parameters
    ----------
    readers
        both recordings
    recorded
        by side, the phases of which anything was recorded
    """
    wants = [_config(reader) for reader in readers]
    found: dict[str, list[str]] = {"": [], "A": [], "B": []}
    for phase in (each for each in Phase if each is not Phase.LOSS):
        lacking = [name for name, each in zip("AB", wants, strict=True) if not each.wants_phase(phase)]
        if len(lacking) == 2:
            found[""].append(phase.label)
        elif lacking and phase in recorded[lacking == ["A"]]:
            found[lacking[0]].append(phase.label)
    for side, names in found.items():
        if names:
            yield LeftOut(What.PHASES, Why.NOT_RECORDED, side, tuple(names), len(names))


def unrecorded_modules(readers: Sequence[Reader]) -> Iterator[LeftOut]:
    """Yield how many modules the filters of both sides, or of one, left out."""
    found = []
    for reader in readers:
        config = _config(reader)
        names = [each.path for each in reader.modules if not config.wants_module(each.path, each.class_name)]
        found.append((tuple(names), len(reader.modules)))
    if found[0] == found[1]:
        found, sides = found[:1], [""]
    else:
        sides = ["A", "B"]
    for side, (names, total) in zip(sides, found, strict=True):
        if names:
            yield LeftOut(What.MODULES, Why.NOT_RECORDED, side, names, len(names), total)


def uncompared_steps(readers: Sequence[Reader], shift: Shift) -> Iterator[LeftOut]:
    """Yield the steps, by A's numbers, that the two runs made and that were recorded on one side only, or on neither.

    What lies before the steps that the user pairs is none of them.
    """
    by, recorded, made = shift.to_b, list[set[int]](), range(0)
    for reader, first, back in ((readers[0], shift.a, 0), (readers[1], shift.b, by)):
        mine = {step - back for step in reader.steps["step"].tolist() if step >= first}
        count = reader.steps_made
        if count is None and _config(reader).steps is not None:
            count = 1 + max(mine, default=0) + back
            yield LeftOut(What.STEPS, Why.NOT_RECORDED, "AB"[len(recorded)])
        recorded.append(mine)
        made = max(made, range(first - back, max(0, (count or 0) - back)), key=len)  # both begin where the pairs do
    seen = recorded[0] | recorded[1]
    total = len(made) + sum(step not in made for step in seen)
    # a run may have made any number of steps, and a damaged file say so: they are counted, and the first ones named
    neither = tuple(itertools.islice((str(step) for step in made if step not in seen), _MOST_NAMED))
    if total > len(seen):
        yield LeftOut(What.STEPS, Why.NOT_RECORDED, "", neither, total - len(seen), total)
    for side, steps in (("A", recorded[1] - recorded[0]), ("B", recorded[0] - recorded[1])):
        if steps:
            names = tuple(map(str, sorted(steps)))
            yield LeftOut(What.STEPS, Why.NOT_RECORDED, side, names, len(names), total)


def uncompared_loss(
    readers: Sequence[Reader],
    steps: Iterable[tuple[int, int]],
    phases: Sequence[Iterable[int]],
    slots: Iterable[SlotResult],
) -> Iterator[LeftOut]:
    """Yield the loss where it was not given on both sides, and no model returned one: not where nothing trained."""
    both = list(steps)
    has = [any("loss" in reader.scalars_of(pair[side]) for pair in both) for side, reader in enumerate(readers)]
    trains = any(_OF_TRAINING.intersection(each) for each in phases)
    is_unknown = not all(_config(reader).wants_phase(phase) for reader in readers for phase in _OF_TRAINING)
    if all(has) or not (trains or is_unknown or any(has)):
        return
    if not any(slot.metrics.is_known and _may_be_loss(slot) for slot in slots):
        yield LeftOut(What.LOSS, Why.NOT_RECORDED, "" if not any(has) else "B" if has[0] else "A")


def _may_be_loss(slot: SlotResult) -> bool:
    """Return True if a single number was compared that a model returned, or that the program logged."""
    is_number = not slot.shape_a and slot.role in (Role.OUTPUT, Role.VALUE) and not slot.metrics.of_integers
    return is_number and (slot.role is Role.VALUE or not slot.path_a)


def uncompared_calls(
    coverage: Coverage, weights: Mapping[str, Sequence[str]], ignored: int, min_coverage: float
) -> Iterator[LeftOut]:
    """Yield the weights, and the calls, that were recorded and not compared.

    Parameters
    ----------
    coverage
        how many calls were compared
    weights
        by side, the names of those that were not compared
    ignored
        how many weights were not compared since a mapping ignores their modules
    min_coverage
        share of a side's calls below which it is said
    """
    for side, names in weights.items():
        if names:
            yield LeftOut(What.WEIGHTS, Why.UNPAIRED, side, tuple(names), len(names))
    if ignored:
        yield LeftOut(What.WEIGHTS, Why.IGNORED, count=ignored)
    for side, alone in (("A", coverage.only_a), ("B", coverage.only_b)):
        total = coverage.paired + alone
        if coverage.paired < min_coverage * total:
            yield LeftOut(What.CALLS, Why.UNPAIRED, side, count=alone, total=total)


def other_modes(modes: Iterable[tuple[bool, bool]]) -> Iterator[LeftOut]:
    """Yield how many modules ran in training mode on one side only: what they do in the other was not compared.

    Parameters
    ----------
    modes
        of each of them, whether it ran in training mode, in A and in B
    """
    for (a, _), count in sorted(Counter(modes).items(), reverse=True):
        yield LeftOut(What.MODES, Why.DIFFERS, "A" if a else "B", count=count)


def overflowed(steps: Iterable[int]) -> Iterator[LeftOut]:
    """Yield the steps of which the gradients were not compared, since both sides skipped them: they were not finite."""
    for step in steps:
        yield LeftOut(What.GRADIENTS, Why.NOT_FINITE, names=(str(step),), count=1)


def unjudged(slots: Iterable[SlotResult], buffers: Mapping[str, Sequence[str]]) -> Iterator[LeftOut]:
    """Yield the buffers and other tensors that differ, or may, without being judged.

    Parameters
    ----------
    slots
        what was looked at
    buffers
        by side, the names of those that have no counterpart; under ``""``, of those that have another form there
    """
    for side, names in buffers.items():
        if names:
            yield LeftOut(What.BUFFERS, Why.UNPAIRED, side, tuple(names), len(names))
    found: tuple[dict[str, None], dict[str, None]] = {}, {}
    for slot in slots:
        is_apart = slot.metrics.why is not None and slot.metrics.why.code == "calls-do-not-join"
        if is_apart or (slot.verdict == "not judged" and slot.metrics.rel_l2 != 0):
            name = f"{slot.path_a}.{slot.slot_a}".strip(".")
            found[slot.role is Role.BUFFER][name if slot.role is Role.BUFFER else f"{slot.role.label} {name}"] = None
    for what, why, names in ((What.BUFFERS, Why.DIFFERS, found[1]), (What.TENSORS, Why.NOT_JUDGED, found[0])):
        if names:
            yield LeftOut(what, why, "", tuple(names), len(names))


def _config(reader: Reader) -> RecordConfig:
    return RecordConfig.from_recording(reader.info.config)
