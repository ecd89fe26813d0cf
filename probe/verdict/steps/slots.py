"""Which argument or result of a call of A is which of B's."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from probe.verdict.distance.masks import fill_of
from probe.verdict.tensors import Tensor

Slots = Mapping[str, Tensor]


def pair_slots(a: Slots, b: Slots) -> list[tuple[str, str]]:
    """Pair by name, by equal bytes, by a form that is unique on both sides, and positions with names in order."""
    left_a, left_b, pairs = list(a), list(b), []

    def take(x: str, y: str) -> None:
        pairs.append((x, y))
        left_a.remove(x)
        left_b.remove(y)

    def rivals(left: list[str], side: Slots, form: object) -> list[str]:
        return [slot for slot in left if _form(side[slot]) == form]

    def by_name(x: str) -> str | None:
        return x if x in left_b and _form(a[x], any_shape=True) == _form(b[x], any_shape=True) else None

    def by_bytes(x: str) -> str | None:
        return next((y for y in left_b if a[x].hash is not None and a[x].hash == b[y].hash), None)

    def by_form(x: str) -> str | None:
        mine, theirs = rivals(left_a, a, _form(a[x])), rivals(left_b, b, _form(a[x]))
        return theirs[0] if len(mine) == len(theirs) == 1 else None

    def masks(x: str) -> str | None:
        if not _is_mask(a[x]):
            return None
        theirs = [y for y in left_b if _is_mask(b[y]) and b[y].size == a[x].size]
        mine = [z for z in left_a if _is_mask(a[z]) and a[z].size == a[x].size]
        return theirs[0] if len(mine) == len(theirs) == 1 else None

    def in_order(x: str) -> str | None:
        mine, theirs = rivals(left_a, a, _form(a[x])), rivals(left_b, b, _form(a[x]))
        kinds = {_is_position(z) for z in mine}, {_is_position(y) for y in theirs}
        return theirs[0] if len(mine) == len(theirs) and kinds[0] != kinds[1] else None

    def not_comparable(x: str) -> str | None:
        return x if x in left_b else None

    rules: tuple[Callable[[str], str | None], ...] = (by_name, by_bytes, masks, by_form, in_order, not_comparable)
    for rule in rules:
        for slot in list(left_a):
            other = rule(slot)
            if other is not None:
                take(slot, other)
    return pairs


def _form(tensor: Tensor, any_shape: bool = False) -> tuple[object, ...]:
    return tensor.kind == "integer", tensor.size if any_shape else tuple(sorted(tensor.form))


def _is_mask(tensor: Tensor) -> bool:
    return tensor.dtype == "bool" or fill_of(tensor) is not None


def _is_position(slot: str) -> bool:
    return slot.partition(".")[0].isdigit()
