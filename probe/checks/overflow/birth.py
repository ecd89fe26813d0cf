"""Where the first NaN or Inf of a recording was born: the module whose code made it, and what that was given."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from probe.checks.overflow.timeline import Timeline
from probe.checks.seen import Seen, seen
from probe.notes import named
from probe.records import Phase, Role
from probe.store.reading.reader import Reader

_MOST = 12
"""tensors that it was made from, which are kept"""


class Origin(enum.StrEnum):
    """Whose work the first NaN or Inf is."""

    MODULE = "module"
    """a module's: its inputs and all that it calls are finite, its output is not"""
    CODE = "code between modules"
    """the code of a module between two of those that it calls"""
    GIVEN = "given to the model"
    LOGGED = "logged"
    """of a tensor that the program gave to ``probe.log``"""
    WEIGHT = "weight"
    """a weight or buffer that the step began with"""
    LOSS = "loss"
    """behind what the model returned"""
    BACKWARD = "backward of a module"
    """gradients at its output are finite, those that it passes back are not"""
    BACKWARD_CODE = "backward between modules"
    WEIGHT_GRADIENT = "weight gradient"
    OPTIMIZER = "optimizer"


@dataclass(frozen=True, slots=True)
class Birth:
    """The first NaN or Inf of a recording."""

    origin: Origin
    step: int
    phase: Phase
    path: str
    """of the module whose code made it; the root is ``""``"""
    class_name: str
    first: Seen | None
    """the tensor; None of a loss that was given as a number"""
    made_from: tuple[Seen, ...] = ()
    """what that code was given and what the modules that it had called returned, latest last"""
    last_finite: Seen | None = None
    """the last tensor before it, in the order of time"""
    is_skipped: bool = False
    """no weight changed in that step, though others change them: a loss scaler skips it"""

    def as_json(self) -> dict[str, Any]:
        """Return the fields by their names in JSON."""
        about = {**named(self, "origin", "step", "phase", "path"), "class": self.class_name}
        return about | named(self, "first", "made_from", "last_finite", "is_skipped")


@dataclass(frozen=True, slots=True)
class Count:
    """How many tensors are not finite."""

    tensors: int
    steps: int
    masks: int
    """tensors with −Inf alone that hide positions: no fault"""


def first_birth(reader: Reader) -> tuple[Birth | None, Count]:
    """Return where the first NaN or Inf was born, None where there is none, and how many tensors are not finite."""
    found: Birth | None = None
    tensors = steps = masks = 0
    for number in reader.steps["step"].tolist():
        step = Timeline(reader, int(number))
        wrong, hidden = step.wrong()
        masks += hidden
        tensors += len(wrong)
        born = _birth(step, wrong[0] if wrong else None) if found is None else None
        found = found or born
        steps += bool(wrong) or born is not None
    if found is not None and found.phase >= Phase.BACKWARD:
        training = _training(reader)
        found = replace(found, is_skipped=bool(training) and found.step not in training)
    return found, Count(tensors, steps, masks)


def _training(reader: Reader) -> set[int]:
    """Return the steps that change a weight."""
    columns = ("step", "role", "norm", "nan")
    rows = reader.chosen_records(
        columns, lambda rows: (rows["role"] == Role.DELTA) & ((rows["norm"] > 0) | (rows["nan"] > 0))
    )
    return set(rows["step"].tolist())


def _birth(step: Timeline, first: int | None) -> Birth | None:
    """Return where the first NaN or Inf of a step was born; None where all is finite."""
    loss = step.reader.scalars_of(step.number).get("loss", 0.0)
    is_late = first is None or step.rows["phase"][first] > Phase.LOSS
    if not math.isfinite(loss) and is_late:
        return _in_loss(step)
    return None if first is None else _BY_PHASE[Phase(step.rows["phase"][first])](step, first)


def _made(step: Timeline, origin: Origin, first: int, module: int, made_from: Iterable[int]) -> Birth:
    rows, info = step.rows, step.reader.modules[module]
    kept = [index for index in dict.fromkeys(made_from) if index != first][-_MOST:]
    return Birth(
        origin, step.number, Phase(rows["phase"][first]), info.path, info.class_name, seen(step.reader, rows[first]),
        tuple(seen(step.reader, rows[index]) for index in kept), step.last_finite(first),
    )  # fmt: skip


def _given(step: Timeline, first: int) -> Birth:
    """Return the birth of what no module made: a weight, or what the program logs."""
    row = step.rows[first]
    is_weight = row["role"] in (Role.PARAM, Role.BUFFER)
    return _made(step, Origin.WEIGHT if is_weight else Origin.LOGGED, first, int(row["module"]), ())


def _in_forward(step: Timeline, first: int) -> Birth:
    row = step.rows[first]
    role, module = Role(row["role"]), int(row["module"])
    if role in (Role.PARAM, Role.BUFFER, Role.VALUE):
        return _given(step, first)
    call = step.call(row)
    if role is Role.OUTPUT:
        inputs = step.of_call(row, Role.INPUT).tolist()
        inner = [] if call is None else step.returned_inside(call, int(row["seq"]))
        return _made(step, Origin.MODULE, first, module, [*step.weights_of(module), *inputs, *inner])
    caller = step.caller(call)
    if caller is None:
        return _made(step, Origin.GIVEN, first, module, ())
    above = step.calls[caller]
    given = step.of_call(above, Role.INPUT).tolist()
    inner = step.returned_inside(caller, int(row["seq"]))
    return _made(step, Origin.CODE, first, int(above["module"]), [*given, *inner])


def _in_backward(step: Timeline, first: int) -> Birth:
    row, rows = step.rows[first], step.rows
    module = int(row["module"])
    if row["role"] != Role.GRAD_OUTPUT:
        given = [step.of_call(row, role).tolist() for role in (Role.INPUT, Role.GRAD_OUTPUT)]
        return _made(step, Origin.BACKWARD, first, module, [*step.weights_of(module), *given[0], *given[1]])
    caller, same = step.caller(step.call(row)), step.are_equal(row)
    while caller is not None and same[step.of_call(step.calls[caller], Role.GRAD_OUTPUT)].any():
        module = int(step.calls["module"][caller])  # it returns what the module that it calls last returned
        caller = step.caller(caller)
    if caller is None:
        return _made(step, Origin.LOSS, first, module, step.of_call(row, Role.OUTPUT).tolist())
    earlier = np.flatnonzero((rows["phase"] == Phase.BACKWARD) & ~step.bad & (np.arange(len(rows)) < first))
    return _made(step, Origin.BACKWARD_CODE, first, int(step.calls["module"][caller]), earlier[-2:].tolist())


def _at_parameter(step: Timeline, first: int) -> Birth:
    """Return the birth of what belongs to a parameter: its gradient, its update, a state of the optimizer."""
    row, rows, slots = step.rows[first], step.rows, step.reader.slots
    module, slot = int(row["module"]), slots[row["slot"]].partition(".")[0]
    mine = np.flatnonzero((rows["module"] == module) & (np.arange(len(rows)) < first)).tolist()
    own = [
        index for index in mine
        if slots[rows["slot"][index]].partition(".")[0] == slot and rows["role"][index] in (Role.PARAM, Role.PARAM_GRAD, Role.STATE)
    ]  # fmt: skip
    is_gradient = row["role"] == Role.PARAM_GRAD
    if is_gradient:
        own += [index for index in mine if rows["role"][index] in (Role.INPUT, Role.GRAD_OUTPUT)]
    return _made(step, Origin.WEIGHT_GRADIENT if is_gradient else Origin.OPTIMIZER, first, module, own)


def _in_loss(step: Timeline) -> Birth:
    """Return the birth of a loss whose model returned finite numbers."""
    rows, root = step.rows, step.reader.modules[0]
    last = rows[~step.bad & (rows["phase"] == Phase.FORWARD) & (rows["role"] == Role.OUTPUT)]
    returned = tuple(seen(step.reader, row) for row in last[-1:])
    return Birth(
        Origin.LOSS, step.number, Phase.LOSS, root.path, root.class_name, None, returned, returned[0] if returned else None,
    )  # fmt: skip


_BY_PHASE: dict[Phase, Callable[[Timeline, int], Birth]] = {
    Phase.INIT: _given, Phase.FORWARD: _in_forward, Phase.LOSS: _given, Phase.BACKWARD: _in_backward,
    Phase.GRADIENT: _at_parameter, Phase.UPDATE: _at_parameter,
}  # fmt: skip
"""who answers for the first tensor that is not finite, by its phase"""
