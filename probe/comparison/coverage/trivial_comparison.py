"""What makes "aligned" say less than it seems: comparisons of zeros, updates that change nothing, parts that were left out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from probe.comparison.notes import Note, note
from probe.comparison.result import SlotResult
from probe.comparison.steps.side import kind_of
from probe.records import OptimizerGroup, Phase, Role, Task


def reasons(
    slots: Sequence[SlotResult], roots: set[str], groups: Iterable[OptimizerGroup], *, has_others: bool = False
) -> Iterator[Note]:
    """Yield why runs cannot be called aligned though nothing that was compared differs.

    Parameters
    ----------
    slots
        pairs of tensors of which the error is known
    roots
        paths, in A, of the modules that no other one calls
    groups
        of the optimizers of both sides, over all steps that were compared
    has_others
        whether there are weights that were not compared
    """
    if slots and all(_is_given(slot, roots) for slot in slots):
        yield note("nothing-but-inputs-compared")
    updates = [slot for slot in slots if slot.role is Role.DELTA]
    if updates and _are_zero(updates):
        rates = {group.hyper.get("lr") for group in groups}
        is_zero = rates == {0}
        yield (
            note("no-compared-parameter-changed")
            if has_others and not is_zero
            else note("no-parameter-changed", rate_is_zero=is_zero)
        )
    returned = [
        slot for slot in slots if (slot.phase, slot.role) == (Phase.FORWARD, Role.OUTPUT) and slot.path_a in roots
    ]
    if returned and _are_zero(returned):
        yield note("outputs-are-zero")
    gradients = [slot for slot in slots if slot.phase is Phase.GRADIENT]
    if gradients and _are_zero(gradients):
        yield note("gradients-are-zero")


def nothing_compared(tasks: Sequence[object]) -> Note:
    """Say why no tensors were compared, of two recordings that were made with these tasks."""
    for task in (Task.NORMS, Task.STRUCTURE):
        sides = tuple(name for name, each in zip("AB", tasks, strict=True) if each == task)
        if sides:
            return note("nothing-compared", task=task.value, sides=sides)
    return note("nothing-compared", task="", sides=())


def _is_given(slot: SlotResult, roots: set[str]) -> bool:
    """Tell whether a pair of tensors is an input of the model, or integers that were logged beside it (labels)."""
    return (slot.role is Role.INPUT and slot.path_a in roots) or (slot.role is Role.VALUE and not _is_float(slot))


def notes(slots: Sequence[SlotResult]) -> Iterator[Note]:
    """Yield what is to be said of a comparison whatever its verdict is."""
    for role in (Role.OUTPUT, Role.PARAM):
        of_role = [slot for slot in slots if slot.role is role and _is_float(slot)]
        others = [slot for slot in of_role if slot.dtype_a != slot.dtype_b]
        if others:
            first = others[0]
            yield note(
                "dtypes-differ", role=role.label, count=len(others), total=len(of_role), slot=first.slot_a, path=first.path_a,
                a=first.dtype_a, b=first.dtype_b,
            )  # fmt: skip


def _are_zero(slots: Iterable[SlotResult]) -> bool:
    return all(slot.metrics.norm_a == slot.metrics.norm_b == 0 for slot in slots)


def _is_float(slot: SlotResult) -> bool:
    return kind_of(slot.dtype_a) == kind_of(slot.dtype_b) == "float"
