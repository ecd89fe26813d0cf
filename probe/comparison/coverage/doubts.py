"""What keeps two runs from being called aligned, or different, whatever their tensors say: the reasons of `UNDECIDED`."""

from __future__ import annotations

from collections.abc import Sequence

from probe.comparison.notes import Note, note
from probe.comparison.result import Coverage, SlotResult
from probe.comparison.run_summary import RunSummary


def without_gradients(runs: Sequence[RunSummary]) -> Note | None:
    """Say which side alone ran with gradients switched off; None where none did."""
    names = [name for name, run in zip("AB", runs, strict=True) if run.is_without_gradients]
    return note("gradients-off-on-one-side", side=names[0]) if len(names) == 1 else None


def different_models(runs: Sequence[RunSummary], coverage: Coverage, wanted: float) -> Note:
    """Say that too few modules are pairs, and of what models."""
    return note(
        "different-models", models=tuple(run.models for run in runs), modules=tuple(run.modules for run in runs),
        paired=coverage.paired, total=coverage.total, side=coverage.smaller, wanted=wanted,
    )  # fmt: skip


def not_finite(slot: SlotResult) -> Note:
    """Say which pair of tensors is not finite in the same places, where none is to blame for it."""
    return note(
        "not-finite-in-other-places", step=slot.step, phase=slot.phase.label, role=slot.role.label, slot=slot.slot_a, path=slot.path_a,
    )  # fmt: skip


def mostly_not_comparable(count: int, slots: Sequence[SlotResult]) -> Note:
    """Say how many pairs of tensors could not be compared, and why the first could not."""
    first = next(slot for slot in slots if not slot.metrics.is_known)
    return note(
        "mostly-not-comparable", count=count, total=len(slots), role=first.role.label, slot=first.slot_a, path=first.path_a,
        why=first.metrics.why,
    )  # fmt: skip
