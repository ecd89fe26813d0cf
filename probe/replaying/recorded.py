"""What a step of A recorded: its calls, what each was given and returned, and the gradients of that."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from probe.comparison.fusion.bundles import join_parts
from probe.comparison.steps.rows import Key
from probe.comparison.steps.side import Side, begins
from probe.comparison.steps.step_half import Call, StepHalf
from probe.comparison.steps.tied_homes import homes_of
from probe.matching import Bundle, Matching
from probe.numbers.fused import Fusion, split
from probe.records import Phase, Role
from probe.store.reading.reader import Reader

_KEPT = 256 << 20
"""bytes of values that are kept in case that they are asked for again: what one call returns another one is given"""


@dataclass(frozen=True)
class Cut:
    """Which part of A's tensor a module of B has, where B holds apart what is one module in A."""

    bundle: Bundle
    number: int
    sizes: tuple[int, ...]
    """of all parts, along the last axis; empty where there is one"""

    def of(self, whole: np.ndarray) -> np.ndarray:
        """Return the part of what the whole returned, or of its gradient."""
        bundle = self.bundle
        shapes = [[(*whole.shape[:-1], size) for size in self.sizes or whole.shape[-1:]]]
        fusion = Fusion(-1, max(bundle.groups, 1), rotary=max(bundle.rotary, 0), order=bundle.order)
        return split(whole, shapes, fusion)[0][self.number]


class Recorded:
    """One step of A.

    Parameters
    ----------
    reader
        the recording
    step
        of it
    matching
        says which modules of A stand for one of B
    """

    def __init__(self, reader: Reader, step: int, matching: Matching) -> None:
        self.reader, self.step = reader, step
        homes = homes_of(reader, {pair.a for pair in matching.pairs})
        self.side = Side(reader, step, matching.views_a, homes=homes, continues=not begins(reader, step))
        join_parts(self.side, "A", matching)
        self._half = StepHalf.of("A", self.side, matching)
        self.calls = sorted(self._half.calls, key=lambda call: call.begin)
        self._by_row = {call.row: call for call in self.calls}
        self._by_module: dict[tuple[int, int], list[Call]] = {}
        for call in self.calls:
            self._by_module.setdefault((call.micro, call.module), []).append(call)
        self._read: dict[int, np.ndarray] = {}
        """values that were read last"""
        self._nbytes = 0
        self._returned: dict[int, set[object]] = {}
        """hashes of what calls returned, by their rows"""
        self.has_backward = any(
            self._half.rows.by_role[role] for role in (Role.GRAD_OUTPUT, Role.GRAD_INPUT, Role.GRAD_TOTAL)
        )

    def calls_of(self, micro: int, module: int) -> list[Call]:
        """Return the calls of a module in a pass, in their order."""
        return self._by_module.get((micro, module), [])

    def caller(self, call: Call) -> Call | None:
        """Return the call that made another one; None where the training did."""
        return self._by_row.get(call.caller)

    def calls_in(self, call: Call) -> Iterator[Call]:
        """Yield the calls that one made."""
        return (each for each in self.calls if each.caller == call.row)

    def is_inside(self, call: Call, other: Call) -> bool:
        """Tell whether a call was made while another one ran."""
        return call.micro == other.micro and other.begin < call.begin and call.end < other.end

    def rows_of(self, role: Role) -> Iterator[int]:
        """Yield the rows of a role, of all calls."""
        return (row for slots in self._half.rows.by_role[role].values() for rows in slots.values() for row in rows)

    def is_captured(self, call: Call, row: int) -> bool:
        """Tell whether something that a call returned is returned by a call around its caller too, which got it by a hook."""
        caller = self.caller(call)
        if row < 0 or caller is None:
            return False
        digest, at = self.side.digest(row), self.caller(caller)
        while at is not None:
            if at.row not in self._returned:
                rows = self.slots(at.key, Role.OUTPUT).values()
                self._returned[at.row] = {self.side.digest(each) for each in rows}
            if digest in self._returned[at.row]:
                return True
            at = self.caller(at)
        return False

    def slots(self, key: Key, role: Role) -> dict[str, int]:
        """Return the rows of what a call was given, or of another role of it, by slot."""
        return {slot: rows[0] for slot, rows in self._half.rows.get(key, role).items()}

    def has_values(self, row: int) -> bool:
        """Tell whether the values of a row can be read."""
        return self.side.has_values(row)

    def values(self, row: int) -> np.ndarray:
        """Return the values of a row; nobody may write to them."""
        key = row if row in self.side.combined else -1 - self.side.columns["tensor"][row]
        found = self._read.pop(key, None)
        if found is None:
            found = self.side.values(row)
            self._nbytes += found.nbytes
        self._read[key] = found
        while self._nbytes > _KEPT and len(self._read) > 1:
            self._nbytes -= self._read.pop(next(iter(self._read))).nbytes
        return found

    def lowest(self, row: int) -> float:
        """Return the smallest finite element of a row."""
        return float(self.side.columns["min"][row])

    def digest(self, row: int) -> object:
        """Return what tells the values of a row from others."""
        return self.side.digest(row)

    def are_equal(self, row: int, others: Iterable[int]) -> bool:
        """Tell whether a row has the values of one of others."""
        return self.side.digest(row) in {self.side.digest(other) for other in others}

    def dtype(self, row: int) -> str:
        """Return the dtype of a row."""
        return self.side.dtypes[row]

    def shape(self, row: int) -> tuple[int, ...]:
        """Return the shape of a row."""
        return self.side.shapes[row]

    def learns(self, row: int) -> bool:
        """Tell whether the tensor of a row was to have a gradient."""
        return bool(self.side.columns["requires_grad"][row])

    def has_gradients(self, module: int) -> bool:
        """Tell whether a module's own parameters got gradients."""
        roles, modules = self.side.columns["role"], self.side.columns["module"]
        return any(role == Role.PARAM_GRAD and at == module for role, at in zip(roles, modules, strict=True))

    def weights(self) -> dict[str, int]:
        """Return the stored tensors of the weights and buffers that the step began with, by the first of their names."""
        return self._of_parameters(Phase.INIT, (Role.PARAM, Role.BUFFER))

    def gradients(self) -> dict[str, int]:
        """Return the stored gradients as the optimizer used them, or else as backward left them, likewise."""
        return self._of_parameters(Phase.UPDATE, (Role.PARAM_GRAD,)) or self._of_parameters(
            Phase.GRADIENT, (Role.PARAM_GRAD,)
        )

    def _of_parameters(self, wanted: Phase, roles: Sequence[Role]) -> dict[str, int]:
        """Return stored tensors by the names of the parameters that they are of; the last one where there are several."""
        names = {(each.module, each.slot): each.names[0] for each in self.side.parameters}
        columns, found = self.side.columns, dict[str, int]()
        for row, (phase, role, module) in enumerate(
            zip(columns["phase"], columns["role"], columns["module"], strict=True)
        ):
            name = names.get((module, self.side.slots[row])) if phase == wanted and role in roles else None
            if name is not None and columns["tensor"][row] >= 0 and row not in self.side.combined:
                found[name] = columns["tensor"][row]
        return found
