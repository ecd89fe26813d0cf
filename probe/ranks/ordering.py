"""When things happened, over all ranks: micro-batch by micro-batch, forward from the first stage to the last one and backward from there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from probe.ranks.gathering import OF_PARAMETERS, micro_of
from probe.ranks.members import Member
from probe.records import Phase
from probe.store.schema import CALLS

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
        own, first = member.reader.of_step("calls", step), member.reader.calls_before(step)
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


def in_order(rows: np.ndarray, seq: np.ndarray, stage: np.ndarray, calls: Calls) -> np.ndarray:
    """Number records by when they were made, over all ranks, and by their causal order; return the calls in theirs.

    The rows are written to. ``seq`` and ``stage`` are, by record, the number that it has on its rank, and the stage
    of that.
    """
    phase, of_parameter = rows["phase"], OF_PARAMETERS[rows["role"]]
    kind = np.full(len(rows), _PASS)
    kind[phase == Phase.INIT] = _BEGIN
    kind[of_parameter & (phase == Phase.GRADIENT)] = _GRADIENT
    kind[phase == Phase.UPDATE] = _UPDATE
    micro, is_backward = np.where(kind == _PASS, rows["micro"], 0), phase == Phase.BACKWARD
    table = calls.rows.copy()
    of_calls = (np.full(len(table), _PASS), table["micro"], table["recomputed"])
    columns = ((kind, micro, is_backward, stage), (*of_calls, calls.stage), (*of_calls, calls.last))
    passes, which = np.unique(np.concatenate([np.stack(each, axis=1) for each in columns]), axis=0, return_inverse=True)
    when = np.concatenate([seq, table["seq"], table["end"]]).astype(np.int64)
    shifts = _shifts(passes, which.reshape(-1), when)
    when += shifts[which.reshape(-1)]
    rows["seq"], table["seq"], table["end"] = np.split(when, [len(rows), len(rows) + len(table)])
    shift_of = dict(zip(map(tuple, passes.tolist()), shifts.tolist(), strict=True))
    forwards = [shift_of.get((_PASS, of, 0, own), 0) for of, own in zip(micro.tolist(), stage.tolist(), strict=True)]
    order = np.where(is_backward, rows["order"] - np.array(forwards, np.int64), rows["seq"])
    rows["order"] = np.where(of_parameter, rows["order"], order)
    by_time = np.argsort(table["seq"], kind="stable")
    table, place = table[by_time], np.argsort(by_time)
    called = table["caller"] >= 0
    table["caller"][called] = place[table["caller"][called]]
    return table


def _shifts(passes: np.ndarray, which: np.ndarray, when: np.ndarray) -> np.ndarray:
    """Return what is added to the times of each pass, so that they follow one another.

    ``passes`` are kind, micro-batch, backward, stage: shape (passes, 4). ``which`` and ``when`` are of all that
    happened: the pass, and when it was on its rank.
    """
    low, high = np.full(len(passes), np.iinfo(np.int64).max), np.full(len(passes), np.iinfo(np.int64).min)
    np.minimum.at(low, which, when)
    np.maximum.at(high, which, when)
    begins: dict[int, int] = {}
    for (kind, micro, backward, _), first in zip(passes.tolist(), low.tolist(), strict=True):
        if kind == _PASS and not backward:
            begins[micro] = min(first, begins.get(micro, first))
    trained = min((first for micro, first in begins.items() if micro >= 0), default=0)
    # those with gradients by their numbers, others as they began
    micros = sorted(begins, key=lambda micro: (begins[micro] if micro < 0 else trained, abs(micro)))
    place, shifts, base = {micro: k for k, micro in enumerate(micros)}, np.zeros(len(passes), np.int64), 0

    def key(number: int) -> tuple[int, ...]:
        kind, micro, backward, stage = passes[number].tolist()
        return kind, place.get(micro, len(place)), backward, -stage if backward else stage, micro

    for number in sorted(range(len(passes)), key=key):
        shifts[number] = base - low[number]
        base += high[number] - low[number] + 1
    return shifts
