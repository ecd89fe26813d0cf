"""What makes "aligned" say less than it seems: comparisons of zeros, updates that change nothing, parts that were left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from probe.comparison.result import Coverage, SlotResult
from probe.comparison.side import kind_of
from probe.records import OptimizerGroup, Phase, Role, Task


def doubts(
    slots: Sequence[SlotResult], roots: set[str], groups: Iterable[OptimizerGroup], *, has_others: bool = False
) -> Iterator[str]:
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
        yield "nothing but what the model is given was compared: see what the mapping leaves out, and what was recorded"
    updates = [slot for slot in slots if slot.role is Role.DELTA]
    if updates and _are_zero(updates):
        rates = {group.hyper.get("lr") for group in groups}
        why = "the learning rate is 0" if rates == {0} else "the learning rate may be 0, or the gradients"
        yield (
            "none of the parameters that were compared is changed in any step, in A or in B; those that are, if any, have no "
            "counterpart: what the optimizers do was not compared; give a layer mapping that pairs them (params)"
            if has_others and rates != {0}
            else f"no parameter is changed in any step, in A or in B ({why}): what the optimizers do was not compared; record a "
            "step that changes them"
        )
    returned = [
        slot for slot in slots if (slot.phase, slot.role) == (Phase.FORWARD, Role.OUTPUT) and slot.path_a in roots
    ]
    if returned and _are_zero(returned):
        yield "everything that the model returns is 0 on both sides: that tells nothing of what it computes"
    gradients = [slot for slot in slots if slot.phase is Phase.GRADIENT]
    if gradients and _are_zero(gradients):
        yield "the gradients of all parameters are 0 on both sides: that tells nothing of the loss, nor of backward"


def nothing_compared(tasks: Sequence[object]) -> str:
    """Say why no tensors were compared, of two recordings that were made with these tasks."""
    text = "nothing was compared: no pair of tensors with numbers on both sides"
    for task, what in (
        (Task.NORMS, "holds losses and norms over steps (task='norms'): compare two such recordings with probe curves"),
        (Task.STRUCTURE, "holds no numbers (task='structure'): record with task='statistics'"),
    ):
        names = [name for name, each in zip("AB", tasks, strict=True) if each == task]
        if names:
            return f"{text}; {' and '.join(names)} {what if len(names) == 1 else what.replace('holds', 'hold', 1)}"
    return text


def _is_given(slot: SlotResult, roots: set[str]) -> bool:
    """Tell whether a pair of tensors is an input of the model, or integers that were logged beside it (labels)."""
    return (slot.role is Role.INPUT and slot.path_a in roots) or (slot.role is Role.VALUE and not _is_float(slot))


def notes(slots: Sequence[SlotResult]) -> Iterator[str]:
    """Yield what is to be said of a comparison whatever its verdict is."""
    for role, what in ((Role.OUTPUT, "outputs"), (Role.PARAM, "parameters")):
        of_role = [slot for slot in slots if slot.role is role and _is_float(slot)]
        others = [slot for slot in of_role if slot.dtype_a != slot.dtype_b]
        if others:
            first = others[0]
            yield (
                f"{len(others)} of {len(of_role)} {what} are of another dtype, first {first.slot_a} of {first.path_a or 'the model'}: "
                f"{first.dtype_a} in A, {first.dtype_b} in B; what the coarser one rounds is taken for noise"
            )


def left_out(coverage: Coverage, weights: dict[str, list[str]], ignored: int, min_coverage: float) -> Iterator[str]:
    """Yield what was recorded and not compared, in a few words.

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
            yield f"{_weights(len(names))} of {side}"
    if ignored:
        yield f"{_weights(ignored)} that the mapping ignores"
    for side, alone in (("A", coverage.only_a), ("B", coverage.only_b)):
        total = coverage.paired + alone
        if coverage.paired < min_coverage * total:
            yield f"{alone} of {total} module calls of {side}"


def _weights(count: int) -> str:
    return f"{count} {'weight' if count == 1 else 'weights'}"


def other_modes(modes: Iterable[tuple[bool, bool]]) -> Iterator[str]:
    """Yield, in a few words, that modules ran in training mode on one side only: what they do in the other was not compared.

    Parameters
    ----------
    modes
        of each of them, whether it ran in training mode, in A and in B
    """
    for (a, _), count in sorted(Counter(modes).items(), reverse=True):
        names = ("training", "evaluation") if a else ("evaluation", "training")
        yield f"the mode of {count} {'module' if count == 1 else 'modules'} ({names[0]} in A, {names[1]} in B)"


def other_phases(recorded: Sequence[Iterable[int]], wanted: Sequence[Sequence[str] | None]) -> Iterator[str]:
    """Yield, in a few words, the phases that one side recorded and the other was not to record.

    Parameters
    ----------
    recorded
        by side, those of which anything was recorded
    wanted
        by side, the names of those that were to be recorded; None for all
    """
    for side, phases, others in zip("AB", recorded, reversed(wanted), strict=True):
        names = [Phase(each).label for each in sorted(phases)]
        alone = [name for name in names if others is not None and name not in others]
        if alone:
            listed = " and ".join(filter(None, [", ".join(alone[:-1]), alone[-1]]))
            yield f"the {'phase' if len(alone) == 1 else 'phases'} {listed} of {side}"


def _are_zero(slots: Iterable[SlotResult]) -> bool:
    return all(slot.metrics.norm_a == slot.metrics.norm_b == 0 for slot in slots)


def _is_float(slot: SlotResult) -> bool:
    return kind_of(slot.dtype_a) == kind_of(slot.dtype_b) == "float"


def overflowed(steps: Iterable[int]) -> Iterator[str]:
    """Yield what was not compared of steps that both sides skipped, since their gradients were not finite."""
    for step in steps:
        yield f"the gradients of step {step} (not finite on either side, and neither updated a weight: loss scaling)"
