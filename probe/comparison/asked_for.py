"""What few comparisons ask for, imported where one does; `tests/house/test_startup.py` holds what a plain one loads."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from probe.comparison.notes import Note
from probe.comparison.result import Divergence, Verdict
from probe.comparison.run_summary import have_equal_settings
from probe.ranks.opening import is_of_ranks
from probe.records import Task
from probe.store.reading.reader import Reader
from probe.structure.tree import Tree

if TYPE_CHECKING:
    from probe.comparison.acceptance.result import Acceptance
    from probe.comparison.acceptance.tally import Tally as AcceptanceTally
    from probe.comparison.ahead import Ahead
    from probe.comparison.settings import DifferingSetting
    from probe.matching.automatic.outline import Outline


def acceptance_table(preset: str, a: Reader, b: Reader) -> AcceptanceTally:
    """Return an acceptance table that nothing has been held against yet."""
    from probe.comparison.acceptance.tally import Tally as AcceptanceTally
    from probe.comparison.noise.presets import preset_named

    return AcceptanceTally(preset_named(preset), a, b)


def accepted(
    table: AcceptanceTally | None, verdict: Verdict, findings: Sequence[Divergence], reasons: Sequence[Note]
) -> Acceptance | None:
    """Return the answer of an acceptance table; None where none was asked for."""
    if table is None:
        return None
    from probe.comparison.acceptance.deciding import decided

    return decided(table, verdict, findings, reasons)


def measuring_ahead(
    a: Reader, b: Reader, scheduler: str | None, resume: str | Path | None
) -> contextlib.AbstractContextManager[Ahead | None]:
    """Return what compares values before a step is judged: where there are many, others are to do so, or what is found is to be kept."""
    if scheduler is None and resume is None and not (_holds_values(a) and _holds_values(b)):
        return contextlib.nullcontext()
    from probe.comparison.ahead import Ahead

    return Ahead(a, b, scheduler, resume)


def unused_dims_of(a: Reader, b: Reader, dims: Mapping[str, str]) -> list[Note]:
    """Return what the mapping says of how ranks divide tensors, and no recording of ranks has."""
    sides = [(each, each.layout) for each in (a, b) if is_of_ranks(each)]
    if not sides:
        return []
    from probe.ranks.dims.checking import unused_dims

    return unused_dims(sides, dims)


def outlines_of(a: tuple[Reader, Tree], b: tuple[Reader, Tree]) -> tuple[Outline, Outline]:
    """Return the weights of both models, by module: asked for where modules are left, or where rows may lie otherwise."""
    from probe.matching.automatic.outline import outline_of

    return outline_of(*a), outline_of(*b)


def settings_that_differ(a: Reader, b: Reader, findings: Sequence[Divergence]) -> tuple[DifferingSetting, ...]:
    """Return the settings that two recordings hold otherwise."""
    if have_equal_settings(a, b):
        return ()
    from probe.comparison.settings import differing_settings

    return differing_settings(a, b, findings)


def _holds_values(reader: Reader) -> bool:
    return reader.info.config.get("task") == Task.TENSOR.value
