"""Steps of a comparison, read again from their recordings: statistics, values and what ran."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from probe.answer.result import SlotResult
from probe.diagnosis.last_tokens import at_last_tokens
from probe.errors import NotRecordedError
from probe.matching import Matching
from probe.operations.pairing import with_operations
from probe.operations.prefix import behind_prefix
from probe.ranks.opening import open_reader
from probe.records import Phase, Role
from probe.store.reading.reader import Reader
from probe.verdict.distance.values import can_be_laid, is_merged, laid
from probe.verdict.ranks import let_see
from probe.verdict.rows import micro_of
from probe.verdict.side import PARAMETER_ROLES, Side
from probe.verdict.steps.events import Event
from probe.verdict.steps.step import Step
from probe.verdict.tensors import Tensor

if TYPE_CHECKING:
    from probe.answer.comparison import Comparison

Place = tuple[int, Phase, Role, str, int, str, str]
"""micro-batch, phase, role, path in A, call, slots"""


class Again:
    """The steps that were compared, each read when it is asked for.

    Parameters
    ----------
    a, b
        the recordings
    matching
        what was taken for the same
    steps
        by step of A: that of B
    """

    def __init__(self, a: Reader, b: Reader, matching: Matching, steps: dict[int, int]) -> None:
        self.a, self.b, self.matching, self.steps = a, b, matching, steps
        self._read: dict[int, tuple[Step, dict[Place, Event]]] = {}
        let_see(a, b, matching)

    @classmethod
    def of(cls, comparison: Comparison, a: Reader, b: Reader) -> Again:
        """Return the steps of a comparison."""
        return cls(a, b, comparison.matching, dict(comparison.steps))

    def step(self, number: int) -> Step:
        """Return a step by A's number."""
        return self._known(number)[0]

    def event(self, slot: SlotResult) -> Event | None:
        """Return the pair of tensors of a row of the answer; None if it is not recorded there."""
        place = slot.micro, slot.phase, slot.role, slot.path_a, slot.call, slot.slot_a, slot.slot_b
        return self._known(slot.step)[1].get(place)

    def _known(self, number: int) -> tuple[Step, dict[Place, Event]]:
        if number not in self._read:
            there, matching = self.steps[number], self.matching
            given = (self.a, number, matching.views_a), (self.b, there, matching.views_b)
            sides = [Side(*each, begins=True) for each in given]
            behind_prefix(*sides, matching)
            step = Step(*sides, with_operations(matching, *sides))
            at_last_tokens(step)
            self._read[number] = step, {_place(step, event): event for event in events_of(step)}
        return self._read[number]


def events_of(step: Step) -> Iterator[Event]:
    """Yield the pairs of tensors of a step: of its calls, of what was logged beside them, of parameters."""
    for node in step.nodes:
        yield from (event for event in (*node.inputs, *node.outputs, *step.gradients(node)) if event.is_paired)
    top = next((node for node in step.nodes if node.parent is None), None)
    for slot in step.a.beside.keys() & step.b.beside.keys() if top is not None else ():
        (at, a), (_, b) = step.a.beside[slot], step.b.beside[slot]
        yield Event(Phase.FORWARD, Role.VALUE, top, None, slot, slot, a, b, at)
    for phase in (Phase.INIT, Phase.GRADIENT, Phase.UPDATE):
        for role in PARAMETER_ROLES:
            yield from (event for event in step.parameters.events(phase, role) if event.is_paired)


def _place(step: Step, event: Event) -> Place:
    node = event.node
    assert node is not None or event.place is not None
    module = node.a.module if node is not None else event.place[0] if event.place is not None else 0
    number = node.a.number if node is not None else 0
    return micro_of(event), event.phase, event.role, step.path(module), number, event.slot_a, event.slot_b


def values_of(comparison: Comparison, slot: SlotResult) -> tuple[np.ndarray, np.ndarray]:
    """Return the values of A and of B, B's in the order in which they were compared with A's.

    Raises
    ------
    NotRecordedError
        they were not recorded on both sides, or have no shape in common
    StoreError, FormatError
        a recording is no longer where it was, or cannot be read
    """
    what = f"{slot.role.label} {slot.slot_a} of {slot.path_a or 'the model'}"
    if slot.role is Role.DELTA:
        raise NotRecordedError(
            f"{what}: updates are kept as statistics only, whatever the task; their error is in .metrics. Values are kept "
            "of the parameter (.param[0]) and of its gradient (.param_grad[0])"
        )
    with open_reader(comparison.path_a) as a, open_reader(comparison.path_b) as b:
        again = Again.of(comparison, a, b)
        event = again.event(slot)
        tensors = (None, None) if event is None else (event.a, event.b)
        missing = [name for name, each in zip("AB", tensors, strict=True) if each is None or not each.has_values]
        if event is None or missing:
            raise NotRecordedError(
                f'no values of {what} were recorded in {" and ".join(missing)}: record both runs with task="tensor"'
            )
        values = values_in(again.step(slot.step), event)
    if values is None:
        raise NotRecordedError(
            f"{what}: shapes {list(slot.shape_a)} and {list(slot.shape_b)} cannot be laid on each other"
        )
    return values


def values_in(step: Step, event: Event) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the values of a pair of tensors, in A's shape; None if the two have no shape in common."""
    assert event.a is not None and event.b is not None
    return values_together(event.a, event.b, may_permute=step.may_permute(event))


def values_together(a: Tensor, b: Tensor, *, may_permute: bool) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the values of two tensors, in A's shape; None if the two have no shape in common."""
    if not can_be_laid(a.form, b.form):
        return None
    if a.kind == "integer":
        x, y = a.values(), b.values()
        y = y if x.shape == y.shape or is_merged(a.form, b.form) else y.T
    else:
        x, y = laid(a, b, may_permute)
    tail = (2,) if a.kind == "complex" else ()
    axes = [*np.argsort(a.axes or range(len(a.laid))), *range(len(a.laid), len(a.laid) + len(tail))]
    found = [each.reshape(a.laid + tail).transpose(axes) for each in (x, y)]
    return found[0], found[1]
