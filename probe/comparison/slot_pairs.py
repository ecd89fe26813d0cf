"""Which argument, or result, of a call of A is which of B's."""

from __future__ import annotations

import math

from probe.comparison.metrics import Side, kind_of, squeezed

Slots = dict[str, list[int]]
"""rows by slot"""


def pair_slots(side_a: Side, a: Slots, side_b: Side, b: Slots) -> list[tuple[str, str]]:
    """Pair slots by key, then by equal bytes, then by a shape that only one is left of on both sides."""
    left_a, left_b = list(a), list(b)
    pairs = []

    def take(slot_a: str, slot_b: str) -> None:
        pairs.append((slot_a, slot_b))
        left_a.remove(slot_a)
        left_b.remove(slot_b)

    for slot in [slot for slot in left_a if slot in b]:
        if _fits(side_a, a[slot][0], side_b, b[slot][0]):
            take(slot, slot)
    for slot_a in list(left_a):
        same = [slot_b for slot_b in left_b if _equal(side_a, a[slot_a][0], side_b, b[slot_b][0])]
        if same:
            take(slot_a, same[0])
    forms_a = {slot: _form(side_a, a[slot][0]) for slot in left_a}
    forms_b = {slot: _form(side_b, b[slot][0]) for slot in left_b}
    for slot_a, form in forms_a.items():
        alone = list(forms_a.values()).count(form) == 1
        same = [slot_b for slot_b in left_b if forms_b[slot_b] == form]
        if alone and len(same) == 1:
            take(slot_a, same[0])
    for slot in [slot for slot in left_a if slot in left_b]:  # not comparable, which is to be said
        take(slot, slot)
    return pairs


def _fits(a: Side, i: int, b: Side, j: int) -> bool:
    same_kind = kind_of(a.dtypes[i]) == kind_of(b.dtypes[j])
    return same_kind and math.prod(a.shapes[i]) == math.prod(b.shapes[j])


def _equal(a: Side, i: int, b: Side, j: int) -> bool:
    digest = a.digest(i)
    return digest is not None and digest == b.digest(j) and _fits(a, i, b, j)


def _form(side: Side, row: int) -> tuple[str, tuple[int, ...]]:
    return kind_of(side.dtypes[row]), tuple(sorted(squeezed(side.shapes[row])))
