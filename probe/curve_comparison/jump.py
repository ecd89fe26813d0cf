"""From the step in which curves part to the place in the model: by the recordings, or what to record for it."""

from __future__ import annotations

from collections.abc import Mapping as Sections
from pathlib import Path
from typing import Any

from probe.answer.result import Divergence
from probe.answer.shift import Shift
from probe.comparing import compare
from probe.curve_comparison.reading.series import Given, RunCurves
from probe.curve_comparison.result import Batches, Finding, FindingKind, Sample
from probe.errors import ProbeError
from probe.ranks.opening import open_reader
from probe.records import DirectionName

Mapping = str | Path | Sections[str, Any] | None

_MOST_STEPS = 64
"""steps in common that are compared here; of longer recordings the command is named"""
_MOST_SAMPLES, _MOST_NUMBERS = 4, 16
"""of a batch that are shown"""
_FIRST_STEPS = "it grew: record the first steps in full on both sides, probe.start(model, path, steps=[0, 1])"


def jump(
    a: RunCurves, b: RunCurves, findings: list[Finding], shift: Shift, mapping: Mapping, direction: DirectionName | None
) -> tuple[Divergence | None, str]:
    """Return the first place that is wrong in the step in which two runs part, and what to do to find it.

    Where both recordings hold that step in full, they are compared. `probe.compare` takes all common steps of two
    files, so this is done for short recordings only.
    """
    first = next((each for each in findings if each.kind is not FindingKind.STANDARD), None)
    if first is None or first.kind in (FindingKind.SETTING, FindingKind.METRIC):
        return None, ""  # a setting is the place itself, a metric comes of the whole training
    steps = _wanted(first, a)
    if a.model is None or b.model is None:
        return None, _to_record(steps, a) if first.is_sudden else _FIRST_STEPS
    full = sorted(a.model.full_steps & {step - shift.to_b for step in b.model.full_steps})
    if steps[-1] not in full:
        return None, _to_record(steps, a)
    command = f"probe compare {a.path} {b.path}" + (f" -lm {mapping}" if isinstance(mapping, (str, Path)) else "")
    command += f" --steps {shift.a}:{shift.b}" if shift.to_b else ""
    if len(full) > _MOST_STEPS:
        return None, f"both recordings hold step {steps[-1]} in full: {command}"
    try:
        found = compare(a.path, b.path, mapping, steps=(shift.a, shift.b), direction=direction).first_divergence
    except ProbeError:
        return None, f"both recordings hold step {steps[-1]} in full: {command}"
    if found is None:
        return None, f"{command} finds no wrong place in what is recorded in full ({_said(full)})"
    return found, command


def _wanted(first: Finding, a: RunCurves) -> list[int]:
    """Return the steps to record: that of the finding, and the one before, whose update may have caused it.

    What grew was there from the beginning: of that, the first two steps.
    """
    least = min((int(series.steps[0]) for series in a.series.values()), default=0)
    steps = [first.step - 1, first.step] if first.is_sudden else [least, least + 1]
    return [step for step in steps if step >= least]


def _to_record(steps: list[int], a: RunCurves) -> str:
    said = f"record {_said(steps)} in full on both sides"
    if a.model is not None:
        return f"{said}: probe.start(model, path, steps={steps})"
    least = min((int(series.steps[0]) for series in a.series.values()), default=0)
    counted = [step - 1 for step in steps] if least >= 1 else steps
    return f"{said}: probe.start(model, path, steps={counted}) (it counts the calls of probe.step() from 0)"


def _said(steps: list[int]) -> str:
    return f"step{'s' if len(steps) > 1 else ''} {', '.join(map(str, steps[:8]))}{' …' if len(steps) > 8 else ''}"


# ---- batches -------------------------------------------------------------------------------------------


def batches_of(a: RunCurves, b: RunCurves, findings: list[Finding], shift: Shift) -> Batches | None:
    """Return whether both models were given the same, and the samples of the step in which the runs part."""
    common = [
        step
        for step in sorted(a.batches)
        if step + shift.to_b in b.batches and _micros(a.batches[step]) == _micros(b.batches[step + shift.to_b])
    ]
    if not common:
        return None
    apart = ((step, _differing(a.batches[step], b.batches[step + shift.to_b])) for step in common)
    first, names = next(((step, names) for step, names in apart if names), (None, ()))
    moved = None if first is None else _moved(a, b, first, shift.to_b, names)
    at = next((each.step for each in findings if each.is_sudden and each.step in common), first)
    samples: tuple[Sample, ...] = ()
    if at is not None:
        samples = _samples("A", a, at)
        if not samples or (first is not None and first <= at):
            samples += _samples("B", b, at + shift.to_b)
    return Batches(len(common), first, names, moved, samples)


def _micros(given: tuple[Given, ...]) -> int:
    """Return the number of micro-batches: the same data in other parts has other hashes."""
    return max(each.micro for each in given)


def _differing(mine: tuple[Given, ...], theirs: tuple[Given, ...]) -> tuple[str, ...]:
    """Return the names of A's tensors whose counterparts in B hold something else; hashes of other kinds or dtypes say nothing."""
    by_name = {(each.micro, each.slot): each for each in theirs}
    pairs = [(each, by_name.get((each.micro, each.slot))) for each in mine]
    left = [each for each in theirs if each not in [other for _, other in pairs]]
    found = []
    for each, other in pairs:
        if other is None:  # called otherwise on the other side
            alike = [one for one in left if (one.micro, one.dtype, one.shape) == (each.micro, each.dtype, each.shape)]
            other = alike[0] if alike else None
            left = [one for one in left if one is not other]
        if other is not None and (each.dtype, each.hash[0]) == (other.dtype, other.hash[0]) and each.hash != other.hash:
            found.append(each.name)
    return tuple(found)


def _moved(a: RunCurves, b: RunCurves, step: int, to_b: int, names: tuple[str, ...]) -> int | None:
    """Return how many steps later the model of B was given the first tensor that differs, the nearest if there are several."""
    place = next((each.micro, each.slot) for each in a.batches[step] if each.name in names)
    later = _found_again(place, a, step, b, to_b)
    if later is not None:
        return later
    earlier = _found_again(place, b, step + to_b, a, -to_b)  # B has passed over A's
    return None if earlier is None else -earlier


def _found_again(place: tuple[int, str], one: RunCurves, step: int, other: RunCurves, to_other: int) -> int | None:
    """Return how many steps later, or earlier where it is negative, the other run has a tensor of a step."""
    wanted = next((each.hash for each in one.batches[step] if (each.micro, each.slot) == place), None)
    steps = [at - to_other - step for at, given in other.batches.items() if any(each.hash == wanted for each in given)]
    return min(steps, key=abs, default=None)


def _samples(side: str, run: RunCurves, step: int) -> tuple[Sample, ...]:
    """Return the beginning of what the model was given in a step, where its values were recorded."""
    held = [each for each in run.batches[step] if each.tensor >= 0]
    found = []
    if held:
        with open_reader(run.path) as reader:
            for each in held:
                values = reader.values(each.tensor)
                if values.dtype.kind in "biu" and values.size:
                    table = values.reshape(values.shape[0] if values.ndim > 1 else 1, -1)
                    rows = tuple(tuple(map(int, row[:_MOST_NUMBERS])) for row in table[:_MOST_SAMPLES])
                    found.append(Sample(side, each.name, values.shape, rows))
    return tuple(found)
