"""Parameters of one kind, over many modules: what is wrong with them is the optimizer's, not one module's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from probe.comparison.noise import tolerance
from probe.comparison.notes import Note, note
from probe.comparison.optimizer.settings import ParameterKey, groups_of
from probe.comparison.steps.events import StepPairs
from probe.comparison.steps.step_half import Event

_LEAST_MODULES = 3


def of_one_kind(
    pairs: StepPairs,
    concerned: Mapping[ParameterKey, Event],
    judged: Mapping[ParameterKey, Event],
    *,
    behind_modules: bool,
) -> dict[str, Any] | None:
    """Say of which kind parameters are, and which, if they are most of it: biases, a group's, or those of one dimension.

    Not where all that the modules of one class have is concerned, or one weight of theirs: those are named, unless what is
    wrong happened behind the modules.

    Parameters
    ----------
    pairs
        the step
    concerned
        of which something is wrong
    judged
        all that were looked at
    behind_modules
        backward left their gradients alike, and the optimizer used them otherwise
    """
    if len({pair for pair, _ in concerned}) < _LEAST_MODULES:
        return None
    modules = pairs.a.reader.modules
    classes = {modules[pairs.matching.pairs[pair].a].class_name for pair, _ in concerned}
    biases = note("biases")
    for kind, members in _kinds(pairs, judged):
        is_apart = behind_modules or len(classes) > 1 or kind == biases
        if is_apart and members.issuperset(concerned) and len(concerned) > tolerance.MOST * len(members):
            names = tuple(_name(pairs, event) for event in concerned.values())
            return {"count": len(concerned), "of": len(members), "kind": kind, "names": names}
    return None


def _kinds(pairs: StepPairs, judged: Mapping[ParameterKey, Event]) -> Iterator[tuple[Note, set[ParameterKey]]]:
    """Yield kinds, the narrowest first, and which of the parameters are of them."""
    yield note("biases"), {key for key in judged if key[1] == "bias"}
    for side in "AB":
        groups = groups_of(pairs, side)
        for number in sorted({groups[key] for key in judged if key in groups}):
            yield (
                note("parameters-of-group", side=side, group=number[1]),
                {key for key in judged if groups.get(key) == number},
            )
    yield note("parameters-of-one-dimension"), {key for key, event in judged.items() if len(_shape(pairs, event)) == 1}


def _shape(pairs: StepPairs, event: Event) -> Sequence[int]:
    return pairs.a.shapes[event.row_a] if event.row_a >= 0 else pairs.b.shapes[event.row_b]


def _name(pairs: StepPairs, event: Event) -> str:
    path = pairs.a.reader.modules[pairs.matching.pairs[event.pair].a].path
    return f"{path}.{event.slot_a or event.slot_b}".lstrip(".")
