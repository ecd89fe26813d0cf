"""A side whose first tokens lay in its cache: the other side is compared at the tokens that both were given."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from probe.matching import Matching
from probe.notes import Note, note
from probe.numbers.statistics import measure
from probe.records import HashKind, Role
from probe.verdict.side import Side
from probe.verdict.tensors import Tensor

_WANTED: tuple[Callable[[str, Tensor], bool], ...] = (
    lambda slot, each: each.kind == "integer" and each.dtype != "bool" and not re.search("pos|mask", slot),
    lambda slot, each: each.kind == "float" and len(each.shape) > 1 and "mask" not in slot,
    lambda slot, each: each.kind == "integer" and "pos" in slot,
)
"""what are ids, embeddings and positions, by slot"""
_ALIKE = 0.02
"""relative difference up to which embeddings are those of the same tokens"""


@dataclass(frozen=True, eq=False, slots=True)
class _Last(Tensor):
    """What a tensor is at its last tokens, which lie along an axis in one row or several."""

    whole: Tensor | None = None
    axis: int = 0
    sequences: int = 1
    is_stored = False  # type: ignore[assignment]

    def values(self) -> np.ndarray:
        assert self.whole is not None
        before, (size, *behind) = self.shape[: self.axis], self.shape[self.axis :]
        found = self.whole.values().reshape(math.prod(before) * self.sequences, -1, *behind)
        return found[:, -size // self.sequences :].reshape(self.form)


def at_last(whole: Tensor, axis: int, count: int, rows: int = 1) -> Tensor:
    """Return what a tensor with values is at so many last tokens of each row along an axis."""
    known = {each.name: getattr(whole, each.name) for each in fields(Tensor)}
    shape = (*whole.shape[:axis], rows * count, *whole.shape[axis + 1 :])
    known |= {"shape": shape, "hash": None, "sketch": None, "reader": None}
    last = _Last(**known, whole=whole, axis=axis, sequences=rows)
    seen = measure(last.values(), hash_kind=HashKind.NONE)
    bad = seen.nan, seen.posinf, seen.neginf
    return replace(last, norm=seen.norm, mean=seen.mean, low=seen.min, high=seen.max, bad=bad, zeros=seen.zeros)


def behind_prefix(a: Side, b: Side, matching: Matching) -> list[Note]:
    """Cut the side that was given more tokens to its last ones, where the other was given these; return what is to be said."""
    ids, embedded, places = ([_given(side, wants) for side in (a, b)] for wants in _WANTED)
    tokens = ids if all(ids) else embedded
    counts = [sum(_laid(each)[1] for each in some) for some in tokens]
    if not all(counts) or counts[0] == counts[1]:
        return []
    long, short = (0, 1) if counts[0] > counts[1] else (1, 0)
    begin, is_cached = counts[long] - counts[short], min((each.low for each in places[short]), default=0) > 0
    same, same_places = (_is_end(each[long], each[short]) for each in (tokens, places))
    is_lined_up = (same and (counts[short] > 1 or same_places)) or (same_places and is_cached)
    facts = {"side": "AB"[short], "other": "AB"[long], "begin": begin, "total": counts[long], "count": counts[short]}
    facts |= {"same": same, "same_places": same_places, "has_places": all(places), "is_lined_up": is_lined_up}
    facts["is_known"] = all(each.has_values for some in tokens for each in some)
    if is_lined_up:
        pairs = {pair.a: pair.b for pair in matching.pairs}
        sides = (a, b) if long == 0 else (b, a)
        _cut(*sides, tokens[long], pairs if long == 0 else {y: x for x, y in pairs.items()}, begin)
    return [note("begins-behind-prefix", **facts)] if is_lined_up or is_cached else []


def _laid(tensor: Tensor) -> tuple[int, int, int]:
    """Return how many sequences there are, their length, and how many numbers each token is."""
    *rows, length, width = (*tensor.shape, 1) if tensor.kind == "integer" else tensor.shape
    return math.prod(rows), length, width


def _given(side: Side, wants: Callable[[str, Tensor], bool]) -> list[Tensor]:
    """Return what each pass without gradients was given first of a kind; nothing where one lacks it, or others have gradients."""
    found: dict[int, Tensor | None] = {}
    if any(call.micro >= 0 for call in side.calls):
        return []
    for call in side.calls:
        fits = (each for slot, each in call.of(Role.INPUT).items() if each.size and each.shape and wants(slot, each))
        found[call.micro] = found.get(call.micro) or next(fits, None)
    given = [tensor for _, tensor in sorted(found.items(), reverse=True) if tensor is not None]
    return given if len(given) == len(found) else []


def _is_end(long: Sequence[Tensor], short: Sequence[Tensor]) -> bool:
    """Return True if what the passes of one side were given together is the end of what the other's were."""
    if not long or not short or not all(each.has_values for each in (*long, *short)):
        return False
    found = [[each.values().reshape(_laid(each)) for each in some] for some in (long, short)]
    if len({(len(each), each.shape[2]) for some in found for each in some}) > 1:
        return False
    whole, end = (np.concatenate(some, 1) for some in found)
    most = _ALIKE * float(np.linalg.norm(end)) if long[0].kind == "float" else 0.0
    return float(np.linalg.norm(whole[:, -end.shape[1] :] - end)) <= most


def _cut(long: Side, short: Side, tokens: Sequence[Tensor], partners: Mapping[int, int], begin: int) -> None:
    """Leave out the passes of the prefix, and cut the one in which it ends."""
    ends = np.cumsum([_laid(each)[1] for each in tokens])
    at = int(np.searchsorted(ends, begin, side="right"))
    (rows, size, _), count = _laid(tokens[at]), int(ends[at]) - begin
    long.calls = [call for call in long.calls if call.micro < -at]
    others = {(call.module, call.number): call for call in reversed(short.calls)}
    for call in long.calls:
        call.micro += at
        other = others.get((partners.get(call.module, -1), call.number))
        for role in (Role.INPUT, Role.OUTPUT) if call.micro == -1 and count < size else ():
            there, own = other.of(role) if other is not None else {}, call.of(role)
            for slot, tensor in own.items():
                if tensor.has_values and tensor.kind != "complex":
                    own[slot] = _cut_as(tensor, there[slot].shape if slot in there else (), size, count, rows)


def _cut_as(tensor: Tensor, other: Sequence[int], size: int, count: int, rows: int) -> Tensor:
    """Return a tensor at its last tokens: along the first axis of as many that is not as long on the other side."""
    is_alike = len(other) == len(tensor.shape)
    axes = [at for at, n in enumerate(tensor.shape) if not (is_alike and other[at] == n)]
    found = [(at, each) for each in (1, rows) for at in axes if tensor.shape[at] == each * size]
    return at_last(tensor, found[0][0], count, found[0][1]) if found else tensor
