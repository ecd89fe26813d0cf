"""The first sample in which the batches of two recordings differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from probe.checks.data.batches import IDS, LABELS, MASK, Batch, Batches, Field
from probe.checks.data.labels import Shift, shift_of
from probe.checks.outcome import Line, State, fault, fine, unchecked
from probe.notes import note

_TOPIC = "samples"
_BY_KIND = (IDS, MASK, LABELS)
_SHORTEST = 2
"""axes of a batch of samples"""
_IGNORED = -100.0
"""the label behind the last one, where labels are shifted"""


@dataclass(frozen=True)
class SampleDifference:
    """The first sample that differs."""

    step: int
    """of A"""
    micro: int
    """of A; −1 where the batch is split otherwise and was put together"""
    field: str
    sample: int
    """number of the row"""
    position: tuple[int, ...]
    """inside the sample"""
    a: float
    b: float
    rows: tuple[int, int]
    """samples that differ, and all"""
    same_elsewhere: int
    """the row of B that is A's sample; −1 where there is none"""
    ids: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    """the token ids of that sample in A and in B, where they were recorded"""


def compare_samples(a: Batches, b: Batches) -> tuple[SampleDifference | None, list[Line]]:
    """Return the first sample that differs, None where none is known to, and what is to be said.

    Steps pair by their numbers, micro-batches by theirs; a step that is split otherwise is put together first.
    """
    mine, theirs = _by_step(a.batches), _by_step(b.batches)
    steps = [step for step in mine if step in theirs]
    if not steps:
        return None, [unchecked(_TOPIC, "no-common-batches")]
    compared: dict[str, int] = {}
    shifted: dict[bool, int] = {}
    for step in steps:
        for pair in _pairs(mine[step], theirs[step]):
            difference, line = _first(pair, compared, shifted)
            if line is not None:
                return difference, [line]
    by_values = shifted.get(True, 0) > 0
    lines = [
        Line(_TOPIC, State.OK if by_values else State.UNKNOWN, note("labels-of-one-side-shifted", is_sure=by_values))
    ] if shifted else []  # fmt: skip
    if not compared:
        return None, lines or [unchecked(_TOPIC, "no-common-fields")]
    return None, [fine(_TOPIC, "samples-equal", steps=len(steps), fields=tuple(compared)), *lines]


def _by_step(batches: Sequence[Batch]) -> dict[int, list[Batch]]:
    found: dict[int, list[Batch]] = {}
    for batch in batches:
        found.setdefault(batch.step, []).append(batch)
    return found


@dataclass(frozen=True)
class _Pair:
    """Micro-batches of A that are those of B; one of each, or all of a step."""

    a: list[Batch]
    b: list[Batch]


def _pairs(a: list[Batch], b: list[Batch]) -> Iterator[_Pair]:
    """Yield the micro-batches of a step in pairs; together where one side has more."""
    if [batch.micro for batch in a] == [batch.micro for batch in b]:
        yield from (_Pair([x], [y]) for x, y in zip(a, b, strict=True))
        return
    trained = [[batch for batch in side if batch.micro >= 0] for side in (a, b)]
    if all(trained):
        yield _Pair(*trained)


def _first(
    pair: _Pair, compared: dict[str, int], shifted: dict[bool, int]
) -> tuple[SampleDifference | None, Line | None]:
    """Return the first difference of two micro-batches; None and None where there is none.

    ``compared`` counts the fields, ``shifted`` labels that one side has one position earlier: by whether values tell.
    """
    names = [key for key in _keys(pair) if all(key in batch.fields for batch in (*pair.a, *pair.b))]
    for key in names:
        mine, theirs = [batch.fields[key] for batch in pair.a], [batch.fields[key] for batch in pair.b]
        if len(mine) == len(theirs) == 1 and _are_equal(mine[0], theirs[0]):
            compared[key] = compared.get(key, 0) + 1
            continue
        has_values = all(each.has_values for each in (*mine, *theirs))
        if key == LABELS and (_are_shifted(pair) if has_values else _may_be_shifted(mine, theirs)):
            shifted[has_values] = shifted.get(has_values, 0) + 1
            continue
        if not has_values:
            if len(mine) == len(theirs) == 1 and mine[0].digest is not None and theirs[0].digest is not None:
                facts = {"step": pair.a[0].step, "micro": pair.a[0].micro, "field": key}
                return None, fault(_TOPIC, "batches-differ", **facts)
            continue
        compared[key] = compared.get(key, 0) + 1
        difference, line = _of_values(pair, key, mine, theirs)
        if line is not None:
            return difference, line
    return None, None


def _keys(pair: _Pair) -> list[str]:
    """Return the fields of A, the ids first."""
    fields = dict.fromkeys(key for batch in pair.a for key in batch.fields)
    return [*(key for key in _BY_KIND if key in fields), *(key for key in fields if key not in _BY_KIND)]


def _are_equal(a: Field, b: Field) -> bool:
    is_of_one_kind = a.tensor.shape == b.tensor.shape and a.tensor.dtype == b.tensor.dtype
    return a.digest is not None and a.digest == b.digest and is_of_one_kind


def _are_shifted(pair: _Pair) -> bool:
    """Return True if labels of both sides are the same but for one position, as where one side shifts them and the other's loss does."""
    a, b = (np.concatenate([batch.fields[LABELS].values() for batch in side]) for side in (pair.a, pair.b))
    if a.shape != b.shape or a.ndim != _SHORTEST or a.shape[1] < _SHORTEST:
        return False
    for side, labels in ((pair.a, a), (pair.b, b)):
        fields = [batch.get(IDS) for batch in side]
        ids = np.concatenate([each.values() for each in fields if each is not None and each.has_values] or [labels])
        if ids.shape == labels.shape and shift_of(ids, labels) is Shift.PREVIOUS:
            return False
    return np.array_equal(a[:, 1:], b[:, :-1]) or np.array_equal(a[:, :-1], b[:, 1:])


def _may_be_shifted(mine: list[Field], theirs: list[Field]) -> bool:
    """Return True if statistics of labels are as far apart as one element of each row makes them at most."""
    if len(mine) != 1 or len(theirs) != 1 or mine[0].tensor.shape != theirs[0].tensor.shape:
        return False
    a, b = mine[0], theirs[0]
    if len(a.tensor.shape) != _SHORTEST:
        return False
    widest = max(a.tensor.high, b.tensor.high) - min(a.tensor.low, b.tensor.low, _IGNORED)
    return abs(a.mean - b.mean) * a.tensor.size <= a.tensor.shape[0] * widest


def _of_values(
    pair: _Pair, key: str, mine: list[Field], theirs: list[Field]
) -> tuple[SampleDifference | None, Line | None]:
    """Hold the values of a field against each other, sample by sample."""
    shapes = [each.tensor.shape[1:] for each in (*mine, *theirs)]
    step, micro = pair.a[0].step, pair.a[0].micro if len(pair.a) == len(pair.b) == 1 else -1
    if any(len(each.tensor.shape) < 1 for each in (*mine, *theirs)) or len(set(shapes)) > 1:
        told = tuple(each[0].tensor.shape for each in (mine, theirs))
        return None, fault(_TOPIC, "batches-of-other-shapes", step=step, field=key, a=told[0], b=told[1])
    a, b = (np.concatenate([each.values() for each in side]) for side in (mine, theirs))
    if len(a) != len(b):
        return None, fault(_TOPIC, "batches-of-other-shapes", step=step, field=key, a=a.shape, b=b.shape)
    rows_a, rows_b = a.reshape(len(a), -1), b.reshape(len(b), -1)
    differs = (rows_a != rows_b) & ~((rows_a != rows_a) & (rows_b != rows_b))
    wrong = np.flatnonzero(differs.any(axis=1))
    if not len(wrong):
        return None, None
    row, place = int(wrong[0]), int(np.flatnonzero(differs[wrong[0]])[0])
    same = np.flatnonzero((rows_b == rows_a[row]).all(axis=1))
    position = tuple(int(at) for at in np.unravel_index(place, a.shape[1:])) if a.ndim > 1 else ()
    found = SampleDifference(
        step, micro, key, row, position, float(rows_a[row, place]), float(rows_b[row, place]), (len(wrong), len(a)),
        int(same[0]) if len(same) else -1, _ids(pair, row),
    )  # fmt: skip
    names = ("step", "field", "sample", "position", "a", "b", "rows", "same_elsewhere")
    return found, fault(_TOPIC, "sample-differs", **{name: getattr(found, name) for name in names})


def _ids(pair: _Pair, row: int) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return the token ids of a sample in A and in B."""
    found = []
    for batches in (pair.a, pair.b):
        fields = [batch.get(IDS) for batch in batches]
        if any(each is None or not each.has_values or len(each.tensor.shape) != _SHORTEST for each in fields):
            return None
        rows = [row for each in fields if each is not None for row in each.values().tolist()]
        if row >= len(rows):
            return None
        found.append(tuple(int(each) for each in rows[row]))
    return found[0], found[1]
