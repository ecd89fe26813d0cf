"""Which ranks answer: copies that are not equal, and the ranks that hold what differs from the other side."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from probe.comparison.distance.combined import LACKING, Fused
from probe.comparison.notes import Note, note
from probe.comparison.result import Divergence, Kind, NodeRef
from probe.comparison.steps.events import StepPairs
from probe.comparison.steps.side import PARAMETER_ROLES, Side
from probe.comparison.steps.step_half import StepHalf
from probe.numbers.fused import fuse
from probe.ranks.opening import is_of_ranks
from probe.records import Phase

if TYPE_CHECKING:
    from probe.ranks.replicas import Difference

_NEARER = 0.1
"""share of the distance of a copy from the other side's tensor up to which another copy is the right one"""
_SURE, _BETWEEN_TWO = 0.97, 0.9
_WRONG = 10.0
"""a part is wrong too whose error is more than this share of the worst part's, by one over it"""
_NAMED = 3
_REORDERED = "permuted"
"""what is said of a weight whose parts stand in another order"""
_LARGEST = 1 << 24
"""elements up to which parts are held against the other side one by one"""


def with_ranks(pairs: StepPairs, findings: Sequence[Divergence]) -> list[Divergence]:
    """Return the findings of a step with the ranks that they concern, and before them copies on ranks that are not equal.

    Parameters
    ----------
    pairs
        a step
    findings
        in the order of cause
    """
    halves = [half for half in pairs.halves if is_of_ranks(half.side.reader)]
    if not halves:
        return list(findings)
    named = [_named(pairs, halves, finding) for finding in findings]
    for half in halves:
        for found in _copies(pairs, half):
            named = _inserted(named, found, pairs, half)
    return named


def _inserted(
    findings: list[Divergence], found: tuple[Divergence, int], pairs: StepPairs, half: StepHalf
) -> list[Divergence]:
    """Put a finding on copies before those that come later; one of the same place gives way to it."""
    finding, order = found
    places = {(ref.path, finding.phase) for ref in finding.a + finding.b}
    rest = [
        each for each in findings
        if each.phase is not finding.phase or not any((ref.path, each.phase) in places for ref in each.a + each.b)
    ]  # fmt: skip
    at = next((k for k, each in enumerate(rest) if _is_later(each, finding, order, half)), len(rest))
    return [*rest[:at], finding, *rest[at:]]


def _is_later(other: Divergence, finding: Divergence, order: int, half: StepHalf) -> bool:
    if other.kind is Kind.INPUTS:
        return finding.phase is not Phase.INIT
    if other.phase is not finding.phase:
        return other.phase > finding.phase
    row = -1 if other.event is None else half.row(other.event)
    return row < 0 or half.side.columns["seq"][row] >= order


# ---- copies that differ


def _copies(pairs: StepPairs, half: StepHalf) -> Iterator[tuple[Divergence, int]]:
    """Yield findings on copies: each weight that the step begins with; of what follows, the first."""
    reader = half.side.reader
    assert is_of_ranks(reader)
    differences = sorted(reader.step(half.side.step).differences, key=lambda each: (each.phase, each.order))
    initial = [each for each in differences if each.phase is Phase.INIT]
    by_tensor: dict[int, list[Difference]] = {}
    for each in initial or differences:
        by_tensor.setdefault(each.tensor, []).append(each)
    for parts in list(by_tensor.values())[: len(by_tensor) if initial else 1]:
        yield _finding(pairs, half, parts), parts[0].order


def _finding(pairs: StepPairs, half: StepHalf, parts: Sequence[Difference]) -> Divergence:
    """Return the finding on one tensor, of which copies of each part may differ."""
    difference = parts[0]
    odd = [_odd_ranks(pairs, half, part) for part in parts]
    ranks, others = (tuple(sorted({rank for each in odd for rank in each[k]})) for k in (0, 1))
    other = pairs.half(half.other)
    pair = half.pair_of.get(difference.module)
    slot = difference.slot
    refs = []
    for each, module in ((half, difference.module), (other, None if pair is None else other.modules[pair])):
        info = each.side.reader.modules[0 if module is None else module]
        refs.append((NodeRef.of(each.side.step, difference.micro, info, difference.call, slot),))
    told = note(
        "copies-differ", side=half.name, ranks=ranks, others=others, groups=difference.groups, error=difference.error
    )
    is_weight = difference.is_of_weight
    advice = note("copies-of-weights", phase=difference.phase.label) if is_weight else note("copies-of-tensors")
    return Divergence(
        difference.phase, difference.role, Kind.REPLICAS, _SURE if others else _BETWEEN_TWO,
        *(refs if half.name == "A" else refs[::-1]), None, 0.0, (told,), advice, difference.error,
    )  # fmt: skip


def _odd_ranks(pairs: StepPairs, half: StepHalf, difference: Difference) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ranks that are wrong and those that are right: by the other side, or by the majority; the second empty where nothing tells."""
    given = _of_other_side(pairs, half, difference)
    if given is not None:
        far = [float(np.linalg.norm(copy.sketch - given)) for copy in difference.copies]
        near = [copy.rank for copy, each in zip(difference.copies, far, strict=True) if each <= _NEARER * max(far)]
        if near and len(near) < len(far):
            return tuple(copy.rank for copy in difference.copies if copy.rank not in near), tuple(near)
    if difference.is_told:
        return difference.ranks, difference.others
    return tuple(sorted((*difference.ranks, *difference.others))), ()


def _of_other_side(pairs: StepPairs, half: StepHalf, difference: Difference) -> np.ndarray | None:
    """Return the sketch of the other side's tensor; None where it has none of that form."""
    pair = half.pair_of.get(difference.module)
    if pair is None or any(not np.isfinite(copy.sketch).all() for copy in difference.copies):
        return None
    other = pairs.half(half.other)
    is_weight = difference.role in PARAMETER_ROLES
    key = (0, other.modules[pair], 0) if is_weight else (difference.micro, other.modules[pair], difference.call)
    slot = f"{difference.phase.label}:{difference.slot}" if is_weight else difference.slot
    rows = other.rows.get(key, difference.role).get(slot, [])
    if not rows or tuple(other.side.shapes[rows[-1]]) != difference.shape:
        return None
    return other.side.sketch(rows[-1])


def lost_parts(pairs: StepPairs) -> Iterator[Note]:
    """Yield which tensors of a step could not be put together from what ranks hold, by the reason."""
    for half in pairs.halves:
        reader = half.side.reader
        if not is_of_ranks(reader):
            continue
        by_reason: dict[str, dict[str, None]] = {}
        for module, role, slot, why in reader.step(half.side.step).lost:
            by_reason.setdefault(why, {})[f"{role.label} {slot} of {half.path(module) or 'the model'}"] = None
        for why, tensors in by_reason.items():
            yield note("dims-unknown", side=half.name, tensors=tuple(tensors)[:_NAMED], count=len(tensors), why=why)


# ---- ranks of other findings


def _named(pairs: StepPairs, halves: Iterable[StepHalf], finding: Divergence) -> Divergence:
    """Return a finding with the ranks that hold what it is about: those that are wrong, where values tell them."""
    facts: list[Note] = []
    for half in halves:
        reader = half.side.reader
        assert is_of_ranks(reader)
        row = -1 if finding.event is None else half.row(finding.event)
        if row < 0:
            ranks = reader.ranks_with({ref.path for ref in (finding.a if half.name == "A" else finding.b)})
            facts.append(note("on-ranks", side=half.name, ranks=ranks, of=len(ranks)))
            continue
        step = reader.step(half.side.step)
        holders = sorted({rank for own in _own_rows(half.side, row) for rank in step.ranks_of(own)})
        wrong = _wrong_ranks(pairs, half, finding) if len(holders) > 1 else ()
        if holders:
            facts.append(note("on-ranks", side=half.name, ranks=tuple(wrong or holders), of=len(holders)))
    return replace(finding, facts=(*finding.facts, *facts)) if facts else finding


def with_parts(pairs: StepPairs, finding: Divergence) -> Divergence:
    """Return a finding that parts stand in another order, with how ranks' parts are put together where it is about one of these."""
    if finding.event is None or finding.advice.facts.get("name") != _REORDERED:
        return finding
    halves = [half for half in pairs.halves if is_of_ranks(half.side.reader)]
    divided = [half for half in halves if len((_labels(half.side, half.row(finding.event)) or (None, ()))[1]) > 1]
    facts = [note("parts-of-ranks", side=half.name) for half in divided]
    return replace(finding, facts=(*finding.facts, *facts)) if facts else finding


def _own_rows(side: Side, row: int) -> Iterator[int]:
    """Yield the recorded rows that a row stands for."""
    if row not in side.combined:
        yield row
        return
    for part in side.combined[row].parts:
        yield from _own_rows(side, part)


def _wrong_ranks(pairs: StepPairs, half: StepHalf, finding: Divergence) -> tuple[int, ...]:
    """Return the ranks whose parts differ from the other side's, where values tell it and other parts agree; empty elsewhere."""
    event = finding.event
    assert event is not None
    sides = (pairs.a, event.row_a), (pairs.b, event.row_b)
    if any(row < 0 or not side.has_values(row) or math.prod(side.shapes[row]) > _LARGEST for side, row in sides):
        return ()
    if pairs.a.shapes[event.row_a] != pairs.b.shapes[event.row_b]:
        return ()
    labelled = _labels(half.side, half.row(event))
    if labelled is None or len(labelled[1]) < 2:
        return ()
    x, y = (side.values(row).astype(np.float64) for side, row in sides)
    squares, size = np.square(event.factor * x - y), np.square(y)
    labels, ranks = labelled[0].ravel(), labelled[1]
    apart = np.bincount(labels, squares.ravel(), len(ranks))
    whole = np.maximum(np.bincount(labels, size.ravel(), len(ranks)), 1e-300)
    errors = np.sqrt(apart / whole)
    is_wrong = errors > max(float(errors.max()) / _WRONG, finding.limit if finding.limit == finding.limit else 0.0)
    if is_wrong.all():
        return ()
    return tuple(sorted({rank for each, own in zip(is_wrong, ranks, strict=True) if each for rank in own}))


def _labels(side: Side, row: int) -> tuple[np.ndarray, list[tuple[int, ...]]] | None:
    """Return for each element of a row the number of the part that it is in, and the ranks that hold each part."""
    reader = side.reader
    assert is_of_ranks(reader)
    if row not in side.combined:
        return reader.step(side.step).labels(row, side.shapes[row])
    combined = side.combined[row]
    if not isinstance(combined, Fused) or combined.fusion.stacked or combined.fusion.rotary or len(combined.pieces) > 1:
        return None
    arrays, ranks = [], []
    for piece in combined.pieces[0]:
        found = None if piece.row == LACKING else _labels(side, piece.row)
        if found is None or found[0].shape != piece.shape:
            return None
        arrays.append(found[0] + len(ranks))
        ranks += found[1]
    return fuse([arrays], combined.fusion), ranks
