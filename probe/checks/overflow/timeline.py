"""One step of a recording in the order of time: its tensors, those that are not finite, and who called whom."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np

from probe.checks.seen import Seen, first_call, in_time, seen
from probe.records import Phase, Role
from probe.store.reading.reader import Reader


class Timeline:
    """A step of a recording; tensors and calls are named by their indices in it."""

    def __init__(self, reader: Reader, number: int) -> None:
        self.reader, self.number = reader, number
        self.rows = in_time(reader, number)
        """records, in the order in which they were seen"""
        self.bad = (self.rows["nan"] > 0) | (self.rows["posinf"] > 0) | (self.rows["neginf"] > 0)
        """which of them are not finite"""

    @cached_property
    def calls(self) -> np.ndarray:
        """The calls of the step."""
        return self.reader.of_step("calls", self.number)

    def of_call(self, row: Any, *roles: Role) -> np.ndarray:
        """Return what belongs to the call of a record, by its roles."""
        same = np.isin(self.rows["role"], roles)
        for name in ("micro", "module", "call"):
            same &= self.rows[name] == row[name]
        return np.flatnonzero(same)

    def weights_of(self, module: int) -> list[int]:
        """Return the weights that a module began the step with."""
        rows = self.rows
        own = (rows["phase"] == Phase.INIT) & (rows["role"] == Role.PARAM) & (rows["module"] == module)
        return np.flatnonzero(own).tolist()

    def call(self, row: Any) -> int | None:
        """Return the call that a record belongs to."""
        same = self.calls["recomputed"] == 0
        for name in ("micro", "module", "call"):
            same &= self.calls[name] == row[name]
        found = np.flatnonzero(same)
        return int(found[0]) if len(found) else None

    def caller(self, call: int | None) -> int | None:
        """Return the call in which a call was made; None for what the program called."""
        above = -1 if call is None else int(self.calls["caller"][call]) - first_call(self.reader, self.number)
        return above if 0 <= above < len(self.calls) else None

    def returned_inside(self, call: int, before: int) -> list[int]:
        """Return what the calls that a call made itself had returned before a moment."""
        start = first_call(self.reader, self.number)
        found: list[int] = []
        for each in self.calls[self.calls["caller"] == call + start]:
            found += [index for index in self.of_call(each, Role.OUTPUT) if self.rows["seq"][index] < before]
        return sorted(found)

    def are_equal(self, row: Any) -> np.ndarray:
        """Return which records have the bytes of one."""
        same = np.ones(len(self.rows), bool)
        for name in ("hash_lo", "hash_hi", "hash_kind"):
            same &= self.rows[name] == row[name]
        return same

    def last_finite(self, first: int) -> Seen | None:
        """Return the last tensor before another one that is a call's, or an update's, and finite."""
        later = self.rows["phase"] != Phase.INIT
        before = np.flatnonzero(~self.bad[:first] & later[:first])
        return seen(self.reader, self.rows[before[-1]]) if len(before) else None

    # Masks

    def wrong(self) -> tuple[list[int], int]:
        """Return the tensors that are not finite and no masks, and how many masks there are."""
        suspects = np.flatnonzero(self.bad).tolist()
        kept = [index for index in suspects if not self._hides(index)]
        if all(self.reader.modules[module].is_operation for module in self.rows["module"][kept].tolist()):
            kept = []  # the code has taken away what no module is given or returns: a logarithm that is not chosen
        return kept, len(suspects) - len(kept)

    def _hides(self, index: int) -> bool:
        """Return True if a tensor has −Inf alone where it hides positions.

        All of its finite elements are one number, a mask was added to it, or what it is given to makes finite numbers of it, as a
        softmax does.
        """
        row = self.rows[index]
        if row["nan"] or row["posinf"]:
            return False
        if _is_mask(row) or self._share(row) in self._masked_shares(index):
            return True
        is_input = row["role"] == Role.INPUT and row["phase"] == Phase.FORWARD
        same = (
            np.arange(len(self.rows)) == index if is_input else self.are_equal(row) & (self.rows["role"] == Role.INPUT)
        )
        return any(self._makes_finite(self.rows[each]) for each in np.flatnonzero(same).tolist())

    def _masked_shares(self, before: int) -> set[float]:
        """Return what shares of their elements the masks before a tensor hide: what one is added to has the same."""
        return {self._share(row) for row in self.rows[:before][self.bad[:before]] if _is_mask(row)}

    def _share(self, row: Any) -> float:
        return round(int(row["neginf"]) / max(math.prod(self.reader.shapes[row["shape"]]), 1), 9)

    def _makes_finite(self, row: Any) -> bool:
        outputs = self.of_call(row, Role.OUTPUT)
        return bool(len(outputs)) and not self.bad[outputs].any()


def _is_mask(row: Any) -> bool:
    """Return True if a tensor has −Inf alone beside elements that are all one number."""
    return not (row["nan"] or row["posinf"] or row["min"] < row["max"]) and bool(row["neginf"])
