"""From the step in which curves part to the place in the model: by the recordings, or what to record for it."""

from __future__ import annotations

from collections.abc import Mapping as Sections
from pathlib import Path
from typing import Any

from probe.comparison.result import Divergence
from probe.comparison.run import compare
from probe.comparison.steps.common_steps import Shift
from probe.curve_comparison.reading.series import RunCurves
from probe.curve_comparison.result import Finding, FindingKind
from probe.errors import ProbeError

Mapping = str | Path | Sections[str, Any] | None

_MOST_STEPS = 64
"""steps in common that are compared here; of longer recordings the command is named"""
_FIRST_STEPS = "it grew: record the first steps in full on both sides, probe.start(model, path, steps=[0, 1])"


def jump(
    a: RunCurves, b: RunCurves, findings: list[Finding], shift: Shift, mapping: Mapping, direction: str | None
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
