"""What makes an answer say less than it seems, by its rows: zeros, inputs alone, tensors that cannot be compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from probe.answer.metrics import kind_of
from probe.answer.result import SlotResult
from probe.notes import Note, note
from probe.records import Phase, Role, Task
from probe.verdict.coverage.tally import Tally


def reasons(rows: Sequence[SlotResult], tally: Tally, *, has_others: bool) -> Iterator[Note]:
    """Yield why runs cannot be called aligned though nothing that was compared, of all weights or not, differs."""
    if rows and all(_is_given(row, tally.roots) for row in rows):
        yield note("nothing-but-inputs-compared")
    is_zero = {group.hyper.get("lr") for group in tally.groups} == {0}
    still = note("no-parameter-changed", rate_is_zero=is_zero)
    returned = [row for row in rows if (row.phase, row.role) == (Phase.FORWARD, Role.OUTPUT)]
    sorts = {
        note("no-compared-parameter-changed") if has_others and not is_zero else still: _of(rows, Role.DELTA),
        note("outputs-are-zero"): [row for row in returned if row.path_a in tally.roots],
        note("gradients-are-zero"): [row for row in rows if row.phase is Phase.GRADIENT],
    }
    if has_others and tally.has_updates and not any(row.metrics.norm_a for row in _of(tally.rows, Role.DELTA)):
        yield note("no-compared-parameter-changed")
    for said, found in sorts.items():
        if found and all(row.metrics.norm_a == row.metrics.norm_b == 0 for row in found):
            yield said


def nothing_compared(tasks: Sequence[object]) -> Note:
    """Say why no tensors were compared, of two recordings that were made with these tasks."""
    sides = {task.value: tuple(x for x, each in zip("AB", tasks, strict=True) if each == task) for task in Task}
    task = next((each for each in (Task.NORMS.value, Task.STRUCTURE.value) if sides[each]), "")
    return note("nothing-compared", task=task, sides=sides.get(task, ()))


def mostly_not_comparable(rows: Sequence[SlotResult], is_in_parts: bool) -> Iterator[Note]:
    """Say that most pairs, or any of a model that ran in parts, could not be compared, and why the first could not."""
    left = [row for row in rows if not row.metrics.is_known]
    if len(left) > len(rows) - len(left) > 0 or (left and is_in_parts):
        first = left[0]
        place = {"role": first.role.label, "slot": first.slot_a, "path": first.path_a}
        yield note("mostly-not-comparable", count=len(left), total=len(rows), **place, why=first.metrics.why)


def other_dtypes(rows: Sequence[SlotResult]) -> Iterator[Note]:
    """Yield which outputs, and which weights, are of another dtype: whatever the verdict is."""
    for role in (Role.OUTPUT, Role.PARAM):
        floats = [row for row in _of(rows, role) if _is_float(row)]
        others = [row for row in floats if row.dtype_a != row.dtype_b]
        if others:
            first = others[0]
            place = {"slot": first.slot_a, "path": first.path_a, "a": first.dtype_a, "b": first.dtype_b}
            yield note("dtypes-differ", role=role.label, count=len(others), total=len(floats), **place)


def _of(rows: Sequence[SlotResult], role: Role) -> list[SlotResult]:
    return [row for row in rows if row.role is role]


def _is_given(row: SlotResult, roots: set[str]) -> bool:
    """Return True for an input of the model, and for integers that were logged beside it (labels)."""
    return (row.role is Role.INPUT and row.path_a in roots) or (row.role is Role.VALUE and not _is_float(row))


def _is_float(row: SlotResult) -> bool:
    return kind_of(row.dtype_a) == kind_of(row.dtype_b) == "float"
