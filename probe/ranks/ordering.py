"""When things happened, over all ranks: micro-batch by micro-batch, forward from the first stage to the last one and backward from there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from probe.ranks.gathering import micro_of
from probe.ranks.members import Member
from probe.records import Phase
from probe.store.schema import CALLS

Block = tuple[int, ...]
"""what sorts passes: kind, place of the micro-batch, backward, stage, micro-batch"""
_BEGIN, _PASS, _GRADIENT, _UPDATE = range(4)


@dataclass(frozen=True)
class Calls:
    """The module calls of one step of all ranks."""

    rows: np.ndarray
    """of `schema.CALLS`, with the modules and micro-batches of the whole; ``caller`` counts within the step"""
    stage: np.ndarray
    last: np.ndarray
    """the stage in which a call ended, where it ran on several"""
    spans: np.ndarray
    """by module, the first and the last stage that ran it"""


def calls_of(members: Sequence[Member], step: int, modules: int, shares: int) -> Calls:
    """Return the calls of a step, each once: those that several ranks made together, and those of one module on several stages."""
    found: dict[tuple[int, ...], int] = {}
    rows: list[np.void] = []
    stages, lasts = [], []
    spans = np.stack([np.full(modules, 1 << 30), np.full(modules, -1)], axis=1)
    for member in sorted(members, key=lambda each: (each.stage, each.part, each.number)):
        own = member.reader.of_step("calls", step)
        first = _first_call(member, step)
        own_modules = member.module_of[own["module"]]
        micros = micro_of(own["micro"], member.parts[own["module"]], shares)
        np.minimum.at(spans[:, 0], own_modules, member.stage)
        np.maximum.at(spans[:, 1], own_modules, member.stage)
        at: list[int] = []
        seen: dict[tuple[int, ...], int] = {}
        columns = (own_modules, micros, own["call"], own["recomputed"])
        for place, key in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
            nth = seen[key] = seen.get(key, -1) + 1
            number = found.get((*key, nth))
            if number is None:
                number = found[(*key, nth)] = len(rows)
                row = own[place].copy()
                caller = int(row["caller"]) - first
                row["module"], row["micro"] = own_modules[place], micros[place]
                row["caller"] = at[caller] if 0 <= caller < place else -1
                rows.append(row)
                stages.append(member.stage)
                lasts.append(member.stage)
            elif member.stage > lasts[number]:
                rows[number]["end"], lasts[number] = own["end"][place], member.stage
            at.append(number)
    table = np.array(rows, CALLS) if rows else np.zeros(0, CALLS)
    return Calls(table, np.array(stages, np.int64), np.array(lasts, np.int64), spans)


def _first_call(member: Member, step: int) -> int:
    first = 0
    for row in member.reader.steps:
        if row["step"] == step:
            break
        first = int(row["n_calls"])
    return first


class Timeline:
    """The numbers that say when something happened, of all ranks together."""

    def __init__(self, stages: int) -> None:
        self._stages = stages
        self._ends: dict[Block, tuple[int, int]] = {}
        self._begins: dict[int, int] = {}
        self._base: dict[Block, int] = {}

    def see(
        self, seq: np.ndarray, micro: np.ndarray, backward: np.ndarray, stage: np.ndarray, kind: np.ndarray
    ) -> None:
        """Take note of when things happened on their ranks."""
        order = np.lexsort((stage, backward, micro, kind))
        columns = [column[order] for column in (kind, micro, backward, stage)]
        is_new = np.ones(len(seq), bool)
        is_new[1:] = np.any([column[1:] != column[:-1] for column in columns], axis=0)
        starts = np.flatnonzero(is_new)
        if not len(starts):
            return
        low, high = np.minimum.reduceat(seq[order], starts), np.maximum.reduceat(seq[order], starts)
        for *key, first, last in zip(
            *(column[starts].tolist() for column in columns), low.tolist(), high.tolist(), strict=True
        ):
            known = self._ends.get(tuple(key), (first, last))
            self._ends[tuple(key)] = min(first, known[0]), max(last, known[1])
            if key[0] == _PASS and not key[2]:
                self._begins[key[1]] = min(first, self._begins.get(key[1], first))

    def settle(self) -> None:
        """Let passes follow one another."""
        place = {micro: k for k, micro in enumerate(sorted(self._begins, key=self._when))}
        base = 0
        for key in sorted(self._ends, key=lambda key: self._sorted(key, place)):
            low, high = self._ends[key]
            self._base[key] = base - low
            base += high - low + 1

    def _when(self, micro: int) -> tuple[int, int]:
        """Sort micro-batches as they began; those with gradients among each other by their numbers."""
        begins = self._begins[micro] if micro < 0 else min(b for m, b in self._begins.items() if m >= 0)
        return begins, abs(micro)

    def _sorted(self, key: Block, place: dict[int, int]) -> Block:
        kind, micro, backward, stage = key
        return kind, place.get(micro, len(place)), backward, self._stages - stage if backward else stage, micro

    def at(self, seq: int, micro: int, backward: int, stage: int, kind: int = _PASS) -> int:
        """Return when something happened, over all ranks."""
        base = self._base.get((kind, micro, backward, stage))
        return seq if base is None else base + seq


def kinds(phase: np.ndarray, of_parameter: np.ndarray) -> np.ndarray:
    """Return the kind of pass that records belong to."""
    found = np.full(len(phase), _PASS)
    found[phase == Phase.INIT] = _BEGIN
    found[of_parameter & (phase == Phase.GRADIENT)] = _GRADIENT
    found[phase == Phase.UPDATE] = _UPDATE
    return found


def ordered_calls(calls: Calls, timeline: Timeline) -> np.ndarray:
    """Return the calls of a step in their order, with numbers of when they began and ended over all ranks."""
    rows = calls.rows.copy()
    for k in range(len(rows)):
        micro, again = int(rows["micro"][k]), int(rows["recomputed"][k])
        rows["seq"][k] = timeline.at(int(calls.rows["seq"][k]), micro, again, int(calls.stage[k]))
        rows["end"][k] = timeline.at(int(calls.rows["end"][k]), micro, again, int(calls.last[k]))
    order = np.argsort(rows["seq"], kind="stable")
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    rows = rows[order]
    called = rows["caller"] >= 0
    rows["caller"][called] = place[rows["caller"][called]]
    return rows


def ordered_records(
    rows: np.ndarray, seq: np.ndarray, stage: np.ndarray, of_parameter: np.ndarray, timeline: Timeline
) -> None:
    """Give records their numbers of when they were made, over all ranks, and their causal order."""
    kind = kinds(rows["phase"], of_parameter)
    backward = (rows["phase"] == Phase.BACKWARD).astype(np.int64)
    columns = (seq, np.where(kind == _PASS, rows["micro"], 0), backward, stage, kind)
    parts = zip(*(column.tolist() for column in columns), rows["order"].tolist(), of_parameter.tolist(), strict=True)
    for k, (when, micro, back, place, what, order, of_weight) in enumerate(parts):
        rows["seq"][k] = at = timeline.at(when, micro, back, place, what)
        if not of_weight:
            rows["order"][k] = -timeline.at(-order, micro, 0, place) if back else at


def see_records(
    rows: np.ndarray, seq: np.ndarray, stage: np.ndarray, of_parameter: np.ndarray, timeline: Timeline
) -> None:
    """Take note of when records were made on their ranks."""
    kind = kinds(rows["phase"], of_parameter)
    backward = (rows["phase"] == Phase.BACKWARD).astype(np.int64)
    timeline.see(seq, np.where(kind == _PASS, rows["micro"], 0).astype(np.int64), backward, stage, kind)


def see_calls(calls: Calls, timeline: Timeline) -> None:
    """Take note of when calls began and ended on their ranks."""
    rows = calls.rows
    again, micro = rows["recomputed"].astype(np.int64), rows["micro"].astype(np.int64)
    kind = np.full(len(rows), _PASS)
    for column, stage in (("seq", calls.stage), ("end", calls.last)):
        timeline.see(rows[column].astype(np.int64), micro, again, stage, kind)
