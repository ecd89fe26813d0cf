"""Where the first NaN or Inf of a recording was born: the module whose code made it, and what that was given."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from probe.checks.seen import Seen, first_call, in_time, seen
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
    """no weight changed in that step: a loss scaler skips it"""

    def as_json(self) -> dict[str, Any]:
        """Return the fields by their names in JSON."""
        return {
            "origin": self.origin.value, "step": self.step, "phase": self.phase.label, "path": self.path,
            "class": self.class_name, "first": None if self.first is None else self.first.as_json(),
            "made_from": [each.as_json() for each in self.made_from],
            "last_finite": None if self.last_finite is None else self.last_finite.as_json(), "is_skipped": self.is_skipped,
        }  # fmt: skip


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
        step = _Step(reader, int(number))
        wrong = step.wrong
        masks += step.masks
        tensors += len(wrong)
        born = step.birth() if found is None else None
        found = found or born
        steps += bool(len(wrong)) or born is not None
    return found, Count(tensors, steps, masks)


def _is_mask(row: Any) -> bool:
    """Tell whether a tensor has −Inf alone beside elements that are all one number."""
    return not (row["nan"] or row["posinf"] or row["min"] < row["max"]) and bool(row["neginf"])


def _share(reader: Reader, row: Any) -> float:
    return round(int(row["neginf"]) / max(math.prod(reader.shapes[row["shape"]]), 1), 9)


class _Step:
    """A step of a recording in the order of time."""

    def __init__(self, reader: Reader, number: int) -> None:
        self.reader, self.number = reader, number
        self.rows = in_time(reader, number)
        self.bad = (self.rows["nan"] > 0) | (self.rows["posinf"] > 0) | (self.rows["neginf"] > 0)
        self.masks = 0

    @cached_property
    def wrong(self) -> list[int]:
        """Indices of the tensors that are not finite and no masks."""
        suspects = np.flatnonzero(self.bad).tolist()
        kept = [index for index in suspects if not self._hides(index)]
        self.masks = len(suspects) - len(kept)
        return kept

    def _hides(self, index: int) -> bool:
        """Tell whether a tensor has −Inf alone where it hides positions.

        All of its finite elements are one number, a mask was added to it, or what it is given to makes finite numbers of it, as a
        softmax does.
        """
        row = self.rows[index]
        if row["nan"] or row["posinf"]:
            return False
        if _is_mask(row) or _share(self.reader, row) in self._masked_shares(index):
            return True
        same = self.rows["role"] == Role.INPUT
        if row["role"] != Role.INPUT or row["phase"] != Phase.FORWARD:
            same &= (self.rows["hash_lo"] == row["hash_lo"]) & (self.rows["hash_hi"] == row["hash_hi"])
            same &= self.rows["hash_kind"] == row["hash_kind"]
        else:
            same &= np.arange(len(self.rows)) == index
        return any(self._makes_finite(self.rows[each]) for each in np.flatnonzero(same).tolist())

    def _masked_shares(self, before: int) -> set[float]:
        """Return what shares of their elements the masks before a tensor hide: what one is added to has the same."""
        rows = self.rows[:before][self.bad[:before]]
        return {_share(self.reader, row) for row in rows if _is_mask(row)}

    def _makes_finite(self, row: Any) -> bool:
        outputs = self._of_call(row, Role.OUTPUT)
        return bool(len(outputs)) and not self.bad[outputs].any()

    def birth(self) -> Birth | None:
        """Return where the first NaN or Inf of the step was born."""
        first = self.wrong[0] if self.wrong else None
        loss = self.reader.scalars_of(self.number).get("loss", 0.0)
        is_late = first is None or self.rows["phase"][first] > Phase.LOSS
        if not math.isfinite(loss) and is_late:
            return self._born_in_loss()
        if first is None:
            return None
        row = self.rows[first]
        return {
            Phase.INIT: self._given, Phase.FORWARD: self._forward, Phase.LOSS: self._given, Phase.BACKWARD: self._backward,
        }.get(Phase(row["phase"]), self._late)(first)  # fmt: skip

    # Rows

    def _of_call(self, row: Any, *roles: Role) -> np.ndarray:
        """Return the indices of what belongs to the call of a record, by their roles."""
        same = np.isin(self.rows["role"], roles)
        for name in ("micro", "module", "call"):
            same &= self.rows[name] == row[name]
        return np.flatnonzero(same)

    def _weights_of(self, module: int) -> list[int]:
        rows = self.rows
        return np.flatnonzero((rows["phase"] == Phase.INIT) & (rows["role"] == Role.PARAM) & (rows["module"] == module)).tolist()  # fmt: skip

    @cached_property
    def calls(self) -> np.ndarray:
        """The calls of the step."""
        return self.reader.of_step("calls", self.number)

    def _call(self, row: Any) -> int | None:
        """Return the index of the call that a record belongs to."""
        same = self.calls["recomputed"] == 0
        for name in ("micro", "module", "call"):
            same &= self.calls[name] == row[name]
        found = np.flatnonzero(same)
        return int(found[0]) if len(found) else None

    def _caller(self, call: int | None) -> int | None:
        """Return the index of the call in which a call was made; None for what the program called."""
        above = -1 if call is None else int(self.calls["caller"][call]) - first_call(self.reader, self.number)
        return above if 0 <= above < len(self.calls) else None

    def _returned_inside(self, call: int, before: int) -> list[int]:
        """Return the indices of what the calls that a call made itself had returned before a moment."""
        start = first_call(self.reader, self.number)
        inner = self.calls[self.calls["caller"] == call + start]
        found: list[int] = []
        for each in inner:
            found += [index for index in self._of_call(each, Role.OUTPUT) if self.rows["seq"][index] < before]
        return sorted(found)

    # Births

    def _made(self, origin: Origin, first: int, module: int, made_from: Iterable[int]) -> Birth:
        """Return a birth."""
        rows, info = self.rows, self.reader.modules[module]
        kept = [index for index in dict.fromkeys(made_from) if index != first][-_MOST:]
        return Birth(
            origin, self.number, Phase(rows["phase"][first]), info.path, info.class_name, seen(self.reader, rows[first]),
            tuple(seen(self.reader, rows[index]) for index in kept), self._last_finite(first), self._is_skipped,
        )  # fmt: skip

    def _last_finite(self, first: int) -> Seen | None:
        """Return the last tensor before another one that is a call's, or an update's, and finite."""
        later = self.rows["phase"] != Phase.INIT
        before = np.flatnonzero(~self.bad[:first] & later[:first])
        return seen(self.reader, self.rows[before[-1]]) if len(before) else None

    @cached_property
    def _is_skipped(self) -> bool:
        """Whether the optimizer left every weight as it was."""
        deltas = self.rows[self.rows["role"] == Role.DELTA]
        return bool(len(deltas)) and not deltas["norm"].any() and not deltas["nan"].any()

    def _given(self, first: int) -> Birth:
        row = self.rows[first]
        is_weight = row["role"] in (Role.PARAM, Role.BUFFER)
        return self._made(Origin.WEIGHT if is_weight else Origin.LOGGED, first, int(row["module"]), ())

    def _forward(self, first: int) -> Birth:
        row = self.rows[first]
        role, module = Role(row["role"]), int(row["module"])
        if role in (Role.PARAM, Role.BUFFER, Role.VALUE):
            return self._given(first)
        call = self._call(row)
        inputs = self._of_call(row, Role.INPUT).tolist()
        if role is Role.OUTPUT:
            inner = [] if call is None else self._returned_inside(call, int(row["seq"]))
            return self._made(Origin.MODULE, first, module, [*self._weights_of(module), *inputs, *inner])
        caller = self._caller(call)
        if caller is None:
            return self._made(Origin.GIVEN, first, module, ())
        above = self.calls[caller]
        given = self._of_call(above, Role.INPUT).tolist()
        inner = self._returned_inside(caller, int(row["seq"]))
        return self._made(Origin.CODE, first, int(above["module"]), [*given, *inner])

    def _backward(self, first: int) -> Birth:
        row = self.rows[first]
        module = int(row["module"])
        if row["role"] != Role.GRAD_OUTPUT:
            arrived = self._of_call(row, Role.GRAD_OUTPUT).tolist()
            given = [*self._weights_of(module), *self._of_call(row, Role.INPUT).tolist(), *arrived]
            return self._made(Origin.BACKWARD, first, module, given)
        caller, rows = self._caller(self._call(row)), self.rows
        while caller is not None and self._returns_the_same(caller, row):
            module = int(self.calls["module"][caller])
            caller = self._caller(caller)
        earlier = np.flatnonzero((rows["phase"] == Phase.BACKWARD) & ~self.bad & (np.arange(len(rows)) < first))
        if caller is None:
            return self._made(Origin.LOSS, first, module, self._of_call(row, Role.OUTPUT).tolist())
        return self._made(Origin.BACKWARD_CODE, first, int(self.calls["module"][caller]), earlier[-2:].tolist())

    def _returns_the_same(self, call: int, row: Any) -> bool:
        """Tell whether the gradient at the output of a call is that of a record: what it calls last returns its output."""
        names = ("hash_lo", "hash_hi", "hash_kind")
        arrived = self.rows[self._of_call(self.calls[call], Role.GRAD_OUTPUT)]
        return any(all(each[name] == row[name] for name in names) for each in arrived)

    def _late(self, first: int) -> Birth:
        """Return the birth of what belongs to a parameter: its gradient, its update, a state of the optimizer."""
        row, rows = self.rows[first], self.rows
        module, slot = int(row["module"]), self.reader.slots[row["slot"]].partition(".")[0]
        own = [
            index for index in np.flatnonzero((rows["module"] == module) & (np.arange(len(rows)) < first)).tolist()
            if self.reader.slots[rows["slot"][index]].partition(".")[0] == slot
            and rows["role"][index] in (Role.PARAM, Role.PARAM_GRAD, Role.STATE)
        ]  # fmt: skip
        is_gradient = row["role"] == Role.PARAM_GRAD
        if is_gradient:
            mine = (rows["module"] == module) & np.isin(rows["role"], (Role.INPUT, Role.GRAD_OUTPUT))
            own += np.flatnonzero(mine & (np.arange(len(rows)) < first)).tolist()
        return self._made(Origin.WEIGHT_GRADIENT if is_gradient else Origin.OPTIMIZER, first, module, own)

    def _born_in_loss(self) -> Birth:
        """Return the birth of a loss whose model returned finite numbers."""
        rows, root = self.rows, self.reader.modules[0]
        last = self.rows[~self.bad & (rows["phase"] == Phase.FORWARD) & (rows["role"] == Role.OUTPUT)]
        returned = tuple(seen(self.reader, row) for row in last[-1:])
        return Birth(
            Origin.LOSS, self.number, Phase.LOSS, root.path, root.class_name, None, returned, returned[0] if returned else None,
            self._is_skipped,
        )  # fmt: skip
