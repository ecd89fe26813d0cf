"""Which argument or result of a call of A is which of B's."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

from probe.records import Phase, Role
from probe.verdict.distance.masks import fill_of
from probe.verdict.distance.measure import measure
from probe.verdict.side import Call, Side
from probe.verdict.tensors import Tensor, added, with_bias

Slots = dict[str, Tensor]
Form = Callable[[Tensor], object]


def pair_slots(a: Slots, b: Slots) -> list[tuple[str, str]]:
    """Pair by name, by equal bytes, by a form that is unique on both sides, and positions with names in order."""
    left_a, left_b, pairs = list(a), list(b), []

    def rivals(x: str, form: Form) -> list[list[str]]:
        sides = (left_a, a), (left_b, b)
        return [[slot for slot in left if form(side[slot]) == form(a[x])] for left, side in sides]

    def only(x: str, form: Form) -> str | None:
        mine, theirs = rivals(x, form)
        return theirs[0] if len(mine) == len(theirs) == 1 else None

    def in_order(x: str) -> str | None:
        mine, theirs = rivals(x, _form)
        kinds = {_is_position(z) for z in mine}, {_is_position(y) for y in theirs}
        return theirs[0] if len(mine) == len(theirs) and kinds[0] != kinds[1] else None

    rules: tuple[Callable[[str], str | None], ...] = (
        lambda x: x if x in left_b and _kind(a[x]) == _kind(b[x]) else None,
        lambda x: next((y for y in left_b if a[x].hash is not None and a[x].hash == b[y].hash), None),
        lambda x: only(x, _mask_size) if _mask_size(a[x]) is not None else None,
        lambda x: only(x, _form),
        in_order,
        lambda x: x if x in left_b else None,
    )
    for rule in rules:
        for slot in list(left_a):
            other = rule(slot)
            if other is not None:
                pairs.append((slot, other))
                left_a.remove(slot)
                left_b.remove(other)
    return pairs


def with_terms_added(half: Side, call: Call, mine: Slots, theirs: Slots, is_known: bool) -> Slots:
    """Return what a call was given or returned, with what stands apart in it, and not on the other side, added.

    A bias beside an output (Megatron's ``skip_bias_add``), a residual beside an input (norms that add it). The gradient
    is the same either way. It is known where calls of the same classes showed it.
    """
    for slot, beside in itertools.pairwise(mine):
        total = _with_bias(half, call, mine[slot], mine[beside], theirs) or _sum(
            mine[slot], mine[beside], theirs, is_known
        )
        if total is not None:
            return {**{name: each for name, each in mine.items() if name != beside}, slot: total}
    return mine


def _sum(x: Tensor, residual: Tensor, theirs: Slots, is_known: bool) -> Tensor | None:
    """Return the sum of two tensors, if the other side has one that is far nearer to it than to either."""
    others = [each for each in theirs.values() if _kind(each) == _kind(x)]
    if x.kind != "float" or x.form != residual.form or x.dtype != residual.dtype or len(others) != 1:
        return None
    total = replace(added((x, residual)), parts=((x, residual),), learns=x.learns or residual.learns)
    errors = [measure(each, others[0]) for each in (total, x, residual)]
    sizes = [each.size for each in errors if each is not None]
    return total if is_known or (len(sizes) == 3 and 2 * sizes[0] < min(sizes[1:])) else None


def _with_bias(half: Side, call: Call, output: Tensor, vector: Tensor, theirs: Slots) -> Tensor | None:
    """Return an output with a vector added that is the bias of the module, or of one inside it.

    Where no weights are known, its shape says so.
    """
    is_apart = vector.kind == "float" and len(vector.shape) == 1 and output.shape[-1:] == vector.shape
    if not is_apart or any(each.form == vector.form for each in theirs.values()):
        return None
    weights = half.params.get((Phase.INIT, Role.PARAM), {})
    for place in half.places:
        is_inside = f"{half.reader.modules[place[0]].path}.".startswith(f"{call.path}.")
        known = weights.get(place)
        is_it = is_inside and place[1] == "bias" and (known is None or known.hash == vector.hash)
        if is_it and half.zeros(place).shape == vector.shape:
            return with_bias(output, vector if known is None or vector.has_values else known)
    return None


def _kind(tensor: Tensor) -> object:
    return tensor.kind == "integer", tensor.size


def _form(tensor: Tensor) -> object:
    return tensor.kind == "integer", sorted(tensor.form)


def _mask_size(tensor: Tensor) -> int | None:
    return tensor.size if tensor.dtype == "bool" or fill_of(tensor) is not None else None


def _is_position(slot: str) -> bool:
    return slot.partition(".")[0].isdigit()
